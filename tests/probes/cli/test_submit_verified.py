"""`seatrial submit` believes no head: what comes back is whole, and the run that was submitted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probes.contract.contract import load
from probes.submit.bring_back import BringBack
from probes.submit.package import CONTRACTS
from probes.submit.verify import Submitted, compare_facts, find_differences
from reports.run_folder.event_log import write_checksums
from reports.run_folder.times import utc_time
from tests.probes.cli.test_submit import ID, brought, cluster, run
from tests.support.sound_run import write_sound_run

pytestmark = pytest.mark.usefixtures("here")
ENDED = {"status": "SUCCEEDED", "driver_exit_code": 0}


def submitted(*words: str, attach: bool = False) -> tuple[int, str]:
    """Submit, or attach to, a run whose job succeeded."""
    with cluster([ENDED]) as (address, _):
        how = ["--attach", ID] if attach else ["--contract", "lab"]
        return run("--address", address, *how, *words)


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ([], {}),
        (["--nonce", "customer-42"], {"nonce": "customer-42"}),
        (["--tier", "quick", "--nodes", "4"], {}),
        (["--rehearsal"], {}),
        ([], {"submission": ""}),  # of a version that records the nonce alone
        ([], {"started": "2026-01-20T22:17:03.120Z"}),  # the head's clock is behind
    ],
)
def test_the_run_that_was_submitted_is_accepted(
    words: list[str], facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    brought(monkeypatch, 0, **facts)
    code, said = submitted(*words)
    assert code == 0, said
    assert f"verified: files, events, nonce {facts.get('nonce', 'seatrial-submit-')}" in said


@pytest.mark.parametrize("nonce", [[], ["--nonce", "customer-42"]])
@pytest.mark.parametrize("words", [[], ["--tier", "quick", "--nodes", "4"]])
def test_an_attached_run_is_known_by_its_id(
    words: list[str], nonce: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"nonce": nonce[1]} if nonce else {}
    brought(monkeypatch, 0, started="2026-11-20T22:17:03.120Z", **facts)  # long before
    code, said = submitted("--contract", "lab", *words, *nonce, attach=True)
    assert code == 0, said


def test_attached_to_an_accepted_run_without_its_contract_nothing_is_proven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run stays on the cluster: it can be attached to once more, with the contract."""
    brought(monkeypatch, 0)
    removed: list[str] = []
    monkeypatch.setattr(BringBack, "remove", lambda self: removed.append("x"))
    code, said = submitted("--rehearsal", attach=True)
    assert (code, removed) == (20, [])
    assert "no contract was given here to compare the run with. Repeat --attach with the" in said
    Path("seatrial.toml").write_bytes(load("lab").text)  # as `seatrial run` in this folder
    code, said = submitted(attach=True)
    assert (code, removed) == (0, ["x"]), said
    shutil.copy(CONTRACTS / "h100-ndr400.toml", "seatrial.toml")
    code, said = submitted(attach=True)
    assert code == 4
    assert "sha256 of the contract: " in said


def test_a_run_that_failed_needs_no_contract_to_be_attached_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brought(monkeypatch, 1)
    with cluster([{"status": "FAILED", "driver_exit_code": 1}]) as (address, _):
        code, said = run("--address", address, "--attach", ID)
    assert code == 1, said


def test_a_submission_without_a_contract_is_never_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brought(monkeypatch, 0)
    with cluster([ENDED]) as (address, _):
        code, said = run("--address", address, "--rehearsal")
    assert code == 4
    assert "the run was accepted, but no contract was submitted" in said


def test_a_shipped_contract_that_there_is_not_is_refused_before_anything_is_sent() -> None:
    with cluster([ENDED]) as (address, asked):
        code, said = run("--address", address, "--contract", "h100-ndr4000")
    assert (code, asked) == (4, [])
    assert said.startswith("error: seatrial has no contract 'h100-ndr4000'. Give a file, or one of")


