"""Reads and writes `signatures/`: follows no link, overwrites nothing, limits what it reads.

signatures/provider.txt      the statement
           provider.txt.sig  its signature
           customer.txt, customer.txt.sig
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from reports.run_folder.files import SIGNATURES as FOLDER
from reports.run_folder.files import SUMS
from reports.sanitize import one_line

MAX_NAMES = 100  # a valid folder has four files
MAX_SUMS_BYTES = 64 * 2**20  # SHA256SUMS of half a million files
NEVER_REPLACED = "a signature is never replaced, move it out of the folder if it must go"
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO must not block
WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class SignatureFileError(ValueError):
    """Raised if a signature file or folder is not as seatrial makes it; one sentence."""


@contextmanager
def _opened_folder(folder: Path) -> Iterator[int]:
    """Open a folder and yield its descriptor, so that no link can replace it during reading.

    Raises FileNotFoundError, or SignatureFileError if it is a link or no readable folder.
    """
    try:
        descriptor = os.open(folder, READ | os.O_DIRECTORY)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise FileNotFoundError(folder) from None
        raise SignatureFileError(
            f"{folder.name}/ is a link, or no folder that can be read"
        ) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def list_names(run: Path) -> list[str]:
    """List the names in `signatures/`, at most MAX_NAMES; [] if there is no such folder."""
    try:
        with _opened_folder(run / FOLDER) as folder, os.scandir(folder) as entries:
            return sorted(entry.name for entry in islice(entries, MAX_NAMES))
    except FileNotFoundError:
        return []


def read_signature_file(run: Path, name: str, limit: int) -> bytes:
    """Read one file of `signatures/`. Raises FileNotFoundError if it is missing.

    Raises SignatureFileError if it is a link, no plain file, or longer than `limit` bytes.
    """
    with _opened_folder(run / FOLDER) as folder:
        return _read_plain_file(folder, name, f"{FOLDER}/{name}", limit)


def _read_plain_file(folder: int, name: str, shown: str, limit: int) -> bytes:
    try:
        descriptor = os.open(name, READ, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else one_line(error.strerror)
        raise SignatureFileError(f"{shown} cannot be read: {why}") from None
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise SignatureFileError(f"{shown} is no plain file")
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise SignatureFileError(f"{shown} has more than {limit} bytes")
    return content


def digest_of_sums(run: Path) -> str:
    """Compute the sha256 of SHA256SUMS; "" if it cannot be read."""
    with suppress(OSError, SignatureFileError), _opened_folder(run) as folder:
        content = _read_plain_file(folder, SUMS, SUMS, MAX_SUMS_BYTES)
        return hashlib.sha256(content).hexdigest()
    return ""


def write_signature_files(run: Path, contents: dict[str, bytes]) -> None:
    """Write all of these files into `signatures/`, or none. Raises SignatureFileError, OSError.

    A hard link makes each file appear complete. It fails if the name exists; a rename would
    overwrite the file.
    """
    with suppress(FileExistsError):
        (run / FOLDER).mkdir()
    written: list[str] = []
    with _opened_folder(run / FOLDER) as folder:
        try:
            for name, content in contents.items():
                _write_new_file(folder, name, content)
                written.append(name)
        except BaseException:
            for name in written:
                os.unlink(name, dir_fd=folder)
            raise


def _write_new_file(folder: int, name: str, content: bytes) -> None:
    partial = f".{name}.{secrets.token_hex(8)}"  # random, so that no link can be prepared there
    descriptor = os.open(partial, WRITE, 0o644, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(descriptor)
        os.link(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        raise SignatureFileError(f"{FOLDER}/{name} is there already: {NEVER_REPLACED}") from None
    finally:
        os.unlink(partial, dir_fd=folder)
