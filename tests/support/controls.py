"""Writes controls for tests."""

from __future__ import annotations

from probes.check.recorder import Recorder, Trial
from probes.check.registry import CRITERIA
from probes.contract.contract import Contract, load
from reports.measurement import Limit
from reports.numbers import Value
from reports.record import Control


class MemoryRecorder(Trial):
    """Recorder that keeps all its items in memory, its controls too."""

    control = Recorder.control


def recorder(criterion: str, contract: Contract | None = None) -> MemoryRecorder:
    """Make a recorder of a criterion, with the lab's contract unless another is given."""
    return MemoryRecorder(contract or load("lab"), "p", criterion)


def with_limit(contract: Contract, name: str, limit: Limit | None) -> Contract:
    """Return the contract with another limit of a measure of FABRIC; None: nothing is judged."""
    if limit is None:
        return contract.model_copy(update={"optional": {"FABRIC": "it has no limit here"}})
    fabric = {**contract.limits["FABRIC"], name: limit}
    return contract.model_copy(update={"limits": {**contract.limits, "FABRIC": fabric}})


LOUD = Limit(high=-1, because="no value keeps it")  # for measures whose limit the run gives


def write_control(measure: Recorder, caught: bool | None = True, saw: str = "it") -> None:
    """Write a control of no measure in particular, for tests of how controls are used."""
    measure._record("control", Control(name="c", fault="a fault", caught=caught, saw=saw))


def plant(measure: Recorder, name: str) -> None:
    """Write a control whose measures all fail in its trial."""
    trial = measure.trial()
    for target in CRITERIA[measure.criterion].controls[name]:
        known = CRITERIA[measure.criterion].measures[target]
        limit = measure.contract.limit(measure.criterion, target) or LOUD
        trial(target, bad_value(limit), limit=limit if known.from_run else None)
    unlimited = {
        target
        for target in CRITERIA[measure.criterion].controls[name]
        if trial.worst(target).limit is None
    }
    measure.control(name, f"{name} was planted", trial, without=unlimited)


def bad_value(limit: Limit) -> Value:
    """Return a value that breaks a limit."""
    if limit.one_of is not None:
        return "none of these"
    if limit.high is not None:
        return limit.high + 1
    assert limit.low is not None
    return limit.low / 2
