"""This run against a baseline run: new failures, fixed, worse beyond noise, better.

Which way is worse follows from the limit: below a `low` bound, or above a `high` one.  Noise
is known when both runs have a spread; without, the plain ratio is given and nothing claimed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from reports.acceptance import rows
from reports.record import Measurement, RunRecord, Verdict, number

Key = tuple[str, str, str, str, int]
NOISE = 2.0  # differences up to twice the combined spread are noise


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
    found = Comparison(baseline.id, notes=_notes(run, baseline))
    _verdicts(found, run, baseline)
    before, now = _measurements(baseline), _measurements(run)
    for key, old in before.items():
        if key in now:
            _difference(found, key, old, now[key])
        elif old.judged:
            found.missing.append(f"{key[0]}: {old.what} on {old.subject}, was {old.shown}")
    return found


def _notes(run: RunRecord, baseline: RunRecord) -> list[str]:
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


def _verdicts(found: Comparison, run: RunRecord, baseline: RunRecord) -> None:
    """Criteria whose verdict changed.  From FAIL to UNPROVEN is not fixed."""
    found.before.update({row.criterion.id: row.verdict for row in rows(baseline)})
    for row in rows(run):
        id, now = row.criterion.id, row.verdict
        old = found.before.get(id, Verdict.UNPROVEN)
        said = f"{id}: was {old.value}, is {now.value}"
        if now.rank > old.rank and not now.accepted:
            found.new_failures.append(f"{said}: {row.complaint}")
        elif now.accepted and not old.accepted:
            found.fixed.append(said)
        elif now is not old:
            found.unclear.append(said)
    gone = found.before.keys() - {row.criterion.id for row in rows(run)}
    found.missing.extend(f"{id}: the criterion is no longer looked at" for id in sorted(gone))


def _measurements(record: RunRecord) -> dict[Key, Measurement]:
    """By criterion, probe, name, subject, and their count when those are equal."""
    found: dict[Key, Measurement] = {}
    for result in record.results:
        for one in result.measurements:
            count = 0
            while (key := (result.criterion, result.probe, one.name, one.subject, count)) in found:
                count += 1
            found[key] = one
    return found


def _difference(found: Comparison, key: Key, old: Measurement, now: Measurement) -> None:
    """Put one pair of values where it belongs; equal values are nowhere."""
    if old.value == now.value:
        return
    said = f"{key[0]}: {now.what} on {now.subject}: {old.shown} -> {now.shown}"
    pair = _numbers(old, now)
    if pair is None:
        found.unclear.append(said)
    elif old.spread is None or now.spread is None:
        found.unclear.append(f"{said} ({_ratio(*pair)}; no spread, so noise is unknown)")
    elif abs(pair[1] - pair[0]) > NOISE * math.hypot(old.spread, now.spread):
        said = f"{said} ({_ratio(*pair)})"
        way = _better_is(now) or _better_is(old)
        gained = (pair[1] - pair[0]) * way
        kind = found.unclear if not way else found.better if gained > 0 else found.worse
        kind.append(said)


def _numbers(old: Measurement, now: Measurement) -> tuple[float, float] | None:
    """Both values when both are numbers of the same unit."""
    values = [one.value for one in (old, now)]
    if old.unit != now.unit or any(isinstance(v, bool | str) or v is None for v in values):
        return None
    return float(values[0] or 0), float(values[1] or 0)


def _ratio(old: float, now: float) -> str:
    return f"{number(now / old)} x" if old else "from 0"


def _better_is(one: Measurement) -> int:
    """1 when more is better, -1 when less is, 0 when the limit does not tell."""
    low = one.limit is not None and one.limit.low is not None
    high = one.limit is not None and one.limit.high is not None
    return int(low) - int(high)


def lines(found: Comparison, most: int = 30) -> Iterator[str]:
    """The comparison as plain lines, at most so many of a kind."""
    yield f"change since {found.baseline}"
    for note in found.notes:
        yield f"  note: {note}"
    for title, sentences in found.sections():
        yield f"  {title} ({len(sentences)})"
        yield from (f"    {sentence}" for sentence in sentences[:most])
        if len(sentences) > most:
            yield f"    and {len(sentences) - most} more"
    if not found.sections():
        yield "  no change beyond noise"
