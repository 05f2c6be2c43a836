"""`seatrial sign` and `verify`: what is signed, what verifies, and what is refused."""

from __future__ import annotations

import dataclasses
import os
import re
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from probes.session import rejudge
from reports.run_folder.event_log import SUMS
from reports.signing import files
from reports.signing.verification import Verification
from tests.support.paths import REPO
from tests.support.signing import (
    WAIVER,
    Signed,
    finished_run,
    make_key,
    public_key,
    seatrial,
    sign,
)

REHEARSED = ("--decision", "conditions", "--condition", "only a rehearsal")  # it cannot be accepted

# ------------------------------------------------------------------------------ what verifies


def test_the_untouched_folder_verifies(signed: Signed) -> None:
    both = ["--require", "provider", "--require", "customer"]
    done = seatrial("verify", signed.run, "--signers", signed.signers, *both)
    assert done.exit_code == 0, done.output
    assert re.search(r"provider +signed by Jane Doe at 2\S+Z with SHA256:\S+: cond", done.output)
    assert "  condition  node 3 is repaired by May\n" in done.output
    assert re.search(r"customer +signed at 2\S+Z with SHA256:\S+: refused", done.output)
    last = "VERIFIED: unchanged since it was signed for the provider and the customer. The run's "
    assert f"{last}own verdict: NOT ACCEPTED (rehearsal), exit code 1.\n" in done.output


def test_the_statement_is_what_a_person_reads(signed: Signed) -> None:
    first, *lines = signed.texts["provider"].splitlines()
    assert first == "seatrial sign-off 1"
    facts = dict(line.split(": ", 1) for line in lines)
    assert facts.pop("time").endswith("Z")
    assert len(facts.pop("run fingerprint")) == len(facts.pop("sha256 of SHA256SUMS")) == 64
    assert facts == {
        "run": "run",
        "verdict": "NOT ACCEPTED (rehearsal)",
        "exit code": "1",
        "waiver": WAIVER,
        "party": "provider",
        "name": "Jane Doe",
        "decision": "conditions",
        "condition": "node 3 is repaired by May",
        "seatrial version": facts["seatrial version"],
    }


def test_one_signature_is_enough_unless_two_are_required(passed: Path, original: Signed) -> None:
    sign(passed, "provider", original.keys["provider"], *REHEARSED)
    command = ["verify", passed, "--signers", original.signers]
    done = seatrial(*command)
    assert (done.exit_code, "REHEARSAL PASSED, exit code 0" in done.output) == (0, True)
    done = seatrial(*command, "--require", "customer")
    assert done.exit_code == 4
    assert "problem: the customer has not signed, but must sign\n" in done.output


def test_a_gate_can_require_an_acceptance(passed: Path, original: Signed) -> None:
    """A rehearsal, and a decision of conditions, are no acceptance, and still verify."""
    sign(passed, "provider", original.keys["provider"], *REHEARSED)
    command = ["verify", passed, "--signers", original.signers]
    assert seatrial(*command).exit_code == 0
    done = seatrial(*command, "--require-accepted")
    assert done.exit_code == 1
    assert "NOT ACCEPTED by the run's own verdict, or by the decision of a party." in done.output
    changed = seatrial(*command, "--require-accepted", "--nonce", "other")
    assert changed.exit_code == 4, "what does not verify says so first"


@pytest.mark.parametrize(
    ("verdict", "decisions", "accepted"),
    [
        ("ACCEPTED, exit code 0", ["accepted", "accepted"], True),
        ("ACCEPTED, exit code 0", ["accepted"], False),  # the provider alone
        ("ACCEPTED, exit code 0", ["accepted", "conditions"], False),
        ("ACCEPTED, exit code 0", ["refused", "accepted"], False),
        ("ACCEPTED, exit code 0", [], False),
        ("REHEARSAL PASSED, exit code 0", ["accepted"], False),
        ("NOT ACCEPTED, exit code 20", ["accepted"], False),
    ],
)
def test_accepted_is_what_the_run_and_each_signature_say(
    verdict: str, decisions: list[str], accepted: bool
) -> None:
    parties = dict(zip(("provider", "customer"), decisions, strict=False))
    assert Verification(verdict=verdict, decisions=parties).accepted is accepted


