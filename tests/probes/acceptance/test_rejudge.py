"""Judging an old run by another contract needs no cluster and leaves the old run alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from probes.acceptance.contract import load as contract
from probes.acceptance.criteria import exactly
from probes.acceptance.measure import Recorder
from probes.cli.main import main
from reports.record import Limit, Verdict
from reports.store import Store, load, read_events

STRICT = """schema = 1
name = "strict"
[GANG.placement_delay]
at_most = 0.1
unit = "s"
because = "agreed anew"
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one probe, judged by the lab's contract."""
    store, lab = Store(tmp_path / "run"), contract("lab")
    facts = lab.facts().model_dump(mode="json")
    store.event(
        "run_started", id="run", started="2026-01-01T00:00:00Z", command="x", tier="quick",
        contract=facts,
    )  # fmt: skip
    ledger = Recorder(store, lab, "p", "GANG", "claim", "again", lambda words: None)
    ledger("placement_delay", 0.5)
    ledger("partially_held", 0)
    ledger.covered("4 nodes")
    ledger.covered("not node4")
    ledger.control("c", "fault", caught=True, saw="it")
    ledger.keep("samples.json", [1], caption="samples")
    ledger.finish("finished", 1.0)
    other = Recorder(store, lab, "q", "RESTART", "claim", "again", lambda words: None)
    interval = Limit(high=4, unit="steps", because="it saves every 4 steps")
    other("steps_lost", 2, limit=interval)
    other.control("c", "fault", caught=True, saw="it")
    other.finish("finished", 1.0)
    store.event("run_finished", finished="2026-01-01T00:01:00Z", state="finished")
    store.save()
    store.close()
    return tmp_path / "run"


def test_all_that_was_covered_is_said(run: Path) -> None:
    assert load(run).results[0].coverage == "4 nodes; not node4"


def test_a_stricter_contract_turns_pass_into_fail(run: Path, tmp_path: Path) -> None:
    assert load(run).verdict("GANG") is Verdict.PASS
    (tmp_path / "strict.toml").write_text(STRICT)
    told = CliRunner().invoke(
        main, ["rejudge", str(run), "--contract", str(tmp_path / "strict.toml")]
    )
    assert told.exit_code == 1, told.output
    judged = load(tmp_path / "run-by-strict")
    assert judged.verdict("GANG") is Verdict.FAIL
    assert judged.contract.name == "strict"
    assert judged.id == "run-by-strict"
    assert judged.verdict("RESTART") is Verdict.PASS, "limits of the probe's own set-up stay"
    assert (tmp_path / "run-by-strict" / "evidence" / "samples.json").is_file()
    assert load(run).verdict("GANG") is Verdict.PASS


def test_another_order_is_judged_anew(run: Path, tmp_path: Path) -> None:
    """A contract that orders eight nodes must not pass a run of four."""
    store = Store(tmp_path / "four")
    for event in read_events(run)[:1]:
        store.event(event["event"], **event["data"])
    ledger = Recorder(store, contract("lab"), "h", "HOSTS", "claim", "again", lambda words: None)
    ledger("nodes", 4, limit=exactly(4, "nodes", "ordered"))
    ledger.control("c", "fault", caught=True, saw="it")
    ledger.finish("finished", 1.0)
    store.close()
    assert load(tmp_path / "four").verdict("HOSTS") is Verdict.PASS
    (tmp_path / "eight.toml").write_text("schema = 1\n[cluster]\nnodes = 8\n")
    CliRunner().invoke(
        main, ["rejudge", str(tmp_path / "four"), "--contract", str(tmp_path / "eight.toml")]
    )
    assert load(tmp_path / "four-by-eight").verdict("HOSTS") is Verdict.FAIL


@pytest.mark.parametrize(
    ("agreed", "verdict"),
    [("save_minutes = 30", Verdict.PASS), ("save_minutes = 5", Verdict.UNPROVEN),
     ("save_gb = 840", Verdict.UNPROVEN)],
)  # fmt: skip
def test_a_share_of_another_time_between_saves_is_not_judged_by_this_one(
    run: Path, tmp_path: Path, agreed: str, verdict: Verdict
) -> None:
    store = Store(tmp_path / "saves")
    for event in read_events(run)[:1]:
        terms = {"nodes": 4, "save_minutes": 30.0}
        store.event(event["event"], **event["data"] | {"cluster": {"terms": terms}})
    ledger = Recorder(store, contract("lab"), "s", "SCALING", "claim", "again", lambda words: None)
    ledger("checkpoint_overhead", 0.008)
    ledger.control("c", "fault", caught=True, saw="it")
    ledger.finish("finished", 1.0)
    store.close()
    (tmp_path / "new.toml").write_text(f"schema = 1\n[cluster]\n{agreed}\n")
    CliRunner().invoke(
        main, ["rejudge", str(tmp_path / "saves"), "--contract", str(tmp_path / "new.toml")]
    )
    assert load(tmp_path / "saves-by-new").verdict("SCALING") is verdict


def test_what_is_not_a_run_is_one_sentence(tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["rejudge", str(tmp_path), "--contract", "lab"])
    assert told.exit_code == 4
    assert "Traceback" not in told.output
    told = CliRunner().invoke(main, ["report", str(tmp_path / "missing")])
    assert told.exit_code == 4
