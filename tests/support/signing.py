"""Makes runs to be signed, and keys to sign with."""

from __future__ import annotations

import atexit
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from click.testing import CliRunner, Result

from probes.cli.main import main
from probes.contract.contract import load, parse
from tests.support.sound_run import write_sound_run

WAIVED = """
[[waivers]]
id = "W1"
criterion = "GANG"
reason = "known"
name = "A. Ops"
until = 2099-12-31
"""
WAIVER = "W1 for GANG, by A. Ops, until 2099-12-31: known"


@cache
def finished_run(passes: bool = True, nonce: str = "") -> Path:
    """Return a run folder as the suite leaves it, of a run that exits with 0, or 1.

    The folder is cached: copy it, and change nothing in it.
    """
    contract = parse(load("lab").text + WAIVED.encode(), "agreed.toml")
    made = Path(mkdtemp(prefix="seatrial-signing-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return write_sound_run(
        made / "run", nonce, contract=contract, partially_held=0 if passes else 3
    )


def make_key(file: Path, *words: str) -> Path:
    """Make an ssh key without a passphrase, unless `words` set one; its .pub is next to it."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-C", "test", "-N", "", "-f", str(file), *words]
    subprocess.run(command, check=True, capture_output=True)
    return file


def public_key(key: Path) -> str:
    """Return the line of a public key."""
    return Path(f"{key}.pub").read_text().strip()


def seatrial(*words: str | Path) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, [str(word) for word in words])


@dataclass(frozen=True)
class Signed:
    """Run that both parties signed, their keys, and the file of allowed signers."""

    run: Path
    keys: dict[str, Path]
    signers: Path

    @property
    def texts(self) -> dict[str, str]:
        """Statement of each party."""
        return {party: self.file(party).read_text() for party in self.keys}

    def file(self, party: str, end: str = "") -> Path:
        """Return the path of a statement, or of its signature if `end` is .sig."""
        return self.run / "signatures" / f"{party}.txt{end}"

    def write(self, party: str, text: str, key: Path, namespace: str = "seatrial") -> None:
        """Write a statement and its signature, as an owner of `key` can by hand."""
        file = self.file(party)
        self.file(party, ".sig").unlink(missing_ok=True)
        file.write_bytes(text.encode())
        command = ["ssh-keygen", "-Y", "sign", "-q", "-n", namespace, "-f", str(key), str(file)]
        done = subprocess.run(command, check=False, capture_output=True)
        assert done.returncode == 0, done.stderr

    def says(self, party: str, old: str, new: str) -> None:
        """Sign, with the party's own key, a statement in which `new` replaces `old`."""
        assert self.texts[party].count(old) == 1
        self.write(party, self.texts[party].replace(old, new), self.keys[party])

    def edited(self, party: str, old: str, new: str) -> None:
        """Replace a text of the statement and keep its signature."""
        text = self.texts[party]
        assert text.count(old) == 1
        self.file(party).write_bytes(text.replace(old, new).encode())


def sign(run: Path, party: str, key: Path, *words: str) -> None:
    """Sign by the command, which must succeed."""
    done = seatrial("sign", run, "--as", party, "--key", key, *words)
    assert done.exit_code == 0, done.output
