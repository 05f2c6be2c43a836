"""No forgery of a signature verifies, by `seatrial verify` or by the commands of the doc."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from reports.run_folder.event_log import SUMS, write_checksums
from tests.support.paths import REPO
from tests.support.signing import WAIVER, Signed, make_key, public_key, seatrial, sign

DOC = (REPO / "docs" / "use" / "security.md").read_text()


FORGERIES: dict[str, tuple[Callable[[Signed], object], str]] = {}


def forgery(says: str) -> Callable[[Callable[[Signed], object]], Callable[[Signed], object]]:
    """Note a forgery, and what `verify` must say of it."""

    def note(forge: Callable[[Signed], object]) -> Callable[[Signed], object]:
        FORGERIES[forge.__name__] = forge, says
        return forge

    return note


NOT_OF_IT = "signatures/provider.txt.sig is not a signature of provider.txt: "


@forgery(NOT_OF_IT)
def name_changed(it: Signed) -> None:
    it.edited("provider", "Jane Doe", "Jane Roe")


@forgery("signatures/customer.txt.sig is not a signature of customer.txt: ")
def refusal_turned_around(it: Signed) -> None:
    it.edited("customer", "decision: refused", "decision: conditions\ncondition: none to speak of")


@forgery(NOT_OF_IT)
def condition_removed(it: Signed) -> None:
    it.edited("provider", "decision: conditions\ncondition: node 3 is repaired by May",
              "decision: refused")  # fmt: skip


@forgery("it has a line that is not known: 'approved: yes'")
def line_added(it: Signed) -> None:
    it.says("provider", "name:", "approved: yes\nname:")


@forgery("it has the line 'decision' twice")
def line_repeated(it: Signed) -> None:
    it.says("customer", "decision: refused", "decision: refused\ndecision: refused")


@forgery("the line 'decision' is missing")
def line_missing(it: Signed) -> None:
    it.says("customer", "decision: refused\n", "")


@forgery("the customer signed 'run fingerprint: none', but this folder has ")
def chain_head_missing(it: Signed) -> None:
    (line,) = re.findall("run fingerprint: .*\n", it.texts["customer"])
    it.says("customer", line, "")


@forgery("its lines are not in the order in which seatrial writes them")
def lines_moved(it: Signed) -> None:
    it.says("provider", "party: provider\nname: Jane Doe\n", "name: Jane Doe\nparty: provider\n")


@forgery("it has a line that is not known: ''")
def words_after_the_end(it: Signed) -> None:
    it.write(
        "customer", it.texts["customer"] + "\nI signed nothing of this.\n", it.keys["customer"]
    )


@forgery("its lines are not in the order in which seatrial writes them")
def end_of_line_missing(it: Signed) -> None:
    it.write("customer", it.texts["customer"] + "not read", it.keys["customer"])


@forgery("its first line is 'seatrial sign-off 2', expected 'seatrial sign-off 1'")
def other_format(it: Signed) -> None:
    it.says("customer", "sign-off 1", "sign-off 2")


@forgery("is empty or has invisible characters")
def words_that_hide(it: Signed) -> None:
    it.says("provider", "Jane Doe", "Jane \u202eeoD")


@forgery("it is not UTF-8 text")
def no_text(it: Signed) -> None:
    it.file("customer").write_bytes(b"\xff\xfe\x00")


@forgery("'time: yesterday' does not have the format of this line")
def no_time(it: Signed) -> None:
    it.says("customer", re.findall("time: (.*)\n", it.texts["customer"])[0], "yesterday")


@forgery("'accepted' would claim that the run was proven")
def failed_run_accepted(it: Signed) -> None:
    it.says("customer", "decision: refused", "decision: accepted")


@forgery("the customer signed 'exit code: 0', but this folder has 1")
def better_exit_code(it: Signed) -> None:
    it.says("customer", "exit code: 1", "exit code: 0")


@forgery("the customer signed 'verdict: ACCEPTED', but this folder has NOT ACCEPTED (rehearsal)")
def better_verdict(it: Signed) -> None:
    it.says("customer", "NOT ACCEPTED (rehearsal)", "ACCEPTED")


@forgery("the customer signed 'waiver: none', but this folder has W1 for GANG")
def waiver_left_out(it: Signed) -> None:
    it.says("customer", f"waiver: {WAIVER}\n", "")


@forgery("the customer signed 'nonce: another', but this folder has ")
def other_nonce(it: Signed) -> None:
    text = re.sub("nonce: .*\n", "", it.texts["customer"])
    it.write("customer", text.replace("sha256", "nonce: another\nsha256"), it.keys["customer"])


@forgery("signatures/provider.txt.sig is missing")
def signature_missing(it: Signed) -> None:
    it.file("provider", ".sig").unlink()


@forgery("signatures/provider.txt is missing")
def statement_missing(it: Signed) -> None:
    it.file("provider").unlink()


@forgery("the customer signed 'party: provider', but this folder has customer")
def copied_for_the_other_party(it: Signed) -> None:
    for end in ("", ".sig"):
        shutil.copy(it.file("provider", end), it.file("customer", end))


@forgery("the provider signed 'party: customer', but this folder has provider")
def renamed_to_the_other_party(it: Signed) -> None:
    for end in ("", ".sig"):
        it.file("customer", end).replace(it.file("provider", end))


@forgery("which signed for the customer, is not in ")
def signed_with_the_other_partys_key(it: Signed) -> None:
    it.write("customer", it.texts["customer"], it.keys["provider"])


@forgery("one key signed for both parties: each party needs its own key")
def one_key_for_both(it: Signed) -> None:
    key = it.keys["provider"]
    it.signers.write_text(f"provider {public_key(key)}\ncustomer {public_key(key)}\n")
    it.write("customer", it.texts["customer"], key)


@forgery(NOT_OF_IT)
def signature_of_the_other_statement(it: Signed) -> None:
    shutil.copy(it.file("customer", ".sig"), it.file("provider", ".sig"))


@forgery(NOT_OF_IT)
def signature_empty(it: Signed) -> None:
    it.file("provider", ".sig").write_bytes(b"")


@forgery(NOT_OF_IT)
def signature_torn(it: Signed) -> None:
    content = it.file("provider", ".sig").read_bytes()
    it.file("provider", ".sig").write_bytes(content[: len(content) // 2])


@forgery(NOT_OF_IT)
def signature_for_another_purpose(it: Signed) -> None:
    it.write("provider", it.texts["provider"], it.keys["provider"], namespace="file")


@forgery("key has expired")
def key_expired(it: Signed) -> None:
    line = f'customer valid-before="20200101" {public_key(it.keys["customer"])}'
    it.signers.write_text(f"provider {public_key(it.keys['provider'])}\n{line}\n")


@forgery("is not in ")
def key_of_another_purpose(it: Signed) -> None:
    line = f'customer namespaces="git" {public_key(it.keys["customer"])}'
    it.signers.write_text(f"provider {public_key(it.keys['provider'])}\n{line}\n")


@forgery("is not in ")
def party_without_a_line(it: Signed) -> None:
    it.signers.write_text(f"provider {public_key(it.keys['provider'])}\n")


@forgery("is not in ")
def nobody_may_sign(it: Signed) -> None:
    it.signers.write_text("")


@forgery("signatures/ has unknown files (1): approval.txt")
def file_added(it: Signed) -> None:
    (it.run / "signatures" / "approval.txt").write_text("All is well.")


@forgery("signatures/ has unknown files (1): auditor.txt")
def party_invented(it: Signed) -> None:
    shutil.copy(it.file("customer"), it.run / "signatures" / "auditor.txt")


@forgery("signatures/ has unknown files (1): more")
def folder_added(it: Signed) -> None:
    (it.run / "signatures" / "more").mkdir()


@forgery("signatures/provider.txt: expected only files and folders in a run folder, found a link")
def statement_is_a_link(it: Signed) -> None:
    it.file("provider").rename(it.run.parent / "elsewhere")
    it.file("provider").symlink_to(it.run.parent / "elsewhere")


@forgery("signatures: expected only files and folders in a run folder, found a link")
def folder_is_a_link(it: Signed) -> None:
    (it.run / "signatures").rename(it.run.parent / "elsewhere")
    (it.run / "signatures").symlink_to(it.run.parent / "elsewhere")


@forgery(
    "signatures/customer.txt.sig: expected only files and folders in a run folder, found a pipe"
)
def signature_is_a_pipe(it: Signed) -> None:
    it.file("customer", ".sig").unlink()
    os.mkfifo(it.file("customer", ".sig"))


@forgery("signatures/customer.txt has more than 65536 bytes")
def statement_without_end(it: Signed) -> None:
    it.file("customer").write_bytes(b"a" * 2**17)


@forgery("problem: ")
def page_changed(it: Signed) -> None:
    page = it.run / "report.html"
    page.write_text(page.read_text().replace("NOT ACCEPTED", "ACCEPTED"))


@forgery("problem: ")
def file_added_to_the_run(it: Signed) -> None:
    (it.run / "evidence" / "more.log").write_text("NCCL INFO NET/IB : Using mlx5_0")


@forgery("problem: ")
def record_changed(it: Signed) -> None:
    path = it.run / "events.jsonl"
    path.write_text(path.read_text().replace('"value": 3,', '"value": 0,'))


@forgery("the provider signed 'sha256 of SHA256SUMS: ")
def record_changed_and_sums_renewed(it: Signed) -> None:
    record_changed(it)
    shutil.move(it.run / "signatures", it.run.parent / "kept")
    write_checksums(it.run)
    shutil.move(it.run.parent / "kept", it.run / "signatures")


@forgery("the provider signed 'sha256 of SHA256SUMS: ")
def sums_removed(it: Signed) -> None:
    (it.run / SUMS).unlink()


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_does_not_verify(signed: Signed, name: str) -> None:
    forge, says = FORGERIES[name]
    forge(signed)
    done = seatrial("verify", signed.run, "--signers", signed.signers)
    assert done.exit_code == 4, done.output
    assert says in done.output
    refused = "expected only files and folders" in done.output  # then nothing else is read
    assert refused or "\nDOES NOT VERIFY: " in done.output
    assert "VERIFIED: unchanged" not in done.output


def test_signatures_of_another_run_do_not_verify(
    signed: Signed, passed: Path, keys: dict[str, Path]
) -> None:
    shutil.rmtree(signed.run / "signatures")
    for party, key in keys.items():
        sign(passed, party, key, "--decision", "refused")
    shutil.copytree(passed / "signatures", signed.run / "signatures")
    done = seatrial("verify", signed.run, "--signers", signed.signers)
    assert done.exit_code == 4
    assert "the customer signed 'sha256 of SHA256SUMS: " in done.output
    assert "the customer signed 'verdict: REHEARSAL PASSED', but this folder has NOT" in done.output


def test_a_revoked_key_does_not_verify(signed: Signed, tmp_path: Path) -> None:
    revoked = tmp_path / "revoked"
    public = f"{signed.keys['customer']}.pub"
    subprocess.run(["ssh-keygen", "-q", "-k", "-f", str(revoked), public], check=True)
    command = ["verify", signed.run, "--signers", signed.signers]
    assert seatrial(*command).exit_code == 0
    done = seatrial(*command, "--revoked", revoked)
    assert (done.exit_code, "or it is revoked or expired" in done.output) == (4, True), done.output


def test_a_key_that_an_authority_certified_is_ssh_keygens_to_judge(
    passed: Path, tmp_path: Path
) -> None:
    authority, key = make_key(tmp_path / "authority"), make_key(tmp_path / "key")
    certify = ["ssh-keygen", "-q", "-s", str(authority), "-I", "jane", "-n"]
    subprocess.run([*certify, "customer", f"{key}.pub"], check=True)
    sign(passed, "customer", tmp_path / "key-cert.pub", "--decision", "refused")
    for party, code in (("customer", 0), ("provider", 4)):
        (tmp_path / "signers").write_text(f"{party} cert-authority {public_key(authority)}\n")
        assert seatrial("verify", passed, "--signers", tmp_path / "signers").exit_code == code


# ------------------------------------------------------------------------- without seatrial


@pytest.fixture
def by_hand(signed: Signed) -> Callable[[], int]:
    """Run the commands of the doc, as they are written there, beside the run."""
    (block,) = (
        part for part in re.findall(r"```sh\n(.*?)```", DOC, re.DOTALL) if "-Y verify" in part
    )
    assert [line.split()[0] for line in block.splitlines() if line[0] != " "] == [
        "cd", "ssh-keygen", "grep", "sha256sum",
    ]  # fmt: skip

    def run() -> int:
        return subprocess.run(
            ["bash", "-ec", block.replace("RUN", "run", 1).replace("/path/to", "..")],
            cwd=signed.run.parent,
            check=False,
        ).returncode

    return run


def test_the_commands_of_the_doc_verify(by_hand: Callable[[], int]) -> None:
    assert by_hand() == 0


@pytest.mark.parametrize(
    "name",
    ["name_changed", "signed_by_a_stranger", "other_sums_in_a_condition", "page_changed",
     "record_changed", "record_changed_and_sums_renewed"],
)  # fmt: skip
def test_the_commands_of_the_doc_find(
    signed: Signed, by_hand: Callable[[], int], stranger: Path, name: str
) -> None:
    if name == "signed_by_a_stranger":
        signed.write("provider", signed.texts["provider"], stranger)
    elif name == "other_sums_in_a_condition":
        (line,) = re.findall("sha256 of .*", signed.texts["provider"])
        text = signed.texts["provider"].replace(line, f"sha256 of SHA256SUMS: {'0' * 64}")
        text = text.replace("condition: ", f"condition: {line} ")
        signed.write("provider", text, signed.keys["provider"])
    else:
        FORGERIES[name][0](signed)
    assert by_hand() != 0


def test_the_signers_of_the_doc_are_what_ssh_keygen_reads(signed: Signed) -> None:
    (block,) = (part for part in re.findall(r"```\n(.*?)```", DOC, re.DOTALL) if "AAAA" in part)
    lines = block.splitlines()
    keys = iter(signed.keys.values())
    written = [re.sub(r"ssh-ed25519 AAAA\S+ \S+", public_key(next(keys)), line) for line in lines]
    signed.signers.write_text("\n".join(written) + "\n")
    assert seatrial("verify", signed.run, "--signers", signed.signers).exit_code == 0
