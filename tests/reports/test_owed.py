"""What a run owes is UNPROVEN where it is missing, however it went missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.acceptance import summarize_acceptance
from reports.formats.junit import junit
from reports.measurement import Verdict
from reports.record import (
    NOT_RUN,
    SCHEMA,
    TIERS,
    OwedProbe,
    ProbeResult,
    RunRecord,
    complete_results,
)
from reports.run_folder.fold import fold_events

PROBES = {"fabric::a": "FABRIC", "fabric::b": "FABRIC", "gang::c": "GANG"}
LIMIT = {"low": 1, "because": "agreed for this test"}
MEASURES, CONTROLS = ["busbw", "rails"], ["wrong interface", "wrong element"]
Events = list[dict[str, Any]]


def event(kind: str, probe: str = "", **data: Any) -> dict[str, Any]:
    return {"event": kind, "probe": probe, "data": data}


def run_events(values: dict[str, float], caught: dict[str, bool]) -> Events:
    """A run in which each probe writes all it owes."""
    criteria = [{"id": id, "title": id, "how": id} for id in ("FABRIC", "GANG")]
    start = {"id": "r", "started": "2026-11-20T22:17:03.120Z", "command": "pytest", "tier": "quick"}
    start["schema_version"] = SCHEMA
    owed = [
        {
            "probe": probe,
            "criterion": id,
            "tier": "quick",
            "measures": MEASURES,
            "controls": CONTROLS,
        }
        for probe, id in PROBES.items()
    ]
    events = [event("run_started", **start, contract={"name": "c", "criteria": criteria})]
    events.append(event("run_owes", owed=owed))
    for probe, id in PROBES.items():
        events.append(event("probe_started", probe, criterion=id))
        for name in MEASURES:
            value = values[probe]
            events.append(event("measurement", probe, name=name, value=value, limit=LIMIT))
        for name in CONTROLS:
            events.append(event("control", probe, name=name, fault=name, caught=caught[probe]))
        events.append(event("probe_finished", probe, state="finished"))
    return [*events, event("run_finished", state="finished")]


SOUND = run_events(dict.fromkeys(PROBES, 2.0), dict.fromkeys(PROBES, True))


def code(events: Events) -> int:
    return summarize_acceptance(fold_events(events)).exit_code


def named(name: str, probe: str = "fabric::a") -> Callable[[dict[str, Any]], bool]:
    return lambda one: one["probe"] == probe and one["data"].get("name") == name


def test_a_run_with_all_it_owes_is_accepted() -> None:
    assert code(SOUND) == 0


@pytest.mark.parametrize(
    ("gone", "sentence"),
    [
        (
            lambda one: one["probe"] == "fabric::a",
            "the run left this test out",
        ),
        (named("rails"), "rails: not measured (the test ended before this measurement)"),
        (named("wrong element"), "wrong element (the test ended before this fault was planted)"),
    ],
    ids=["probe", "measure", "control"],
)
def test_what_is_missing_is_unproven_and_named(
    gone: Callable[[dict[str, Any]], bool], sentence: str
) -> None:
    record = fold_events([one for one in SOUND if not gone(one)])
    summary = summarize_acceptance(record)
    assert (summary.exit_code, record.verdict("FABRIC")) == (20, Verdict.UNPROVEN)
    assert record.verdict("GANG") is Verdict.PASS
    (bad,) = [result for result in record.results if result.verdict is Verdict.UNPROVEN]
    assert bad.probe == "fabric::a"
    assert sentence in " ".join(bad.problems())
    assert sentence in junit(summary)


def test_a_note_does_not_stand_for_a_measure() -> None:
    """What only informs has no limit, so it proves nothing."""
    events = [
        {**one, "data": {**one["data"], "judged": False}} if named("rails")(one) else one
        for one in SOUND
    ]
    assert code(events) == 20


def test_a_failing_probe_that_is_taken_away_never_leaves_an_acceptance() -> None:
    values = {**dict.fromkeys(PROBES, 2.0), "fabric::a": 0.0}
    failing = run_events(values, dict.fromkeys(PROBES, True))
    assert code(failing) == 1
    assert code([one for one in failing if one["probe"] != "fabric::a"]) == 20


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    values=st.fixed_dictionaries({probe: st.sampled_from([0.0, 2.0, None]) for probe in PROBES}),
    caught=st.fixed_dictionaries({probe: st.booleans() for probe in PROBES}),
    data=st.data(),
)
def test_taking_anything_away_never_makes_a_run_better(
    values: dict[str, Any], caught: dict[str, bool], data: Any
) -> None:
    """Whole probes, measures of one name, controls: neither accepted nor PASS by their absence."""
    events = run_events(values, caught)
    groups = {(one["probe"], one["data"].get("name", "")) for one in events if one["probe"]}
    groups |= {(probe, None) for probe in PROBES}
    gone = data.draw(st.sets(st.sampled_from(sorted(groups, key=str)), min_size=1))
    left = [
        one
        for one in events
        if not {(one["probe"], None), (one["probe"], one["data"].get("name", ""))} & gone
        or not one["probe"]
        or (one["event"] == "probe_started" and (one["probe"], None) not in gone)
    ]
    before, after = fold_events(events), fold_events(left)
    assert code(left) != 0
    for id in ("FABRIC", "GANG"):
        if before.verdict(id) is Verdict.UNPROVEN:
            assert not after.verdict(id).accepted


@pytest.mark.parametrize(
    ("seconds", "took"),
    [(238, ", about 4 min"), (523, ", about 9 min"), (None, "")],
)
def test_a_partial_run_says_what_a_full_one_takes(seconds: int | None, took: str) -> None:
    more = {"partial": "only GANG", "full_run_s": seconds}
    record = fold_events([*SOUND[:2], event("run_updated", **more), *SOUND[2:]])
    needs = f"An acceptance needs a complete run (3 tests of the tier quick{took})"
    assert f"PARTIAL run: only GANG. {needs}" in summarize_acceptance(record).reasons
    longer = [one.model_copy(update={"tier": tier}) for one in record.owed for tier in TIERS[1:]]
    more_owed = record.model_copy(update={"owed": [*record.owed, *longer]})
    assert f"PARTIAL run: only GANG. {needs}" in summarize_acceptance(more_owed).reasons
    whole = record.model_copy(update={"partial": ""})
    assert not any("complete run" in reason for reason in summarize_acceptance(whole).reasons)


def test_owed_and_partial_outlive_a_round_trip() -> None:
    record = fold_events([*SOUND[:2], event("run_updated", partial="only GANG"), *SOUND[2:]])
    again = RunRecord.model_validate_json(record.model_dump_json())
    assert again == record
    assert summarize_acceptance(again).word == "NOT ACCEPTED (PARTIAL)"


def owed_probe(probe: str = "p") -> OwedProbe:
    return OwedProbe(probe=probe, criterion="GANG", tier="quick", measures=["m"], controls=["c"])


def ended(state: str, probe: str = "p") -> ProbeResult:
    return ProbeResult(probe=probe, criterion="GANG", state=state)


def test_what_did_not_end_well_says_so_and_nothing_of_what_it_owes() -> None:
    assert complete_results([ended("skipped")], [owed_probe()], "") == [ended("skipped")]
    (complete,) = complete_results([ended("finished")], [owed_probe()], "")
    assert [one.name for one in (*complete.measurements, *complete.controls)] == ["m", "c"]


def test_a_probe_that_nobody_owes_is_kept_as_it_is() -> None:
    assert complete_results([ended("finished", "mine")], [], "") == [ended("finished", "mine")]


@pytest.mark.parametrize(
    ("state", "partial", "error"),
    [
        ("finished", "", "the run left this test out"),
        ("finished", "only FABRIC", "only FABRIC"),
        ("interrupted", "", "the run stopped before this test"),
        ("", "", "the run stopped before this test"),
        ("", "only FABRIC", "only FABRIC"),
    ],
)
def test_a_probe_without_result_says_why(state: str, partial: str, error: str) -> None:
    events = [one for one in SOUND[:-1] if one["probe"] != "fabric::a"]
    events += [event("run_owes", partial=partial)]
    events += [event("run_finished", state=state)] if state else []
    missing = fold_events(events).results[-1]
    assert (missing.probe, missing.state, missing.error) == ("fabric::a", NOT_RUN, error)
