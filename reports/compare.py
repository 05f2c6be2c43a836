"""Compares a run with a baseline run: new failures, fixed, worse beyond noise, better.

The limit defines which direction is worse: down for a `low` bound, up for a `high` bound. Noise
is known if both runs have a spread. Otherwise only the ratio is reported, without a judgement.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from reports.acceptance import AcceptanceSummary
from reports.measurement import Measurement, Verdict
from reports.numbers import number
from reports.record import RunRecord

Key = tuple[str, str, str, str, int]
Change = tuple[str, str]  # one of KINDS, and the sentence
NOISE_FACTOR = 2.0  # differences up to twice the combined spread are noise
KINDS = NEW_FAILURES, WORSE, MISSING, UNCLEAR, FIXED, BETTER = (
    "New failures",
    "Worse beyond noise",
    "No longer measured",
    "Different, noise unknown",  # these cannot be judged
    "Fixed",
    "Better",
)  # the most serious first


@dataclass(frozen=True)
class Comparison:
    """Differences between a run and its baseline.

    `baseline` is the id of the baseline run. `notes` are reasons why the runs may not be
    comparable. `changes` has sentences by kind, `before` the baseline's verdicts by criterion.
    """

    baseline: str
    notes: list[str]
    changes: dict[str, list[str]]
    before: dict[str, Verdict]


def compare(run: AcceptanceSummary, baseline: AcceptanceSummary) -> Comparison:
    """Compare `run` with `baseline`; kinds without any change are left out."""
    before = {row.criterion.id: row.verdict for row in baseline.rows}
    changes = [*_verdict_changes(run, before), *_value_changes(run.record, baseline.record)]
    by_kind = {kind: [text for of, text in changes if of == kind] for kind in KINDS}
    return Comparison(
        baseline.record.id,
        _comparability_notes(run.record, baseline.record),
        {kind: sentences for kind, sentences in by_kind.items() if sentences},
        before,
    )


def _comparability_notes(run: RunRecord, baseline: RunRecord) -> list[str]:
    """List the reasons why the two runs may not be comparable."""
    notes = []
    if run.contract.sha256 != baseline.contract.sha256:
        notes.append("the two runs were judged by different contracts")
    if bool(run.rehearsal) != bool(baseline.rehearsal):
        notes.append("one of the two runs is a rehearsal")
    for name, record in (("present", run), ("baseline", baseline)):
        if record.state != "finished":
            notes.append(f"the {name} run is {record.state}, not finished")
        if record.partial:
            notes.append(f"the {name} run is PARTIAL: {record.partial}")
    return notes


def _verdict_changes(run: AcceptanceSummary, before: dict[str, Verdict]) -> Iterator[Change]:
    """Yield criteria whose verdict changed or that are gone. FAIL to UNPROVEN is not fixed."""
    for row in run.rows:
        now, old = row.verdict, before.get(row.criterion.id, Verdict.UNPROVEN)
        message = f"{row.criterion.id}: was {old.value}, is {now.value}"
        if now.rank > old.rank and not now.accepted:
            yield NEW_FAILURES, f"{message}: {row.problem}"
        elif now.accepted and not old.accepted:
            yield FIXED, message
        elif now is not old:
            yield UNCLEAR, message
    for id in sorted(before.keys() - {row.criterion.id for row in run.rows}):
        yield MISSING, f"{id}: the criterion is no longer measured"


def _measurements_by_key(record: RunRecord) -> dict[Key, Measurement]:
    """Index measurements by criterion, probe, name, subject, and a counter for equal ones."""
    by_key: dict[Key, Measurement] = {}
    counts = Counter[tuple[str, str, str, str]]()
    for result in record.results:
        for m in result.measurements:
            key = (result.criterion, result.probe, m.name, m.subject)
            by_key[(*key, counts[key])] = m
            counts[key] += 1
    return by_key


def _value_changes(run: RunRecord, baseline: RunRecord) -> Iterator[Change]:
    """Yield values that changed beyond noise, cannot be judged, or are gone."""
    new_values = _measurements_by_key(run)
    for key, old in _measurements_by_key(baseline).items():
        if key not in new_values:
            if old.judged:
                yield MISSING, f"{key[0]}: {old.title} on {old.subject}, was {old.value_text}"
        elif old.value != new_values[key].value:
            yield from _value_change(key[0], old, new_values[key])


def _value_change(criterion: str, old: Measurement, now: Measurement) -> Iterator[Change]:
    """Classify two values that differ; yield nothing if the difference is within the noise."""
    message = f"{criterion}: {now.title} on {now.subject}: {old.value_text} -> {now.value_text}"
    pair = _both_numbers(old, now)
    if pair is None:
        yield UNCLEAR, message
        return
    gain = pair[1] - pair[0]
    ratio = f"{number(pair[1] / pair[0])} x" if pair[0] else "from 0"
    if old.spread is None or now.spread is None:
        yield UNCLEAR, f"{message} ({ratio}; no spread, so noise is unknown)"
    elif abs(gain) > NOISE_FACTOR * math.hypot(old.spread, now.spread):
        direction = _better_direction(now) or _better_direction(old)
        better_or_worse = BETTER if gain * direction > 0 else WORSE
        yield better_or_worse if direction else UNCLEAR, f"{message} ({ratio})"


def _both_numbers(old: Measurement, now: Measurement) -> tuple[float, float] | None:
    """Return both values if both are numbers of the same unit, otherwise None."""
    values = [m.value for m in (old, now)]
    if old.unit != now.unit or any(isinstance(v, bool | str) or v is None for v in values):
        return None
    return float(values[0] or 0), float(values[1] or 0)


def _better_direction(m: Measurement) -> int:
    """Return 1 if more is better, -1 if less is better, 0 if the limit does not show it."""
    low = m.limit is not None and m.limit.low is not None
    high = m.limit is not None and m.limit.high is not None
    return int(low) - int(high)


def comparison_lines(diff: Comparison, max_per_kind: int = 30) -> Iterator[str]:
    """Yield the comparison as plain lines, at most `max_per_kind` sentences of each kind."""
    yield f"change since {diff.baseline}"
    for note in diff.notes:
        yield f"  note: {note}"
    for title, sentences in diff.changes.items():
        yield f"  {title} ({len(sentences)})"
        yield from (f"    {sentence}" for sentence in sentences[:max_per_kind])
        if len(sentences) > max_per_kind:
            yield f"    and {len(sentences) - max_per_kind} more"
    if not diff.changes:
        yield "  no change beyond noise"
