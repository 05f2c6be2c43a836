"""Judges the events of an accepted run once more, with the standard library alone.

The rules are those of reports/measurement.py, record.py and acceptance.py, where they keep a run
from acceptance: a machine with click alone must not pass on what its own events refuse.  Only a
comparison with an earlier run ([baseline]) needs more, and is left to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from reports.numbers import finite_number, is_outside

FINISHED = "finished"  # state of a run, and of a probe, that ended by itself
NOT_PROVABLE = "not_provable"  # key of a criterion in a contract that does not require it


class Weight(IntEnum):
    """What an observation means for an acceptance."""

    PASSES = 0  # MARGINAL, too
    UNPROVEN = 1
    FAILS = 2


@dataclass
class _Result:
    """What one probe recorded: its sentences by their weight, and the names of what it has."""

    probe: str
    criterion: str
    state: str = "interrupted"
    seen: list[tuple[Weight, str]] = field(default_factory=list)
    judged: set[str] = field(default_factory=set)
    controls: set[str] = field(default_factory=set)

    def sentences(self, owed: Mapping[str, Any]) -> Iterator[tuple[Weight, str]]:
        """Yield (weight, sentence) for all that keeps the probe from acceptance."""
        yield from self.seen
        if self.state != FINISHED:
            yield Weight.UNPROVEN, f"{self.probe}: state {self.state}. Expected: {FINISHED}"
        for kind, names, has in (
            ("the measure", owed.get("measures"), self.judged),
            ("the planted fault", owed.get("controls"), self.controls),
        ):
            if missing := sorted({*(names or ())} - has):
                yield Weight.UNPROVEN, f"{self.probe} must record {kind} {missing[0]}, but did not"
            elif not has:
                yield Weight.UNPROVEN, f"{self.probe} did not record {kind.replace('the', 'a')}"


class Recount:
    """Sees each event of a run; `reasons` says what keeps the run from acceptance."""

    def __init__(self) -> None:
        self._run: dict[str, Any] = {}
        self._problems: list[Mapping[str, Any]] = []
        self._results: list[_Result] = []
        self._latest: dict[str, _Result] = {}
        self._marginal: set[tuple[str, str]] = set()
        self._unread = ""  # why an event could not be judged

    def see(self, event: Mapping[str, Any]) -> None:
        """Judge the next event; one of another form keeps the run from acceptance."""
        try:
            self._see(event["event"], event.get("probe", ""), event["data"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._unread = self._unread or f"event {event['event']} cannot be judged: {error!r:.80}"

    def _see(self, kind: str, probe: str, data: Mapping[str, Any]) -> None:
        if kind in ("run_started", "run_owes", "run_updated", "run_finished"):
            self._run.update(data)
        elif kind == "run_problem":
            self._problems.append(data)
        elif kind == "probe_started":
            result = _Result(str(data.get("probe", probe)), str(data["criterion"]))
            self._latest[probe] = result
            self._results.append(result)
        elif kind == "probe_finished":
            self._latest[probe].state = str(data["state"])
        elif kind == "measurement" and data.get("judged", True):
            result = self._latest[probe]
            result.judged.add(data["name"])
            result.seen += [(found, describe(data)) for found in [weigh(data)] if found]
            if is_marginal(data):
                self._marginal.add((result.criterion, data["name"]))
        elif kind == "control":
            result = self._latest[probe]
            result.controls.add(data["name"])
            if not is_caught(data):
                text = f"planted fault {data['name']!r} of {result.probe} was not found"
                result.seen.append((Weight.UNPROVEN, text))

    def reasons(self, contract: Mapping[str, Any]) -> list[str]:
        """Return what keeps the run from acceptance under this contract; [] if nothing does."""
        try:
            return [*self._reasons(contract)]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            return [f"the run cannot be judged: {error!r:.80}"]

    def _reasons(self, contract: Mapping[str, Any]) -> Iterator[str]:
        if self._unread:
            yield self._unread
        for problem in (*self._run.get("problems", ()), *self._problems):
            what = {"teardown": "clean-up failed"}.get(problem["kind"], f"{problem['kind']} error")
            yield f"{what} in {problem['where']}: {problem['text']}"
        yield from map(str, self._run.get("unverified", ()))
        facts = self._run["contract"]
        if not facts.get("agreed", True):
            yield "no contract was agreed: the limits were derived from the cluster"
        required = {one["id"] for one in facts["criteria"] if one.get("required", True)}
        compared = {name.partition(".")[0] for name in facts.get("baseline", ())}
        problem = self._run.get("baseline_problem", "no reason is given")
        if compared & required and problem:
            yield f"not compared with an earlier run: {problem}"
        most = table(contract, "accept").get("max_marginal")
        close = sorted(f"{id}.{name}" for id, name in self._marginal if id in required)
        if most is not None and len(close) > most:
            yield f"MARGINAL measures: {', '.join(close)}. Expected: at most {most}"
        for one in facts["criteria"]:
            if one["id"] not in required and NOT_PROVABLE not in table(contract, one["id"]):
                yield f"{one['id']} was not required in the run, but the contract requires it"
        yield from self._results_against(required)

    def _results_against(self, required: set[str]) -> Iterator[str]:
        """Yield what fails, and what is unproven of the criteria that are required."""
        owed = {one["probe"]: one for one in self._run.get("owed", ())}
        if not owed:
            yield "the run does not list the tests that it must run"
        for result in self._results:
            duty = owed.get(result.probe, {}) if result.state == FINISHED else {}
            for weight, sentence in result.sentences(duty):
                if weight is Weight.FAILS or result.criterion in required:
                    yield sentence
        ran = {result.probe for result in self._results}
        for probe, one in owed.items():
            if probe not in ran and one["criterion"] in required:
                yield f"{probe} must run, but has no result"
        for id in sorted(required - {result.criterion for result in self._results}):
            yield f"{id} is required, but no test ran for it"


def table(facts: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the table that these facts have under a key; {} where there is none."""
    found = facts.get(key)
    return found if isinstance(found, Mapping) else {}


