"""Files of signatures, and the calls of ssh-keygen that make and verify them."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from reports.run_folder.event_log import SIGNATURES as FOLDER
from reports.run_folder.event_log import SUMS
from reports.sanitize import last_line, one_line

MAX_NAMES = 100  # a valid folder has four files
MAX_SUMS_BYTES = 64 * 2**20  # SHA256SUMS of half a million files
NEVER_REPLACED = (
    "seatrial never replaces a signature. To sign again, first move both files of the old "
    "signature (.txt and .txt.sig) out of the run folder"
)
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO must not block
WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class SigningError(ValueError):
    """Raised if a run cannot be signed, or a signature cannot be read; one sentence."""


class SignatureFileError(SigningError):
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
        raise SignatureFileError(f"{folder.name}/ is a link, or is not a readable folder") from None
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
    """Read one file of a signature in `signatures/`.

    Raises SignatureFileError if it is missing, a link, no plain file, or longer than `limit` bytes.
    """
    try:
        with _opened_folder(run / FOLDER) as folder:
            return _read_plain_file(folder, name, f"{FOLDER}/{name}", limit)
    except FileNotFoundError:
        missing = f"{FOLDER}/{name} is missing, but the other file of the pair exists"
        raise SignatureFileError(missing) from None


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
            raise SignatureFileError(f"{shown} is not a regular file")
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise SignatureFileError(f"{shown} has more than {limit} bytes")
    return content


def digest_of_sums(run: Path) -> str:
    """Compute the sha256 of SHA256SUMS; "" if it cannot be read."""
    with suppress(OSError, SignatureFileError), _opened_folder(run) as folder:
        return hashlib.sha256(_read_plain_file(folder, SUMS, SUMS, MAX_SUMS_BYTES)).hexdigest()
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
        raise SignatureFileError(f"{FOLDER}/{name} already exists: {NEVER_REPLACED}") from None
    finally:
        os.unlink(partial, dir_fd=folder)


NAMESPACE = "seatrial"  # a signature made for git or for a file is not valid for a run
CHECK_SECONDS = 30  # a check reads small files without a prompt: it takes milliseconds
MAX_BYTES = 16 * 1024  # of a signature: with a certificate and an RSA key it is under 8 KiB
FINGERPRINT = re.compile(r"\bkey (SHA256:[A-Za-z0-9+/]{43})$", re.MULTILINE)
TOO_OLD = re.compile(r"(unknown|illegal|invalid) option -- '?Y")

# Message of ssh-keygen when it cannot sign -> what to do.
REFUSALS = {
    "No private key found for public key": (
        "{key} is a public key, and its private key is neither in ssh-agent nor in the same "
        "folder: give the private key, or add it with `ssh-add`"
    ),
    "UNPROTECTED PRIVATE KEY FILE": "other users can read {key}: run `chmod 600` on it",
    "incorrect passphrase": "the passphrase of {key} is wrong, or no terminal can ask for it",
    "Couldn't load public key": (
        "ssh-keygen cannot read {key}: give a private key, for example of `ssh-keygen -t ed25519`"
    ),
}


class SshError(SigningError):
    """Raised if ssh-keygen fails; one sentence with the reason."""


def sign_text(statement: bytes, key: Path) -> bytes:
    """Sign with a private key, or with the .pub of one that ssh-agent holds. Raises SshError.

    No time-out: ssh-keygen may ask for a passphrase on the terminal or wait for a hardware key.
    """
    if not key.is_file():
        message = f"no file at {key}: expected a private key, or the .pub of a key in ssh-agent"
        raise SshError(message)
    with TemporaryDirectory(prefix="seatrial-") as folder:  # mode 0700
        file = Path(folder) / "statement"
        file.write_bytes(statement)
        words = ["-Y", "sign", "-n", NAMESPACE, "-f", str(key.absolute()), str(file)]
        stdin = None if sys.stdin and sys.stdin.isatty() else subprocess.DEVNULL
        done = _run_keygen(words, stdin=stdin)
        signature = file.with_name("statement.sig")
        if done.returncode == 0 and signature.is_file():
            return signature.read_bytes()
    for said, sentence in REFUSALS.items():
        if said in done.stderr:
            raise SshError(sentence.format(key=key))
    raise SshError(
        f"ssh-keygen did not sign with {key}: {one_line(last_line(done.stderr)) or 'no message'}"
    )


def fingerprint_of_signer(statement: bytes, signature: bytes) -> str:
    """Return the fingerprint of the key that signed this, known or not. Raises SshError."""
    return _check(["check-novalidate"], statement, signature)


def verify_text(
    statement: bytes, signature: bytes, party: str, signers: Path, revoked: Path | None = None
) -> None:
    """Raise SshError unless a key of `party` in `signers`, not in `revoked`, signed this."""
    words = ["verify", "-I", party, "-f", str(signers.absolute())]
    _check([*words, *(["-r", str(revoked.absolute())] if revoked else [])], statement, signature)


def _check(words: list[str], statement: bytes, signature: bytes) -> str:
    """Run one of ssh-keygen's checks and return the key's fingerprint. Raises SshError."""
    with TemporaryDirectory(prefix="seatrial-") as folder:
        file = Path(folder) / "signature"
        file.write_bytes(signature)
        done = _run_keygen(["-Y", *words, "-n", NAMESPACE, "-s", str(file)], statement)
    key = FINGERPRINT.search(done.stdout.strip())
    if done.returncode or key is None:
        raise SshError(one_line(last_line(done.stderr)) or "ssh-keygen gives no reason")
    return key[1]


def _run_keygen(
    words: list[str], content: bytes | None = None, stdin: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ssh-keygen: with `content` and a time-out for a check, otherwise without a time-out."""
    command = shutil.which("ssh-keygen")
    if command is None:
        raise SshError("ssh-keygen is not installed: install the OpenSSH client (openssh-client)")
    call, limit = [command, *words], None if content is None else CHECK_SECONDS
    try:
        done = subprocess.run(
            call, capture_output=True, check=False, input=content, stdin=stdin, timeout=limit
        )
    except subprocess.TimeoutExpired:
        raise SshError(f"ssh-keygen did not answer in {CHECK_SECONDS} s") from None
    except OSError as error:
        raise SshError(f"{command} cannot be run: {error.strerror}") from None
    output, errors = (part.decode("utf-8", "replace") for part in (done.stdout, done.stderr))
    if TOO_OLD.search(errors):
        raise SshError("this ssh-keygen is too old to sign: install OpenSSH 8.2 or newer")
    return subprocess.CompletedProcess(done.args, done.returncode, output, errors)
