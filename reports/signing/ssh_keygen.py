"""Signs and verifies with `ssh-keygen -Y` and existing SSH keys.

Only ssh-keygen handles the private key, its passphrase, an agent or a hardware key. This module
reads none of them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from reports.sanitize import one_line

NAMESPACE = "seatrial"  # a signature made for git or for a file is not valid for a run
CHECK_SECONDS = 30  # a check reads small files without a prompt: it takes milliseconds
MAX_BYTES = 16 * 1024  # of a signature: with a certificate and an RSA key it is under 8 KiB
FINGERPRINT = re.compile(r"\bkey (SHA256:[A-Za-z0-9+/]{43})$", re.MULTILINE)
TOO_OLD = re.compile(r"(unknown|illegal|invalid) option -- '?Y")

# Message of ssh-keygen when it cannot sign -> what to do.
REFUSALS = {
    "No private key found for public key": (
        "{key} is a public key, and neither ssh-agent nor its folder has the private key: give "
        "the private key, or `ssh-add` it"
    ),
    "UNPROTECTED PRIVATE KEY FILE": "{key} can be read by others: `chmod 600` it",
    "incorrect passphrase": "the passphrase of {key} was wrong, or there was no terminal to ask",
    "Couldn't load public key": (
        "{key} is no key that ssh-keygen reads: give a private key as `ssh-keygen -t ed25519` makes"
    ),
}


class SshError(ValueError):
    """Raised if ssh-keygen fails; one sentence with the reason."""


def sign_text(statement: bytes, key: Path) -> bytes:
    """Sign with a private key, or with the .pub of one that ssh-agent holds. Raises SshError.

    No time-out: ssh-keygen may ask for a passphrase on the terminal or wait for a hardware key.
    """
    if not key.is_file():
        raise SshError(
            f"expected a private key, or the .pub of one in ssh-agent, at {key}: no file"
        )
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
    raise SshError(f"ssh-keygen did not sign with {key}: {_last_line(done.stderr)}")


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
        raise SshError(_last_line(done.stderr) or "ssh-keygen says no more")
    return key[1]


def _run_keygen(
    words: list[str], content: bytes | None = None, stdin: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ssh-keygen: with `content` and a time-out for a check, otherwise without a time-out."""
    command = shutil.which("ssh-keygen")
    if command is None:
        raise SshError("ssh-keygen is not installed: install OpenSSH's client (openssh-client)")
    limit = None if content is None else CHECK_SECONDS
    try:
        done = subprocess.run(
            [command, *words],
            capture_output=True,
            check=False,
            input=content,
            stdin=stdin,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        raise SshError(f"ssh-keygen did not answer in {CHECK_SECONDS} s") from None
    except OSError as error:
        raise SshError(f"{command} cannot be run: {error.strerror}") from None
    output, errors = (part.decode("utf-8", "replace") for part in (done.stdout, done.stderr))
    if TOO_OLD.search(errors):
        raise SshError("this ssh-keygen is too old to sign: OpenSSH 8.2 or newer is needed")
    return subprocess.CompletedProcess(done.args, done.returncode, output, errors)


def _last_line(text: str) -> str:
    """Return the last line that is not empty; it has the reason."""
    return next((one_line(line) for line in reversed(text.splitlines()) if line.strip()), "")