@pytest.mark.parametrize(
    ("nonce", "code"),
    [("sk-acceptance-2026-lot-7", 4), ("hf_0123456789abcdef01234567", 4), ("token=abc123xyz", 4),
     ("customer@acme:2026", 0), ("lot 7", 0)],
)  # fmt: skip
def test_a_nonce_that_a_run_cannot_keep_is_refused_before(
    nonce: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought(monkeypatch, 0, nonce=nonce)
    with cluster([ENDED]) as (address, asked):
        found, said = run("--address", address, "--contract", "lab", "--nonce", nonce)
    assert found == code, said
    if code:
        assert asked == []
        assert "--nonce: expected a text that is not secret" in said
        assert nonce not in said


@pytest.mark.parametrize(
    ("words", "facts", "sentence"),
    [
        ([], {"nonce": "", "submission": ""}, "submission: empty. Expected: seatrial-submit-"),
        (
            ["--nonce", "customer-42"],
            {"nonce": "customer-42", "submission": ID},
            f"submission: {ID}. Expected: seatrial-submit-",
        ),
        (
            ["--nonce", "customer-42"],
            {"nonce": "customer-42", "submission": ""},
            "submission: customer-42. Expected: seatrial-submit-",
        ),
        (["--nonce", "mine"], {}, "Expected: mine (as submitted)"),
        (["--tier", "soak"], {}, "tier: quick. Expected: soak (as submitted)"),
        (["--nodes", "8"], {}, "nodes of the run: 4. Expected: 8 (--nodes)"),
        (["--no-rehearsal"], {}, "the run is a rehearsal: 4 emulated nodes. Expected: no"),
        (["--contract", "h100-ndr400"], {}, "sha256 of the contract: "),
        ([], {"contract": load("local")}, "sha256 of the contract: "),
        ([], {"started": "2036-01-20T22:17:03.120Z"}, " h from now. Set the clock of the head"),
        ([], {"started": "soon"}, "start time: soon. Expected: a time"),
    ],
)
def test_another_run_is_refused(
    words: list[str],
    facts: dict[str, Any],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brought(monkeypatch, 0, **facts)
    code, said = submitted(*words)
    assert code == 4, said
    assert f"error: {sentence}" in said or sentence in said
    assert "as proof: it is incomplete, or not the run that was submitted" in said


@pytest.mark.parametrize(("count", "is_right"), [(9, False), (10, True), (12, True), (13, False)])
def test_a_cluster_that_may_grow_has_at_least_the_nodes_that_were_asked_for(
    count: int, is_right: bool
) -> None:
    contract = b"schema = 1\n[cluster]\nnodes = 8\nnodes_at_most = 12\n"
    facts = {"run_started": {"cluster": {"nodes": [{}] * count}}}
    found = list(compare_facts(facts, Submitted("id", None, contract, nodes=10), accepted=True))
    said = f"nodes of the run: {count}. Expected: 10 to 12 (--nodes)"
    assert (said not in found) is is_right


def edit_metrics(run: Path) -> None:
    text = (run / "metrics.prom").read_text()
    assert "seatrial_exit_code" in text
    lines = [
        line[:-1] + "0" if line.startswith("seatrial_exit_code{") else line
        for line in text.splitlines()
    ]
    (run / "metrics.prom").write_text("\n".join(lines) + "\n")


def edit_metrics_and_sums(run: Path) -> None:
    edit_metrics(run)
    (run / "SHA256SUMS").unlink()
    write_checksums(run)


def keep_metrics_alone(run: Path) -> None:
    edit_metrics(run)
    text = (run / "metrics.prom").read_text()
    shutil.rmtree(run)
    run.mkdir()
    (run / "metrics.prom").write_text(text)


def tear(run: Path) -> None:
    edit_metrics(run)
    path = run / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-100])


def lose(name: str) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        edit_metrics(run)
        (run / name).unlink()

    return edit


def add_link(run: Path) -> None:
    (run / "evidence" / "x").symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (edit_metrics, "metrics.prom differs from its hash in SHA256SUMS"),
        (edit_metrics_and_sums, "partially_held on cluster: 1. Expected: <= 0.0"),
        (keep_metrics_alone, "it has no events.jsonl"),
        (tear, "events.jsonl differs from its hash in SHA256SUMS"),
        (lose("SHA256SUMS"), "SHA256SUMS is missing"),
        (lose("record.json"), "record.json is missing"),
        (lose("report.html"), "report.html is missing"),
        (add_link, "found a link"),
    ],
)
def test_a_run_that_failed_and_was_edited_is_refused(
    edit: Callable[[Path], None], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought(monkeypatch, 1)
    run_to = BringBack.run_to

    def edited(self: BringBack, target: Path) -> None:
        run_to(self, target)
        edit(target)

    monkeypatch.setattr(BringBack, "run_to", edited)
    code, said = submitted()
    assert code == 4, said
    assert sentence in said


def test_a_partial_run_and_one_that_did_not_end_accept_nothing(tmp_path: Path) -> None:
    folder = write_sound_run(tmp_path / "run", nonce="x", started=utc_time(), end=False)
    found = find_differences(folder, Submitted("x"), 0)
    because = "the job's exit code says that the run is accepted"
    text = f"last state in the run's event log: missing. Expected: finished ({because})"
    assert text in found
    assert not [said for said in found if "None" in said]


def test_without_what_the_judging_needs_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> list[str]:
        raise ModuleNotFoundError("No module named 'pydantic'", name="pydantic")

    monkeypatch.setattr("probes.cli.submit.judge_again", absent)
    brought(monkeypatch, 0)
    code, said = submitted()
    assert code == 0, said
    assert ". Not checked: record, page and limits, because pydantic is not installed" in said
