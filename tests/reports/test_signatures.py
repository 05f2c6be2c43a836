"""What page and terminal say of signatures, and what is said where ssh-keygen cannot help."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.acceptance import load_summary
from reports.sanitize import one_line
from reports.signing import files
from reports.signing.files import SigningError, SshError, sign_text, verify_text
from reports.signing.signatures import (
    Statement,
    StatementError,
    parse_statement,
    prepare_statement,
    signed_by,
)
from tests.support.paths import RECORDINGS
from tests.support.signing import make_key, public_key

SUMS = b"00  events.jsonl\n"
STATEMENT = Statement(
    run="r",
    verdict="ACCEPTED",
    exit_code="0",
    waivers=("W1 for GANG", "W2 for GANG"),
    nonce="n",
    sums=hashlib.sha256(SUMS).hexdigest(),
    head="1" * 64,
    party="customer",
    name="Jörg Doe",
    decision="conditions",
    conditions=("one", "two: too"),
    time="2026-11-20T22:17:03.120Z",
    version="0.1.0",
)
TEXT = STATEMENT.text().encode()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """As much of a run folder as is read for page and terminal."""
    folder = tmp_path / "run"
    (folder / "signatures").mkdir(parents=True)
    (folder / "SHA256SUMS").write_bytes(SUMS)
    (folder / "signatures" / "customer.txt").write_bytes(TEXT)
    (folder / "signatures" / "customer.txt.sig").write_text("nobody looks")
    return folder


def test_a_statement_is_read_as_it_was_written() -> None:
    assert parse_statement(TEXT) == STATEMENT


def test_signed_by_tells_what_is_claimed(run: Path) -> None:
    (one,) = signed_by(run)
    time = "2026-11-20T22:17:03.120Z"
    told = (one.party, one.name, one.decision, one.time)
    assert told == ("customer", "Jörg Doe", "conditions", time)


def claims(run: Path, name: str, content: bytes) -> None:
    (run / name).write_bytes(content)


def linked(run: Path, name: str) -> None:
    (run / name).rename(run.parent / "elsewhere")
    (run / name).symlink_to(run.parent / "elsewhere")


def piped(run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)


HOSTILE = {
    "no signature": lambda run: (run / "signatures/customer.txt.sig").unlink(),
    "no statement": lambda run: (run / "signatures/customer.txt").unlink(),
    "of other sums": lambda run: claims(run, "SHA256SUMS", b"other"),
    "no sums": lambda run: (run / "SHA256SUMS").unlink(),
    "sums are a link": lambda run: linked(run, "SHA256SUMS"),
    "sums are a pipe": lambda run: piped(run, "SHA256SUMS"),
    "a link": lambda run: linked(run, "signatures/customer.txt"),
    "a folder that is a link": lambda run: linked(run, "signatures"),
    "a pipe": lambda run: piped(run, "signatures/customer.txt"),
    "a device": lambda run: (
        (run / "signatures/customer.txt").unlink(),
        (run / "signatures/customer.txt").symlink_to("/dev/zero"),
    ),
    "no text": lambda run: claims(run, "signatures/customer.txt", b"\xff\x00"),
    "empty": lambda run: claims(run, "signatures/customer.txt", b""),
    "too long": lambda run: claims(run, "signatures/customer.txt", TEXT + b"x" * 2**17),
    "signature too long": lambda run: claims(run, "signatures/customer.txt.sig", b"x" * 2**17),
    "of the other party": lambda run: claims(
        run, "signatures/customer.txt", TEXT.replace(b"party: customer", b"party: provider")
    ),
    "escapes": lambda run: claims(run, "signatures/customer.txt", TEXT.replace(b"Doe", b"\x1b[m")),
    "no run": lambda run: run.rename(run.parent / "gone"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_signed_by_tells_nothing_of_what_is_no_statement_and_raises_nothing(
    run: Path, name: str
) -> None:
    HOSTILE[name](run)
    assert signed_by(run) == []


@given(st.binary(max_size=300), st.integers(0, len(TEXT)))
def test_no_bytes_are_read_as_anything_but_what_was_written(noise: bytes, at: int) -> None:
    content = TEXT[:at] + noise + TEXT[at:]
    try:
        statement = parse_statement(content)
    except StatementError:
        return
    assert statement.text().encode() == content
    assert all(one_line(line) == line for line in content.decode().splitlines())


# --------------------------------------------------------------------------------- ssh-keygen


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path / "key")


def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put another ssh-keygen in front of all others."""
    tool = tmp_path / "bin" / "ssh-keygen"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")


def refusal(key: Path) -> str:
    with pytest.raises(SshError) as refused:
        sign_text(b"text", key)
    return str(refused.value)


def test_a_key_that_cannot_sign_gets_one_sentence(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    assert refusal(tmp_path / "none").startswith(f"no file at {tmp_path}/none: ")
    assert refusal(tmp_path).startswith("no file at ")
    (tmp_path / "text").write_text("no key")
    assert "ssh-keygen cannot read " in refusal(tmp_path / "text")
    (tmp_path / "alone.pub").write_text(public_key(key))
    assert "is a public key, and its private key is neither in" in refusal(tmp_path / "alone.pub")
    key.chmod(0o644)
    assert refusal(key).startswith("other users can read ")


def test_a_wrong_passphrase_gets_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_ASKPASS", "/bin/false")
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    locked = make_key(tmp_path / "locked", "-N", "correct horse")
    assert "the passphrase of " in refusal(locked)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'ssh-keygen: unknown option -- Y' >&2; exit 1", "too old to sign: install OpenSSH"),
        ("echo \"ssh-keygen: invalid option -- 'Y'\" >&2; exit 1", "too old to sign"),
        ("echo 'one\n\033[31mdevice lost' >&2; exit 255", "key: device lost"),
        ("exit 0", "ssh-keygen did not sign with"),
    ],
)
def test_an_ssh_keygen_that_cannot_sign_gets_one_sentence(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    pretend(tmp_path, monkeypatch, script)
    assert says in refusal(key)


def test_a_missing_ssh_keygen_gets_one_sentence(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "ssh-keygen is not installed: install " in refusal(key)


def test_a_check_ends(key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHECK_SECONDS", 0.2)
    pretend(tmp_path, monkeypatch, "exec sleep 60")
    with pytest.raises(SshError, match="did not answer in"):
        verify_text(b"text", b"signature", "customer", tmp_path / "signers")


GOOD = f'Good "seatrial" signature for customer with ED25519 key SHA256:{"a" * 43}'


@pytest.mark.parametrize("script", ["exit 0", f"echo '{GOOD}'; exit 255", f"echo 'x {GOOD}s'"])
def test_only_a_key_that_is_named_and_an_exit_of_0_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    pretend(tmp_path, monkeypatch, f"cat >/dev/null; {script}")
    with pytest.raises(SshError):
        verify_text(b"text", b"signature", "customer", tmp_path / "signers")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("partial", "PARTIAL run: only FABRIC"), ("no-contract", "no contract was agreed")],
)
def test_what_was_not_tested_whole_is_not_accepted_with_conditions(name: str, reason: str) -> None:
    run = RECORDINGS / name
    words: dict[str, Any] = {"name": "", "conditions": ("the rest by May",)}
    with pytest.raises(SigningError, match=f"cannot be accepted with conditions: {reason}"):
        prepare_statement(run, load_summary(run), "customer", decision="conditions", **words)
    refused = prepare_statement(run, load_summary(run), "customer", decision="refused", **words)
    assert refused.conditions == ("the rest by May",)
