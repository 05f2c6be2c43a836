"""The standard library's judgement is the suite's own: it refuses what that one refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probes.contract.contract import load, parse
from probes.submit.package import parse_toml
from probes.submit.recount import Recount, Weight, is_caught, weigh
from reports.acceptance import load_summary
from reports.measurement import Limit, Measurement, Verdict
from reports.record import Control
from reports.run_folder.event_log import EventReader
from reports.run_folder.store import json_value
from tests.support.paths import REPO
from tests.support.run_edits import drop_event, put_value
from tests.support.run_folders import Events, rewrite
from tests.support.sound_run import write_sound_run

RECORDINGS = sorted(path.parent for path in (REPO / "tests/recordings/runs").glob("*/events.jsonl"))
CONTRACT = parse_toml(load("lab").text)


def reasons(run: Path, contract: dict[str, Any]) -> list[str]:
    recount = Recount()
    for event in EventReader(run):
        recount.see(event)
    return recount.reasons(contract)


@pytest.mark.parametrize("run", RECORDINGS, ids=lambda run: run.name)
def test_of_each_recorded_run_it_says_what_the_suite_says(run: Path) -> None:
    summary = load_summary(run)
    facts = summary.record.contract.criteria
    agreed = {one.id: {"not_provable": one.not_provable} for one in facts if not one.required}
    refused = summary.exit_code != 0 and summary.record.state == "finished"
    assert bool(reasons(run, agreed)) == refused or summary.record.state != "finished"
    if summary.exit_code == 0:
        assert reasons(run, agreed) == []


VALUES = (0, 1, 1.5, -2.0, True, False, "rdma", "1", None, math.nan, math.inf, 10**400)
LIMITS = (
    {"low": 1.0}, {"high": 1.0}, {"low": 0.0, "high": 1.0}, {"one_of": ["rdma", "1"]}, {},
    {"low": 1.0, "marginal_low": 2.0}, {"one_of": ["True"]}, {"one_of": []},
)  # fmt: skip
WEIGHTS = {Verdict.PASS: 0, Verdict.MARGINAL: 0, Verdict.UNPROVEN: 1, Verdict.FAIL: 2}


@pytest.mark.parametrize("bounds", [*LIMITS, None])
@pytest.mark.parametrize("value", VALUES)
def test_a_value_weighs_what_its_verdict_says(value: Any, bounds: dict[str, Any] | None) -> None:
    limit = None if bounds is None else Limit(because="agreed", **bounds)
    if value == 10**400:
        assert weigh({"value": value, "limit": {"low": 1.0}}) is Weight.UNPROVEN
        return
    one = Measurement(name="x", value=value, limit=limit)
    assert one.verdict is not None
    written = json_value({**one.model_dump(), "value": value})
    assert weigh(written) == WEIGHTS[one.verdict]
    red = Control(name="c", fault="f", caught=True, observed=[one])
    assert is_caught(json_value(red.model_dump())) == (red.verdict is Verdict.PASS)


def test_a_limit_that_is_no_number_proves_nothing() -> None:
    for bound in ("1", [1], {}, 10**400):
        assert weigh({"value": 1, "limit": {"low": bound, "high": 9}}) is Weight.UNPROVEN


def test_a_control_is_caught_or_it_is_not() -> None:
    for caught in (None, False, "yes", 1):
        assert not is_caught({"caught": caught, "observed": []})
    assert not is_caught({"caught": True, "observed": [{"judged": False}]})


def without_probe(lines: Events) -> Events:
    return [line for line in lines if not line.get("probe", "").endswith("train_step")]


def of_each(kind: str, key: str, value: Any) -> Callable[[Events], None]:
    def change(lines: Events) -> None:
        for line in lines:
            if line["event"] == kind:
                line["data"][key] = value

    return change


def drop_name(name: str) -> Callable[[Events], Events]:
    return lambda lines: [line for line in lines if line["data"].get("name") != name]


def add_problem(lines: Events) -> Events:
    data = {"kind": "teardown", "where": "x", "text": "y"}
    return [*lines[:-1], {**lines[-1], "event": "run_problem", "data": data}, lines[-1]]


def not_required(lines: Events) -> None:
    for one in lines[0]["data"]["contract"]["criteria"]:
        one["required"] = False


def add_baseline(lines: Events) -> None:
    lines[0]["data"]["contract"]["baseline"] = {"FABRIC.busbw": 5}


EDITS: dict[str, tuple[Callable[[Events], Any], str]] = {
    "a value": (put_value("measurement", "value", 1e-6, "busbw"), "busbw on cluster: 1e-06"),
    "no value": (put_value("measurement", "value", None, "busbw"), "busbw on cluster: missing"),
    "no limit": (put_value("measurement", "limit", None, "busbw"), "Expected: a limit"),
    "a limit of another form": (put_value("measurement", "limit", 3, "busbw"), "cannot be judged"),
    "a control": (put_value("control", "caught", False), "was not found"),
    "no control": (drop_event("control"), "must record the planted fault "),
    "no measure": (drop_name("busbw"), "must record the measure busbw, but did not"),
    "no probe": (lambda lines: [x for x in lines if "gang" not in x.get("probe", "")],
                 "must run, but has no result"),
    "a probe that ended in an error": (put_value("probe_finished", "state", "error"), "te error."),
    "a probe without its end": (drop_event("probe_finished"), "Expected: finished"),
    "nothing owed": (of_each("run_owes", "owed", []), "the run does not list the tests that it"),
    "owed of another form": (of_each("run_owes", "owed", [3]), "the run cannot be judged"),
    "a problem": (add_problem, "clean-up failed in x: y"),
    "nothing required": (not_required, "was not required in the run, but the contract requires it"),
    "no contract agreed": (
        lambda lines: lines[0]["data"]["contract"].update(agreed=False), "no contract was agreed"),
    "not compared": (add_baseline, "not compared with an earlier run: no reason is given"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_what_keeps_a_run_from_acceptance_is_said(name: str, tmp_path: Path) -> None:
    run = write_sound_run(tmp_path / "run")
    assert reasons(run, CONTRACT) == []
    edit, sentence = EDITS[name]
    rewrite(run, lambda lines: edit(lines) or lines)
    found = reasons(run, CONTRACT)
    assert sentence in "\n".join(found)


def test_a_run_that_was_compared_with_an_earlier_one_is_accepted(tmp_path: Path) -> None:
    contract = parse(load("lab").text + b'\n[baseline]\nbusbw = "5 %"\n', "lab.toml")
    first = write_sound_run(tmp_path / "first", contract=contract)
    assert "not compared with an earlier run" in reasons(first, CONTRACT)[0]
    second = write_sound_run(tmp_path / "second", contract=contract, baseline=first)
    assert (load_summary(second).exit_code, reasons(second, CONTRACT)) == (0, [])


def test_more_marginal_measures_than_agreed_are_no_acceptance(tmp_path: Path) -> None:
    run = write_sound_run(tmp_path / "run")
    limit = {"low": 0.1, "marginal_low": 1e9, "unit": "GB/s", "because": "b"}
    rewrite(run, lambda lines: put_value("measurement", "limit", limit, "busbw")(lines) or lines)
    assert reasons(run, CONTRACT) == []
    assert reasons(run, {**CONTRACT, "accept": {"max_marginal": 1}}) == []
    text = "MARGINAL measures: FABRIC.busbw. Expected: at most 0"
    assert reasons(run, {**CONTRACT, "accept": {"max_marginal": 0}}) == [text]


def test_a_log_without_a_start_is_judged_nothing() -> None:
    assert "cannot be judged" in Recount().reasons({})[0]
