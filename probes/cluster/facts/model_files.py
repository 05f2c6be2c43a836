"""Reads the files of models on this node: sizes, and a digest of parts of each file."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

BLOCK = 2**20  # bytes that are read at each place
# Bytes from one place to the next.  140 GB of weights make 0.5 GB to read: a second or two.
STRIDE = 2**28
# Files of one path, and seconds for all paths of a node: a model has some dozens of files.  A task
# on a node may take longer.
MAX_FILES = 10_000
SECONDS = 60.0
SKIPPED = ".lock"  # files of a download that differ by node; hidden ones do as well


def read_model_files(paths: Sequence[str], seconds: float = SECONDS) -> dict[str, dict[str, Any]]:
    """Read {path: {"files": {name: "size digest"}, "error", "unknown"}}.

    A name is relative to the path; that of a single file is ".".  `error` is what a job would see
    as well, and `unknown` why not all files were read.
    """
    deadline = time.monotonic() + seconds
    return {path: _read_path(Path(path), deadline) for path in paths}


def _read_path(path: Path, deadline: float) -> dict[str, Any]:
    files: dict[str, str] = {}
    error = unknown = ""
    try:
        for name, file in _list_files(path):
            if time.monotonic() > deadline or len(files) == MAX_FILES:
                unknown = f"only {len(files)} files of {path} were read in time"
                break
            files[name] = digest_file(file)
    except OSError as problem:
        error = str(problem.strerror or problem)
    if not files and not unknown:
        error = error or "no file"
    return {"files": files, "error": error, "unknown": unknown}


def _list_files(path: Path) -> Iterator[tuple[str, Path]]:
    """Find the files of a folder, or the file itself.  Raises OSError where one is unreadable."""
    if not path.is_dir():
        yield ".", path
        return
    for folder, folders, names in os.walk(path, onerror=_raise_error):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and not name.endswith(SKIPPED):
                file = Path(folder, name)
                yield str(file.relative_to(path)), file


def _raise_error(error: OSError) -> None:
    raise error


def digest_file(file: Path) -> str:
    """Return size and digest: of BLOCK bytes at each STRIDE, and of the last BLOCK bytes."""
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as opened:
        size = os.fstat(opened.fileno()).st_size
        for place in (*range(0, size, STRIDE), max(0, size - BLOCK)):
            digest.update(os.pread(opened.fileno(), BLOCK, place))
    return f"{size} {digest.hexdigest()[:16]}"


def read_changed_file(path: str) -> dict[str, dict[str, Any]]:
    """Read a model as `read_model_files`, with one byte of one file changed, for a control.

    The other files are links to the model's own.  The changed file is a sparse one in the folder
    for temporary files, where no room is used.  Raises OSError if there is no file.
    """
    with tempfile.TemporaryDirectory() as folder:
        changed = False
        for index, (name, file) in enumerate(_list_files(Path(path))):
            link = Path(folder, name if name != "." else "model")
            link.parent.mkdir(parents=True, exist_ok=True)
            if index == 0:
                _write_changed(file, link)
                changed = True
            else:
                link.symlink_to(file.absolute())
        if not changed:
            raise OSError(f"{path} has no file")
        whole = folder if Path(path).is_dir() else str(link)
        return {path: read_model_files([whole])[whole]}


def _write_changed(source: Path, target: Path) -> None:
    with source.open("rb") as opened:
        block = bytearray(opened.read(BLOCK)) or bytearray(1)
    block[0] ^= 1
    target.write_bytes(block)
    os.truncate(target, max(source.stat().st_size, 1))
