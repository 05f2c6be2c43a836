"""Judges what a contract names in [baseline] against the values of an earlier run.

The contract gives each measure a tolerance in percent of the earlier value. A value that is worse
by more is a FAIL if it is also outside the noise, and UNPROVEN if the noise is larger than the
change: reports/frames/compare.py defines noise and direction. What cannot be compared is UNPROVEN,
so that a missing run, measure or node never passes.

A subject (a node) that only one of the runs has is compared with its like: the worst of those that
only the one run has with the worst of those that only the other has. A node may have another name
after it was replaced.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from pydantic import Field

from reports.groups import group_pairs
from reports.measurement import Measurement, RecordModel, Verdict, about
from reports.numbers import finite_number, number, quantity

NOISE_FACTOR = 2.0  # differences up to twice the combined spread are noise
NO_BASELINE = "no run was given with --baseline"


class BaselineValue(RecordModel):
    """Value of a measure in the baseline run."""

    criterion: str = Field(description="Criterion of the measure.")
    probe: str = Field(description="Probe that measured it.")
    measure: str = Field(description="Name of the measure.")
    subject: str = Field(description="What was measured.")
    value: float | None = about(None, "Value; null if there was no value.")
    unit: str = about("", "Unit of value and spread.")
    spread: float | None = about(None, "Spread of the values (+/-), in the same unit.")
    samples: int | None = about(None, "Number of samples.")
    run: str = about("", "Id of the first accepted run, if the value is of that run.")


@dataclass(frozen=True)
class Regression:
    """A measure that became worse, or that cannot be compared; `verdict` is FAIL or UNPROVEN."""

    criterion: str
    verdict: Verdict
    sentence: str


def values_of(
    results: Iterable[Any], tolerances: Mapping[str, float], run: str = ""
) -> list[BaselineValue]:
    """List the values of the named measures in the results of a baseline run."""
    return [
        BaselineValue(
            **one.model_dump(include={"subject", "unit", "spread", "samples"}),
            criterion=result.criterion,
            probe=result.probe,
            measure=one.name,
            value=finite_number(one.value),
            run=run,
        )
        for result in results
        for one in result.measurements
        if f"{result.criterion}.{one.name}" in tolerances
    ]


def find_regressions(record: Any) -> list[Regression]:
    """Compare each measure that the contract of a RunRecord names.

    Lists those that are worse, or cannot be compared.
    """
    found: list[Regression] = []
    baseline, values, problem = record.baseline, record.baseline_values, record.baseline_problem
    for name, tolerance in record.contract.baseline.items():
        criterion, _, measure = name.partition(".")
        before = [one for one in values if (one.criterion, one.measure) == (criterion, measure)]
        of = record.results_of(criterion)
        now = [(result.probe, m) for result in of for m in result.measurements if m.name == measure]
        title = Measurement(name=measure).title
        if problem or not before or not now:
            why = problem or f"{'this run' if before else f'run {baseline}'} did not measure it"
            text = f"{title} was not compared with an earlier run: {why}"
            judged = iter([(Verdict.UNPROVEN, text)])
        else:
            runs = group_pairs((one.run or baseline, one) for one in before)
            each = (_judge(title, tolerance, run, old, now) for run, old in runs.items())
            judged = chain.from_iterable(each)
        end = f"Expected: at most {number(tolerance)} % worse (agreed in the contract's [baseline])"
        found += [Regression(criterion, verdict, f"{text}. {end}") for verdict, text in judged]
    return found


def _judge(
    title: str,
    tolerance: float,
    baseline: str,
    before: list[BaselineValue],
    now: list[tuple[str, Measurement]],
) -> Iterator[tuple[Verdict, str]]:
    """Yield verdict and sentence for each value that is worse, or cannot be compared."""
    direction = next((d for _, one in now if (d := _direction(one))), 0)
    if not direction:
        why = "its limit does not show if more or less is better"
        yield Verdict.UNPROVEN, f"{title} cannot be compared: {why}"
        return
    old = _worst_by_key(((one.probe, one) for one in before), direction)
    new = _worst_by_key(now, direction)
    pairs = [(f" on {one.subject}", one, new[key]) for key, one in old.items() if key in new]
    for probe in sorted({probe for probe, _ in (*old, *new)}):
        gone = [one for key, one in old.items() if key[0] == probe and key not in new]
        come = [one for key, one in new.items() if key[0] == probe and key not in old]
        if len(gone) != len(come):
            yield Verdict.UNPROVEN, f"{title}{_unmatched(gone, come, baseline)}"
        elif gone:
            worst, reference = (min(x, key=lambda one: _rank(one, direction)) for x in (come, gone))
            where = f" on {worst.subject} ({reference.subject} in run {baseline})"
            pairs.append((where, reference, worst))
    for where, first, last in pairs:
        if found := _compare(first, last, tolerance, direction, baseline):
            yield found[0], f"{title}{where}: {found[1]}"


def _unmatched(gone: list[Any], come: list[Any], baseline: str) -> str:
    """Describe subjects of one run that have no like in the other one."""
    old, new = (", ".join(sorted(one.subject for one in some)) for some in (gone, come))
    if not come:
        return f" on {old}: measured in run {baseline}, but not in this run"
    if not gone:
        return f" on {new}: measured in this run, but not in run {baseline}"
    return f": measured on {old} in run {baseline}, but on {new} in this run"


def _compare(
    first: Any, last: Any, tolerance: float, direction: int, baseline: str
) -> tuple[Verdict, str] | None:
    """Compare two values; None if the later one is not worse than tolerated."""
    before, after = finite_number(first.value), finite_number(last.value)
    if before is None or after is None or first.unit != last.unit:
        text = f"{_text(first)} in run {baseline}, {_text(last)} in this run"
        return Verdict.UNPROVEN, f"cannot be compared ({text})"
    worse = (before - after) * direction
    if worse <= abs(before) * tolerance / 100:
        return None
    share = f"{number(round(100 * worse / abs(before), 2))} % worse" if before else "worse"
    text = f"{_text(last)}, {share} than {_text(first)} in run {baseline}"
    noise = NOISE_FACTOR * math.hypot(_spread(first), _spread(last))
    if worse <= noise:
        amount = quantity(float(f"{noise:.3g}"), first.unit)
        return Verdict.UNPROVEN, f"{text}, but a difference of up to {amount} may be noise"
    return Verdict.FAIL, text


def _worst_by_key(values: Iterable[tuple[str, Any]], direction: int) -> dict[tuple[str, str], Any]:
    """Keep the worst value by probe and subject; one without a value is the worst."""
    of_key = group_pairs(((probe, one.subject), one) for probe, one in values)
    return {key: min(own, key=lambda one: _rank(one, direction)) for key, own in of_key.items()}


def _rank(one: Any, direction: int) -> float:
    value = finite_number(one.value)
    return -math.inf if value is None else value * direction


def _direction(one: Measurement) -> int:
    """Return 1 if more is better, -1 if less is better, 0 if the limit does not show it."""
    limit = one.limit
    return (limit.low is not None) - (limit.high is not None) if limit else 0


def _spread(one: Any) -> float:
    """Return the spread; 0 where it is unknown, as of a single sample: the tolerance decides."""
    return float(one.spread) if one.spread is not None and one.samples != 1 else 0.0


def _text(one: Any) -> str:
    value = finite_number(one.value)
    return "not measured" if value is None else quantity(float(f"{value:.4g}"), one.unit)