def test_a_key_in_the_agent_signs(
    passed: Path, original: Signed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = tmp_path / "only.pub"
    alone.write_text(public_key(original.keys["customer"]))
    words = ["sign", passed, "--as", "customer", "--key", alone, *REHEARSED]
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    refused = seatrial(*words)
    assert (refused.exit_code, "is neither in ssh-agent nor" in refused.output) == (4, True)
    socket = Path("/tmp") / f"seatrial-{os.getpid()}.agent"  # a socket's path must be short
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.PIPE)
    assert agent.stdout
    agent.stdout.readline()  # it listens
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        subprocess.run(["ssh-add", "-q", str(original.keys["customer"])], check=True)
        assert seatrial(*words).exit_code == 0
    finally:
        agent.terminate()
        agent.wait(timeout=10)
        agent.stdout.close()
    assert seatrial("verify", passed, "--signers", original.signers).exit_code == 0


OWN_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY)
from probes.cli.main import main
main()
"""


def read_until(terminal: int, words: bytes) -> None:
    """Read what is shown until these words; half a minute without any more fails."""
    seen = b""
    while words not in seen:
        assert select.select([terminal], [], [], 30)[0], seen
        seen += os.read(terminal, 4096)


def test_the_passphrase_is_asked_for_on_the_terminal(passed: Path, tmp_path: Path) -> None:
    key = make_key(tmp_path / "locked", "-N", "correct horse")
    terminal, inside = os.openpty()
    # With a display ssh-keygen would ask there, if its standard input were no terminal.
    environment = {**os.environ, "DISPLAY": ":0", "SSH_ASKPASS": "/bin/false"}
    words = ["sign", str(passed), "--as", "customer", "--key", str(key), "--decision", "refused"]
    process = subprocess.Popen(
        [sys.executable, "-c", OWN_TERMINAL, *words], cwd=REPO, stdin=inside, stdout=inside,
        stderr=inside, start_new_session=True, env={**environment, "PYTHONPATH": str(REPO)},
    )  # fmt: skip
    os.close(inside)
    try:
        read_until(terminal, b"Enter passphrase")
        os.write(terminal, b"correct horse\n")
        read_until(terminal, b"signed with SHA256:")
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait(timeout=30)
        os.close(terminal)
    assert (passed / "signatures" / "customer.txt.sig").is_file()


# ---------------------------------------------------------------- what cannot be verified: 20


def test_a_run_that_nobody_signed_cannot_be_verified(passed: Path, original: Signed) -> None:
    done = seatrial("verify", passed, "--signers", original.signers)
    assert done.exit_code == 20
    assert "doubt: no party has signed this run\nCANNOT BE VERIFIED: " in done.output


def test_a_killed_run_cannot_be_verified_or_signed(passed: Path, original: Signed) -> None:
    (passed / SUMS).unlink()
    assert seatrial("verify", passed, "--signers", original.signers).exit_code == 20
    words = ["--as", "provider", "--key", original.keys["provider"], "--decision", "refused"]
    done = seatrial("sign", passed, *words)
    assert (done.exit_code, "cannot be signed because it cannot be verified" in done.output) == (
        4,
        True,
    )


def test_what_the_folder_leaves_in_doubt_stays_in_doubt_when_it_is_signed(
    signed: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = rejudge.read_whole(signed.run)
    doubts = dataclasses.replace(whole.integrity, doubts=["it was cut off"])
    doubted = dataclasses.replace(whole, integrity=doubts)
    monkeypatch.setattr(rejudge, "read_whole", lambda run: doubted)
    done = seatrial("verify", signed.run, "--signers", signed.signers)
    assert (done.exit_code, "doubt: it was cut off\n" in done.output) == (20, True)


def test_what_another_version_judged_otherwise_is_a_doubt(signed: Signed) -> None:
    signed.says("customer", "NOT ACCEPTED (rehearsal)", "ACCEPTED (rehearsal)")
    text = re.sub("version: .*", "version: 0.0.1", signed.texts["customer"])
    signed.write("customer", text, signed.keys["customer"])
    done = seatrial("verify", signed.run, "--signers", signed.signers)
    assert done.exit_code == 20, done.output
    assert "(signed with seatrial 0.0.1, verified with " in done.output


# ------------------------------------------------------------------------------- the nonce


def test_the_nonce_must_be_that_of_the_run(passed: Path, original: Signed) -> None:
    sign(passed, "customer", original.keys["customer"], *REHEARSED)
    done = seatrial("verify", passed, "--signers", original.signers, "--nonce", "monday-7")
    assert done.exit_code == 4
    assert "nonce of the run: missing. Expected: monday-7. This is not the" in done.output


def test_an_empty_nonce_is_not_taken_for_none(signed: Signed) -> None:
    done = seatrial("verify", signed.run, "--signers", signed.signers, "--nonce", " ")
    assert (done.exit_code, "error: --nonce is empty" in done.output) == (4, True)


def test_a_run_with_a_nonce_verifies_with_it_alone(tmp_path: Path, original: Signed) -> None:
    shutil.copytree(finished_run(True, "monday-7"), tmp_path / "run")
    sign(tmp_path / "run", "customer", original.keys["customer"], *REHEARSED)
    statement = (tmp_path / "run" / "signatures" / "customer.txt").read_text()
    assert "\nnonce: monday-7\n" in statement
    command = ["verify", tmp_path / "run", "--signers", original.signers]
    done = seatrial(*command)
    assert (done.exit_code, "monday-7 (not compared" in done.output) == (0, True)
    assert seatrial(*command, "--nonce", "monday-7").exit_code == 0
    assert seatrial(*command, "--nonce", "monday-8").exit_code == 4


# --------------------------------------------------------------------- what is not signed: 4


@pytest.mark.parametrize(
    ("passes", "words", "says"),
    [
        (False, ["accepted"], "'accepted' would claim that the run was proven"),
        (True, ["accepted"], "a rehearsal accepts no cluster: use --decision conditions"),
        (False, ["conditions"], "needs at least one condition"),
        (True, ["accepted", "--condition", "x"], "must not have conditions, use"),
        (True, ["conditions", "--condition", " \u200b"], "is empty or has invisible characters"),
        (True, ["accepted", "--name", "x" * 1001], "has 1001 characters, expected at most 1000"),
        (True, ["refused", *["--condition", "x" * 1000] * 70], "more than 65536 bytes"),
        (True, ["perhaps"], "'perhaps' is not one of"),
    ],
)  # fmt: skip
def test_a_decision_without_sense_is_not_signed(
    tmp_path: Path, keys: dict[str, Path], passes: bool, words: list[str], says: str
) -> None:
    run = shutil.copytree(finished_run(passes), tmp_path / "run")
    key = keys["provider"]
    done = seatrial("sign", run, "--as", "provider", "--key", key, "--decision", *words)
    assert (done.exit_code, says in done.output) == (4, True), done.output
    assert not (run / "signatures").exists()


def test_words_cannot_begin_a_line_of_their_own(passed: Path, keys: dict[str, Path]) -> None:
    hostile = "a\ndecision: refused\x85\n\x1b[31mparty: customer"
    sign(passed, "provider", keys["provider"], *REHEARSED, "--name", hostile)
    text = (passed / "signatures" / "provider.txt").read_text()
    assert "\nname: a decision: refused party: customer\ndecision: conditions\n" in text


def test_a_run_that_does_not_verify_is_not_signed(passed: Path, keys: dict[str, Path]) -> None:
    (passed / "added.txt").write_text("more")
    words = ["--as", "provider", "--key", keys["provider"], "--decision", "refused"]
    done = seatrial("sign", passed, *words)
    assert (done.exit_code, "does not verify and must not be signed" in done.output) == (4, True)
    assert not (passed / "signatures").exists()


@pytest.mark.parametrize("there", ["provider.txt", "provider.txt.sig"])
def test_a_signature_is_never_replaced(passed: Path, keys: dict[str, Path], there: str) -> None:
    (passed / "signatures").mkdir()
    (passed / "signatures" / there).write_text("first")
    words = ["--as", "provider", "--key", keys["provider"], "--decision", "refused"]
    done = seatrial("sign", passed, *words)
    assert (done.exit_code, "never replaces a signature" in done.output) == (4, True)
    assert "passphrase" not in done.output, "it is said before anybody is asked for one"
    assert os.listdir(passed / "signatures") == [there]
    assert (passed / "signatures" / there).read_text() == "first"


@pytest.mark.parametrize("there", ["provider.txt", "provider.txt.sig"])
def test_a_signature_that_comes_while_one_signs_is_not_replaced(
    passed: Path, keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    real = files.sign_text

    def meanwhile(statement: bytes, key: Path) -> bytes:
        (passed / "signatures").mkdir()
        (passed / "signatures" / there).write_text("first")
        return real(statement, key)

    monkeypatch.setattr(files, "sign_text", meanwhile)
    words = ["--as", "provider", "--key", keys["provider"], "--decision", "refused"]
    done = seatrial("sign", passed, *words)
    assert (done.exit_code, "never replaces a signature" in done.output) == (4, True)
    assert os.listdir(passed / "signatures") == [there]
    assert (passed / "signatures" / there).read_text() == "first"


def test_nothing_is_written_through_a_link(
    passed: Path, keys: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (passed / "signatures").symlink_to(tmp_path / "elsewhere")
    words = ["--as", "provider", "--key", keys["provider"], "--decision", "refused"]
    done = seatrial("sign", passed, *words)
    assert (done.exit_code, "expected only files and folders" in done.output) == (4, True), (
        done.output
    )
    assert os.listdir(tmp_path / "elsewhere") == []


def test_one_key_does_not_sign_for_both(passed: Path, keys: dict[str, Path]) -> None:
    sign(passed, "provider", keys["provider"], *REHEARSED)
    words = ["--as", "customer", "--key", keys["provider"], *REHEARSED]
    done = seatrial("sign", passed, *words)
    assert (done.exit_code, "the provider signed with this key" in done.output) == (4, True)
    assert sorted(os.listdir(passed / "signatures")) == ["provider.txt", "provider.txt.sig"]


def test_ctrl_c_at_the_passphrase_is_no_failed_criterion(
    passed: Path, keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "sign_text", interrupted)
    words = ["--as", "provider", "--key", keys["provider"], "--decision", "refused"]
    assert seatrial("sign", passed, *words).exit_code == 2
    assert not (passed / "signatures").exists()


@pytest.mark.parametrize("file", ["missing", "run/signers", "folder", "pipe"])
def test_who_may_sign_is_told_by_a_file_of_ones_own(signed: Signed, file: str) -> None:
    path = signed.run.parent / file
    (signed.run.parent / "folder").mkdir()
    os.mkfifo(signed.run.parent / "pipe")
    shutil.copy(signed.signers, signed.run / "signers")
    done = seatrial("verify", signed.run, "--signers", path)
    sentence = (
        "is inside the run folder: use your own"
        if "run" in file
        else "--signers: expected a file with keys, found no file "
    )
    assert (done.exit_code, sentence in done.output) == (4, True), done.output


@pytest.mark.parametrize("command", ["sign", "verify"])
def test_no_run_gets_one_sentence(original: Signed, tmp_path: Path, command: str) -> None:
    words = {
        "sign": ["--as", "provider", "--key", original.keys["provider"], "--decision", "refused"],
        "verify": ["--signers", original.signers],
    }[command]
    done = seatrial(command, tmp_path / "none", *words)
    assert done.exit_code == 4
    assert done.exception is None or isinstance(done.exception, SystemExit)
