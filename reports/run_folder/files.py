"""Opens and writes files of a run folder without following links or reading devices or pipes.

A run folder may come from another party, so its files are not trusted.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

SUMS = "SHA256SUMS"  # written last: a run that ended properly has it
SIGNATURES = "signatures"  # the only folder that gets files after that
CHUNK = 1 << 20  # bytes hashed at a time
MAX_FILES = 100_000  # in a folder: a run of 1,000 nodes keeps a few thousand
MAX_DEPTH = 8  # nested folders; those of a run are one level deep


class UnreadableRun(ValueError):
    """Raised if this version cannot read a run folder. Text: what was expected and found."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, without following a link or waiting for a pipe.

    Raises UnreadableRun if there is no such file, or it is not a regular file or not readable.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        text = error.strerror if isinstance(error, OSError) else "its name is none"
        raise UnreadableRun(f"{path} cannot be read: {text}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UnreadableRun(f"{path}: expected a regular file, found none")
    return os.fdopen(handle, "rb")


def hash_file(path: Path) -> str:
    """Return the sha256 of a regular file. Raises UnreadableRun."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def list_files(run: Path) -> list[str]:
    """List the files of a run folder, sorted and relative to it.

    Raises UnreadableRun if it has a link, or anything but files and folders. The target of a link
    would be read or shared as part of the run. Raises it also if there are too many files.
    """
    return sorted(_walk(run, ""))


def _walk(folder: Path, prefix: str) -> Iterator[str]:
    if prefix.count("/") > MAX_DEPTH:
        raise UnreadableRun(f"{folder}: expected at most {MAX_DEPTH} folders in each other")
    try:
        with os.scandir(folder) as found:
            entries = [entry for entry, _ in zip(found, range(MAX_FILES), strict=False)]
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) else "its name is none"
        raise UnreadableRun(f"{folder} is not a run folder: {text}") from None
    if len(entries) == MAX_FILES:
        raise UnreadableRun(f"{folder}: expected fewer than {MAX_FILES} files")
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), f"{prefix}{entry.name}/")
        elif entry.is_file(follow_symlinks=False):
            yield prefix + entry.name
        else:
            kind = "a link" if entry.is_symlink() else "a pipe, a socket or a device"
            raise UnreadableRun(
                f"{entry.path}: expected files and folders alone in a run folder, found {kind}"
            )


def write_atomically(path: Path, text: str) -> None:
    """Replace a file, or a link of that name; readers see either the old text or the new text."""
    # tempfile is not used: it makes the path absolute, which may lead over another mount.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}.partial")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise


def write_checksums(run: Path) -> None:
    """Write SHA256SUMS of all other files except signatures, in `sha256sum -c` format."""
    names = [n for n in list_files(run) if n != SUMS and not n.startswith(f"{SIGNATURES}/")]
    write_atomically(run / SUMS, "".join(f"{hash_file(run / n)}  {n}\n" for n in names))
