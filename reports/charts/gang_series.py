"""Reads the series of the gang probe, and makes the sentence and the table of its figure."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

from reports.charts.canvas import shorten
from reports.charts.figure import brief_number, read_number
from reports.numbers import number

MAX_ROWS = 60  # rows of the table at most; the record has all of them
MAX_SAMPLES, MAX_HELD = 50_000, 500_000  # more than a probe can record
Held = tuple[float, float, tuple[tuple[str, float], ...]]  # start, end, (job, amount) in order
Holder = tuple[str, str | None]  # (job, node it holds units on); node is None: it waits


class JobSpan(NamedTuple):
    """Period in seconds in which a job held, or waited for, a constant amount."""

    job: str
    node: str | None  # None: the job waited
    start: float
    end: float
    amount: float


class PartialAllocation(NamedTuple):
    """Period in seconds in which a job held only a part of its gang."""

    start: float
    end: float
    job: str
    held: float
    need: float

    @property
    def held_text(self) -> str:
        """Held and needed amount as text: `1 of 3`."""
        return f"{number(self.held)} of {number(self.need)}"


class Event(NamedTuple):
    """Action at a point in time. `fault` is True if it was a fault in the cluster or a job."""

    time_s: float
    label: str
    fault: bool = False


class Panel(NamedTuple):
    """One run on the cluster: the scenario or its control. Times are in seconds."""

    start: float
    last: float  # end of the last span, partial gang or mark: nothing changed after it
    spans: list[JobSpan]
    partials: list[PartialAllocation]
    marks: list[Event]
    held: dict[str, list[Held]]  # what was held on each node
    max_by_job: dict[str, float]  # largest amount that each job held at once

    @property
    def waits(self) -> list[JobSpan]:
        """Spans in which jobs waited; `amount` is the number that was missing."""
        return [span for span in self.spans if span.node is None]


def read_panel(values: dict[str, Any]) -> Panel:
    """Read samples, end, marks and half of a series. Raises ValueError if they are not valid."""
    samples = values["samples"]
    if not isinstance(samples, list) or not 0 < len(samples) <= MAX_SAMPLES:
        raise ValueError(f"expected a list of 1 to {MAX_SAMPLES} samples")
    if sum(len(jobs) for item in samples for jobs in item["nodes"].values()) > MAX_HELD:
        raise ValueError(f"the samples list more than {MAX_HELD} holdings")
    times = [_require_number(sample["t"]) for sample in samples]
    if any(after < before for before, after in pairwise(times)):
        raise ValueError("the times of the samples do not increase")
    end = max(times[-1], _require_number(values["end"]))
    start = 0.0 if 0 <= times[0] < end / 4 else times[0]
    if not math.isfinite(end - start):
        raise ValueError("the samples have no end")
    states = [_read_sample(sample) for sample in samples]
    spans = _to_spans(times, end, states)
    partials = sorted(_read_partial(item) for item in values.get("half") or [])
    marks = sorted(_read_event(*item) for item in values.get("marks") or [])
    events = [span.end for span in spans] + [part.end for part in partials]
    events += [mark.time_s for mark in marks]
    last = min(end, max([time_s for time_s in events if time_s > start], default=end))
    held, by_job = _read_held([*times, end], states), _peaks(states)
    return Panel(start, last, spans, partials, marks, held, by_job)


def _require_number(value: Any) -> float:
    known = read_number(value)
    if known is None:
        raise ValueError("a number is missing")
    return known


def read_count(value: Any) -> float:
    """Read a number of 0 or more. Raises ValueError for anything else."""
    if (count := _require_number(value)) < 0:
        raise ValueError(f"expected a count, found {number(count)}")
    return count


def read_text(value: Any) -> str:
    """Return a string unchanged. Raises ValueError for any other type."""
    if not isinstance(value, str):
        raise ValueError(f"expected a word, found {type(value).__name__}")
    return value


def _read_event(time_s: Any, label: Any, fault: Any = False) -> Event:
    return Event(_require_number(time_s), read_text(label), fault is True)


def _read_partial(values: Any) -> PartialAllocation:
    start, end, job, held, need = values
    if _require_number(end) < _require_number(start):
        raise ValueError("an allocation ends before it begins")
    return PartialAllocation(
        float(start), float(end), read_text(job), read_count(held), read_count(need)
    )


def _read_sample(sample: dict[str, Any]) -> dict[Holder, float]:
    """Read one sample: {(job, node): amount held, (job, None): amount missing}, without zeros."""
    amounts: dict[Holder, float] = {
        (job, node): read_count(held)
        for node, jobs in sample["nodes"].items()
        for job, held in jobs.items()
    }
    amounts |= {(job, None): read_count(n) for job, n in (sample.get("waits") or {}).items()}
    return {key: amount for key, amount in amounts.items() if amount}


def _to_spans(times: list[float], end: float, states: list[dict[Holder, float]]) -> list[JobSpan]:
    """Convert sampled states to spans; equal consecutive amounts are joined.

    The last sample is valid until `end`.
    """
    spans, open_spans = [], dict[Holder, tuple[float, float]]()
    for t, state in zip([*times, end], [*states, {}], strict=True):
        for owner in [key for key, (_, held) in open_spans.items() if state.get(key) != held]:
            start, amount = open_spans.pop(owner)
            spans.append(JobSpan(*owner, start, t, amount))
        for owner, amount in state.items():
            open_spans.setdefault(owner, (t, amount))
    return sorted(spans, key=lambda span: (span.start, span.end))


def _read_held(times: list[float], states: list[dict[Holder, float]]) -> dict[str, list[Held]]:
    held = defaultdict[str, list[Held]](list)
    for (start, end), state in zip(pairwise(times), states, strict=True):
        by_node = defaultdict[str, list[tuple[str, float]]](list)
        for (job, node), amount in state.items():
            if node is not None:
                by_node[node].append((job, amount))
        for node, amounts in by_node.items():
            held[node].append((start, end, tuple(sorted(amounts))))
    return dict(held)


def _peaks(states: list[dict[Holder, float]]) -> dict[str, float]:
    """Return the largest amount that each job held in one sample."""
    highest: dict[str, float] = {}
    for state in states:
        totals = defaultdict[str, float](float)
        for (job, node), amount in state.items():
            totals[job] += amount if node is not None else 0
        highest |= {job: max(held, highest.get(job, 0)) for job, held in totals.items() if held}
    return highest


def make_sentence(panels: list[Panel], samples: float, units: str, note: str) -> str:
    """Return the finding as a sentence, and the partial gangs of the control if it has any.

    Raises ValueError if no sample was taken.
    """
    if not samples:
        raise ValueError("no sample was taken")
    first, control = panels[0], ""
    if len(panels) > 1 and (parts := panels[1].partials):
        control = f" In the control {_partial_gangs_text(parts, units)}."
    if first.partials:
        return (
            "A job held only a part of its gang: "
            f"{_partial_gangs_text(first.partials, units)}{note}.{control}"
        )
    start = f"At each of {number(samples)} sample{'s' * (samples != 1)}"
    if not first.max_by_job:
        return f"{start} no job held any of the {units}{_wait_text(first, '')}{note}.{control}"
    job = max(first.max_by_job, key=lambda name: first.max_by_job[name])
    top = f"{shorten(job, 24)} held up to {number(first.max_by_job[job])}{_wait_text(first, job)}"
    return f"{start} every gang held all of its {units} or none; {top}{note}.{control}"


def _partial_gangs_text(parts: list[PartialAllocation], units: str) -> str:
    """Describe the first two partial gangs and count the others."""
    texts = [
        f"{shorten(part.job, 24)} held {part.held_text} {units} from {brief_number(part.start)} to "
        f"{brief_number(part.end)} s"
        for part in parts[:2]
    ]
    more = len(parts) - len(texts)
    return "; ".join(texts) + (f"; and {more} more time{'s' * (more != 1)}" if more else "")


def _wait_text(panel: Panel, holder: str) -> str:
    """Return `, B waited 1.8 s`: the job with the largest sum of waits, and that sum."""
    waits = defaultdict[str, float](float)
    for span in panel.waits:
        waits[span.job] = waits[span.job] + span.end - span.start
    if not waits:
        return ""
    job = max(waits, key=lambda name: waits[name])
    subject = " and" if job == holder else f", {shorten(job, 24)}"
    longest = f"{brief_number(waits[job])} s"
    return f"{subject} waited {longest if len(waits) == 1 else f'longest ({longest})'}"


def table_rows(panels: list[Panel], left_out: int) -> list[list[str]]:
    """Select at most MAX_ROWS rows, by panel and time: partial gangs, then the longest spans.

    `left_out` is the number of marks that are not drawn.
    """
    lines: list[tuple[float, int, float, list[str]]] = []
    for i, panel in enumerate(panels):
        prefix = "control: " * i
        for item in panel.partials:
            row = [item.job, f"{prefix}part of a gang", *_exact_times(item), item.held_text]
            lines.append((-math.inf, i, item.start, row))
        for span in panel.spans:
            where = prefix + ("waits" if span.node is None else span.node)
            row = [span.job, where, *_exact_times(span), number(span.amount)]
            lines.append((span.start - span.end, i, span.start, row))
    kept = sorted(lines)[: MAX_ROWS - 2]
    rows = [row for _, _, _, row in sorted(kept, key=lambda item: item[1:3])]
    missing = [(len(lines) - len(kept), "more"), (left_out, "more marks")]
    return rows + [
        [f"{count} {what}", "not drawn; the record has them", "", "", ""]
        for count, what in missing
        if count
    ]


def natural_key(job: str) -> str:
    """Pad the numbers in a name with zeros, so that job2 sorts before job10."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(12), job)


def plural(unit: str) -> str:
    """Return the plural of a unit, shortened to about 32 characters: `GPUs`."""
    short = shorten(unit, 32)
    return short if short.endswith("s") else f"{short}s"


def _exact_times(item: JobSpan | PartialAllocation) -> list[str]:
    return [f"{round(time_s, 3):.10g}" for time_s in (item.start, item.end)]
