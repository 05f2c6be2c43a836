"""Numbers the documents of a corpus so that every node finds the same numbers independently.

A corpus is a folder. Each line of a `*.jsonl` file is a document, an object with a "text". Every
other file is one document. Documents are numbered from 0, in order of path, then of line. Blank
lines, and files and folders whose name begins with a dot, are ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from reference_trainer.manifest import content_sha256


class DataError(RuntimeError):
    """Raised when the data cannot be used. One sentence: expected, found, and what to do."""


@dataclass(frozen=True, kw_only=True)
class CorpusFile:
    """One file of a corpus: path in the folder, size in bytes, sha256, number of documents."""

    name: str
    size: int
    sha256: str
    documents: int


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Folder of documents, as it was when it was scanned."""

    folder: Path
    sources: tuple[CorpusFile, ...]

    @property
    def documents(self) -> int:
        """Number of documents."""
        return sum(source.documents for source in self.sources)

    @property
    def sha256(self) -> str:
        """Digest of all names and contents; nodes with the same digest have the same documents."""
        return content_sha256({"sources": [asdict(source) for source in self.sources]})

    def texts(self, node: int, nodes: int) -> Iterator[tuple[int, bytes]]:
        """Yield (number, UTF-8 text) of each document with number % nodes == node, in order.

        The other documents are not parsed. Raises DataError.
        """
        first = 0
        for source in self.sources:
            indices = range((node - first) % nodes, source.documents, nodes)
            for index, text in _read_texts(self.folder / source.name, source, indices):
                yield first + index, text
            first += source.documents


def scan_corpus(folder: Path) -> Corpus:
    """Find and count the documents of a folder; read every file once, for its sha256.

    Raises DataError.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: name the folder with the documents")
    try:
        files = sorted((path.relative_to(folder).as_posix(), path) for path in _walk_files(folder))
    except OSError as error:
        raise _unreadable_error(str(error.filename), str(error.strerror)) from error
    corpus = Corpus(folder=folder, sources=tuple(_scan_file(path, name) for name, path in files))
    if not corpus.documents:
        raise DataError(
            f"{folder} has no documents. Expected: text files, or *.jsonl files with a"
            ' {"text": ...} on each line'
        )
    return corpus


def _walk_files(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder, and links to folders; reading such a link later raises."""
    for entry in os.scandir(folder):
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk_files(Path(entry.path))
        else:
            yield Path(entry.path)


def _scan_file(path: Path, name: str) -> CorpusFile:
    digest, lines = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            for line in file:
                digest.update(line)
                lines += bool(line.strip())
            size = file.tell()
    except OSError as error:
        raise _unreadable_error(str(path), str(error.strerror)) from error
    documents = lines if name.endswith(".jsonl") else 1
    return CorpusFile(name=name, size=size, sha256=digest.hexdigest(), documents=documents)


def _read_texts(path: Path, source: CorpusFile, indices: range) -> Iterator[tuple[int, bytes]]:
    """Yield (index in the file, UTF-8 text) of the documents at these indices."""
    if not indices:
        return
    try:
        with path.open("rb") as file:
            if not source.name.endswith(".jsonl"):
                yield 0, _require_utf8(file.read(), str(path))
                return
            lines = (pair for pair in enumerate(file, start=1) if pair[1].strip())
            for index, (number, line) in enumerate(lines):
                if index in indices:
                    yield index, _parse_line(line, f"line {number} of {path}")
    except OSError as error:
        raise _unreadable_error(str(path), str(error.strerror)) from error


def _require_utf8(content: bytes, location: str) -> bytes:
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise _unreadable_error(location, f"byte {error.start} is not UTF-8") from None
    return content


def _parse_line(line: bytes, location: str) -> bytes:
    try:
        return json.loads(line)["text"].encode()
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise _unreadable_error(location, 'not a JSON object with a "text" in UTF-8') from None


def _unreadable_error(location: str, reason: str) -> DataError:
    why = f"{reason}. Repair it or remove it from the folder"
    return DataError(f"{location} cannot be read as a document: {why}")
