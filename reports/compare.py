"""This run against a baseline run: new failures, fixed, worse beyond noise, better.

Which way is worse follows from the limit: below a `low` bound, or above a `high` one.  Noise
is known when both runs have a spread; without, the plain ratio is given and nothing claimed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from reports.acceptance import report_rows
from reports.record import Measurement, RunRecord, Verdict, number

Key = tuple[str, str, str, str, int]
NOISE_FACTOR = 2.0  # differences up to twice the combined spread are noise


@dataclass(frozen=True)
class Comparison:
    """Sentences by kind.  `unclear` holds differences that nobody can judge."""

    baseline: str
    notes: list[str] = field(default_factory=list)
    new_failures: list[str] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    worse: list[str] = field(default_factory=list)
    better: list[str] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    before: dict[str, Verdict] = field(default_factory=dict)

    def sections(self) -> list[tuple[str, list[str]]]:
        """Title and sentences of each kind that has any, the gravest first."""
        named = [
            ("New failures", self.new_failures),
            ("Worse beyond noise", self.worse),
            ("No longer measured", self.missing),
            ("Different, noise unknown", self.unclear),
            ("Fixed", self.fixed),
            ("Better", self.better),
        ]
        return [(title, sentences) for title, sentences in named if sentences]


def compare(run: RunRecord, baseline: RunRecord) -> Comparison:
    """What changed from `baseline` to `run`."""
    diff = Comparison(baseline.id, notes=_comparability_notes(run, baseline))
    _compare_verdicts(diff, run, baseline)
    old_values, new_values = _measurements_by_key(baseline), _measurements_by_key(run)
    for key, old in old_values.items():
        if key in new_values:
            _compare_values(diff, key, old, new_values[key])
        elif old.judged:
            diff.missing.append(f"{key[0]}: {old.title} on {old.subject}, was {old.value_text}")
    return diff


def _comparability_notes(run: RunRecord, baseline: RunRecord) -> list[str]:
    """Why the two may not be comparable."""
    notes = []
    if run.contract.sha256 != baseline.contract.sha256:
        notes.append("the two runs were judged by different contracts")
    if bool(run.rehearsal) != bool(baseline.rehearsal):
        notes.append("one of the two runs is a rehearsal")
    notes += [
        f"the {name} run is {record.state}, not finished"
        for name, record in (("present", run), ("baseline", baseline))
        if record.state != "finished"
    ]
    return notes


def _compare_verdicts(diff: Comparison, run: RunRecord, baseline: RunRecord) -> None:
    """Criteria whose verdict changed.  From FAIL to UNPROVEN is not fixed."""
    diff.before.update({row.criterion.id: row.verdict for row in report_rows(baseline)})
    for row in report_rows(run):
        id, now = row.criterion.id, row.verdict
        old = diff.before.get(id, Verdict.UNPROVEN)
        message = f"{id}: was {old.value}, is {now.value}"
        if now.rank > old.rank and not now.accepted:
            diff.new_failures.append(f"{message}: {row.problem}")
        elif now.accepted and not old.accepted:
            diff.fixed.append(message)
        elif now is not old:
            diff.unclear.append(message)
    dropped = diff.before.keys() - {row.criterion.id for row in report_rows(run)}
    diff.missing.extend(f"{id}: the criterion is no longer looked at" for id in sorted(dropped))


def _measurements_by_key(record: RunRecord) -> dict[Key, Measurement]:
    """By criterion, probe, name, subject, and their count when those are equal."""
    by_key: dict[Key, Measurement] = {}
    for result in record.results:
        for m in result.measurements:
            count = 0
            while (key := (result.criterion, result.probe, m.name, m.subject, count)) in by_key:
                count += 1
            by_key[key] = m
    return by_key


def _compare_values(diff: Comparison, key: Key, old: Measurement, now: Measurement) -> None:
    """Put one pair of values where it belongs; equal values are nowhere."""
    if old.value == now.value:
        return
    message = f"{key[0]}: {now.title} on {now.subject}: {old.value_text} -> {now.value_text}"
    pair = _both_numbers(old, now)
    if pair is None:
        diff.unclear.append(message)
    elif old.spread is None or now.spread is None:
        diff.unclear.append(f"{message} ({_ratio_text(*pair)}; no spread, so noise is unknown)")
    elif abs(pair[1] - pair[0]) > NOISE_FACTOR * math.hypot(old.spread, now.spread):
        message = f"{message} ({_ratio_text(*pair)})"
        direction = _better_direction(now) or _better_direction(old)
        gain = (pair[1] - pair[0]) * direction
        group = diff.unclear if not direction else diff.better if gain > 0 else diff.worse
        group.append(message)


def _both_numbers(old: Measurement, now: Measurement) -> tuple[float, float] | None:
    """Both values when both are numbers of the same unit."""
    values = [m.value for m in (old, now)]
    if old.unit != now.unit or any(isinstance(v, bool | str) or v is None for v in values):
        return None
    return float(values[0] or 0), float(values[1] or 0)


def _ratio_text(old: float, now: float) -> str:
    return f"{number(now / old)} x" if old else "from 0"


def _better_direction(m: Measurement) -> int:
    """1 when more is better, -1 when less is, 0 when the limit does not tell."""
    low = m.limit is not None and m.limit.low is not None
    high = m.limit is not None and m.limit.high is not None
    return int(low) - int(high)


def comparison_lines(diff: Comparison, max_per_kind: int = 30) -> Iterator[str]:
    """The comparison as plain lines, at most so many of a kind."""
    yield f"change since {diff.baseline}"
    for note in diff.notes:
        yield f"  note: {note}"
    for title, sentences in diff.sections():
        yield f"  {title} ({len(sentences)})"
        yield from (f"    {sentence}" for sentence in sentences[:max_per_kind])
        if len(sentences) > max_per_kind:
            yield f"    and {len(sentences) - max_per_kind} more"
    if not diff.sections():
        yield "  no change beyond noise"