def weigh(data: Mapping[str, Any]) -> Weight:
    """Judge a measurement by the limit that it recorded, as `Limit.judge` does."""
    limit, value = data.get("limit"), data.get("value")
    if not limit or value is None:
        return Weight.UNPROVEN
    if (words := limit.get("one_of")) is not None:
        return Weight.PASSES if str(value) in words else Weight.FAILS
    number = finite_number(int(value) if isinstance(value, bool) else value)
    low, high = (finite_number(limit.get(key)) for key in ("low", "high"))
    bounds = ((low, "low"), (high, "high"))
    unread = any(bound is None and limit.get(key) is not None for bound, key in bounds)
    if number is None or unread or (low is None and high is None):
        return Weight.UNPROVEN
    return Weight.FAILS if is_outside(number, low, high) else Weight.PASSES


def is_marginal(data: Mapping[str, Any]) -> bool:
    """Return whether a value that passes its limit is in the limit's band of MARGINAL."""
    limit, number = data.get("limit") or {}, finite_number(data.get("value"))
    low, high = (finite_number(limit.get(f"marginal_{side}")) for side in ("low", "high"))
    return number is not None and is_outside(number, low, high)


def is_caught(data: Mapping[str, Any]) -> bool:
    """Return whether a control was caught, and each measure that it observed is judged and red."""
    red = all(one.get("judged", True) and weigh(one) for one in data.get("observed") or ())
    return data.get("caught") is True and red


def describe(data: Mapping[str, Any]) -> str:
    """Say which measurement is outside its limit, or has none."""
    limit = data.get("limit") or {}
    signs = {"one_of": "one of", "low": ">=", "high": "<="}
    words = [f"{sign} {limit[key]}" for key, sign in signs.items() if limit.get(key) is not None]
    value = "missing" if data.get("value") is None else data["value"]
    what = f"{data['name']} on {data.get('subject', 'cluster')}: {value}"
    return f"{what}. Expected: {', '.join(words) or 'a limit for this measure'}"
