"""What a probe writes down: a value that cannot be is no value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from probes.acceptance.contract import load as contract
from probes.acceptance.criteria import CRITERIA
from probes.acceptance.measure import Recorder
from reports.measurement import Measurement, Verdict
from reports.run_folder.integrity import load
from reports.run_folder.store import Store

NAMES = [
    (id, name)
    for id, row in CRITERIA.items()
    for name, measure in row.measures.items()
    if not measure.signed
]


def measured(folder: Path, criterion: str, name: str, value: float) -> Measurement:
    """One value, as it is in the record."""
    lab, store = contract("lab"), Store(folder)
    facts = lab.facts().model_dump(mode="json")
    store.start(lab.text, id="r", started="x", command="x", tier="quick", contract=facts)
    probe = Recorder(store, lab, "p", criterion, "claim", "again", lambda words: None)
    probe(name, value)
    store.close()
    ((measurement,),) = (result.measurements for result in load(folder).results)
    return measurement


def test_a_time_before_its_beginning_is_no_time(tmp_path: Path) -> None:
    found = measured(tmp_path, "RESTART", "recovery_time", -480.0)
    assert found.verdict is Verdict.UNPROVEN
    assert found.value is None
    assert found.note == (
        "the value was -480 s: it cannot be negative (the clocks of two hosts may differ)"
    )


@pytest.mark.parametrize(("criterion", "name"), NAMES)
def test_a_negative_value_passes_nothing(criterion: str, name: str, tmp_path: Path) -> None:
    found = measured(tmp_path, criterion, name, -1)
    assert found.verdict is Verdict.UNPROVEN
    assert "it cannot be negative" in found.note


def test_zero_and_what_may_be_negative_are_values(tmp_path: Path) -> None:
    assert measured(tmp_path / "a", "GANG", "partially_held", 0).verdict is Verdict.PASS
    killed = measured(tmp_path / "b", "LAUNCH", "exit_code", -9)
    assert (killed.value, killed.verdict) == (-9, Verdict.FAIL)


def test_what_may_be_negative_has_a_lower_limit() -> None:
    signed = {
        f"{id}.{name}": measure.fixed or measure.default
        for id, row in CRITERIA.items()
        for name, measure in row.measures.items()
        if measure.signed
    }
    assert set(signed) == {"LAUNCH.exit_code"}
    assert all(limit and limit.low is not None for limit in signed.values())


@pytest.mark.parametrize("kind", ["table", "log", "series"])
@pytest.mark.parametrize(
    "content",
    [
        {"environment": {"NCCL_PSK": "hunter2", "n": 1}, "nodes": [["--token", "hunter2"]]},
        [{"seen": {"HF_TOKEN=hunter2"}}],
        "n0 ok\nHF_TOKEN: hunter2\n",
    ],
    ids=["facts", "what JSON does not have", "text"],
)
def test_evidence_of_any_kind_is_kept_without_secrets(
    kind: str, content: object, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    probe = Recorder(store, contract("lab"), "p", "GANG", "claim", "again", lambda words: None)
    probe.keep("seen.json", content, caption="what was seen", kind=kind)
    store.close()
    kept = (tmp_path / "evidence" / "seen.json").read_text()
    assert "hunter2" not in kept
    assert "<redacted>" in kept
    assert isinstance(content, str) or json.loads(kept)
