"""What a probe writes down: a value that cannot be is no value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from probes.check.recorder import Recorder
from probes.check.registry import CRITERIA
from probes.contract.contract import load as contract
from reports.measurement import Limit, Measurement, Verdict
from reports.record import Finding
from reports.run_folder.integrity import load
from reports.run_folder.store import Store
from tests.support.controls import MemoryRecorder, plant, recorder

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
    assert set(signed) == {"LAUNCH.exit_code", "LAUNCH.exit_code_after_stop"}
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
    kept_at = probe.keep("seen.json", content, caption="what was seen", kind=kind)
    store.close()
    assert kept_at == "evidence/seen.json"
    assert probe.trial().keep("seen.json", content, caption="nothing is kept") == ""
    kept = (tmp_path / "evidence" / "seen.json").read_text()
    assert "hunter2" not in kept
    assert "<redacted>" in kept
    assert isinstance(content, str) or json.loads(kept)


def test_statements_of_coverage_add_up(tmp_path: Path) -> None:
    lab, store = contract("lab"), Store(tmp_path)
    facts = lab.facts().model_dump(mode="json")
    store.start(lab.text, id="r", started="x", command="x", tier="quick", contract=facts)
    probe = Recorder(store, lab, "p", "GANG", "claim", "again", lambda words: None)
    for part in ("4 of 4 nodes", "no GPU"):
        probe.covered(part)
    store.close()
    assert load(tmp_path).results[0].coverage == "4 of 4 nodes; no GPU"


def test_the_numbers_of_a_figure_have_its_name(tmp_path: Path) -> None:
    lab, store = contract("lab"), Store(tmp_path)
    facts = lab.facts().model_dump(mode="json")
    store.start(lab.text, id="r", started="x", command="x", tier="quick", contract=facts)
    probe = Recorder(store, lab, "p", "GANG", "claim", "again", lambda words: None)
    probe.series("timeline", {"n0": [1, 2]})
    store.close()
    assert load(tmp_path).results[0].series == {"timeline": {"n0": [1, 2]}}


# What is judged, what informs, and what is said aloud.


def heard(criterion: str) -> tuple[MemoryRecorder, list[str]]:
    """A recorder, and the lines that it says."""
    probe, lines = recorder(criterion), list[str]()
    probe.say = lines.append
    return probe, lines


def test_a_failure_is_said_aloud_and_a_pass_is_not() -> None:
    probe, lines = heard("GANG")
    probe("deadlocks", 0)
    assert lines == []
    probe("deadlocks", 2)
    assert [line.split(" ")[0] for line in lines] == ["FAIL"]
    assert "2" in lines[0]


def test_a_note_judges_nothing_and_says_nothing() -> None:
    probe, lines = heard("GANG")
    probe.note("wait", 7.0, "s", on="gang A", spread=0.5)
    (noted,) = probe.result("finished", 1.0).measurements
    assert (noted.value, noted.unit, noted.subject, noted.spread) == (7.0, "s", "gang A", 0.5)
    assert (noted.judged, noted.verdict, lines) == (False, None, [])


def test_a_value_would_fail_where_it_breaks_the_contracts_limit() -> None:
    probe = recorder("GANG")
    assert probe.would_fail("deadlocks", 1)
    assert not probe.would_fail("deadlocks", 0)
    assert not probe.would_fail("deadlocks", None)  # unknown breaks nothing


def test_a_value_without_a_limit_breaks_none() -> None:
    probe = recorder("SCALING", contract("local"))
    assert probe.contract.limit("SCALING", "tokens_per_s") is None
    assert not probe.would_fail("tokens_per_s", 0.0)


@pytest.mark.parametrize("name", ["cancelled in words only", "late release"])
def test_a_control_that_is_caught_says_nothing(name: str) -> None:
    probe, lines = heard("GANG")
    plant(probe, name)
    assert [control.caught for control in probe.result("finished", 1.0).controls] == [True]
    assert lines == []


def test_a_control_that_is_not_caught_is_said_aloud() -> None:
    probe, lines = heard("GANG")
    probe.control("cancelled in words only", "an actor was kept", probe.trial())
    missed = "the test did not find the planted fault"
    assert lines == [f"{missed}, so the test proves nothing. Fault: an actor was kept"]


def test_a_control_is_not_missed_where_the_row_is_not_provable() -> None:
    probe, lines = heard("FABRIC")
    optional = probe.contract.model_copy(update={"optional": {"FABRIC": "one host only"}})
    probe.contract = optional
    assert not probe.row.required
    probe.control("closed door", "a port was closed", None, saw="no second host")
    assert lines == []


def test_findings_carry_how_to_see_it_again_and_are_known_by_their_codes() -> None:
    probe = recorder("GANG")
    probe.reproduce = "pytest probes/gang"
    one = Finding(code="GANG-LEAK", statement="a GPU is held", remedy="free it")
    own = one.model_copy(update={"code": "GANG-STUCK", "reproduce": "ray status"})
    probe.explain(one, [own])
    assert probe.finding_codes == {"GANG-LEAK", "GANG-STUCK"}
    found = probe.result("finished", 1.0).findings
    assert [finding.reproduce for finding in found] == ["pytest probes/gang", "ray status"]


def test_the_result_is_what_was_written_down() -> None:
    probe = recorder("GANG")
    probe("deadlocks", 0)
    result = probe.finish("error", 2.5, "the cluster went away")
    assert (result.state, result.seconds, result.error) == ("error", 2.5, "the cluster went away")
    assert [one.name for one in result.measurements] == ["deadlocks"]


def test_a_trial_knows_what_it_measured_and_the_worst_of_it() -> None:
    trial = recorder("FABRIC").trial()
    assert not trial.has_measured("busbw")
    assert trial.worst("busbw").note == "nothing was measured with the planted fault"
    for value in (2.0, 0.1, 3.0):
        trial("busbw", value, limit=Limit(low=1.0, because="agreed for this test"))
    assert trial.has_measured("busbw")
    assert (trial.worst("busbw").value, trial.worst("busbw").verdict) == (0.1, Verdict.FAIL)
    with pytest.raises(TypeError, match="inside a control"):
        trial.control("closed door", "a port", None)


@pytest.mark.parametrize(("value", "looks"), [(1.2, 0), (1.05, 0), (0.9, 1), (None, 1)])
def test_before_a_measure_counts_as_bad_it_is_seen_whether_a_node_was_lost(
    value: float | None, looks: int
) -> None:
    measure = recorder("FABRIC")
    seen: list[str] = []
    measure.settle = lambda: seen.append("settled")
    limit = Limit(low=1.0, marginal_low=1.1, because="agreed for this test")
    measure("busbw", value, limit=limit)
    assert len(seen) == looks


@pytest.mark.parametrize(("located", "looks"), [(True, 0), (False, 1)])
def test_before_a_control_counts_as_missed_it_is_seen_whether_a_node_was_lost(
    located: bool, looks: int
) -> None:
    measure = recorder("GANG")
    seen: list[str] = []
    measure.settle = lambda: seen.append("settled")
    trial = measure.trial()
    trial("deadlocks", 2)
    measure.control("two groups per job", "a fault", trial, located=located)
    assert len(seen) == looks
