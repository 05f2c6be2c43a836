"""What the series of the gang probe tells, in numbers and in words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

from reports.charts.figure import read_number
from reports.record import number
from reports.sanitize import one_line

ROWS = 60  # of the table; the record has them all
SAMPLES, SEEN = 50_000, 500_000  # more changes, and holdings in them, than a probe can see
MARKS = 8  # in the table, of those without room in the picture
Place = tuple[str, str | None]  # a job and the node that it holds something on; None: it waits


class Span(NamedTuple):
    """A stretch of time in which a job held, or waited for, the same number."""

    job: str
    node: str | None  # None: it waited
    start: float
    end: float
    amount: float


class Half(NamedTuple):
    """A stretch of time in which a job held a part of a gang."""

    start: float
    end: float
    job: str
    held: float
    need: float

    @property
    def words(self) -> str:
        """How much of it."""
        return f"{number(self.held)} of {number(self.need)}"


class Event(NamedTuple):
    """What was done at a moment; a fault is what was done to the cluster or to a job."""

    at: float
    words: str
    fault: bool = False


class Block(NamedTuple):
    """One story of the cluster: the contest itself, or its control."""

    start: float
    end: float
    spans: list[Span]
    halves: list[Half]
    marks: list[Event]
    full: dict[str, float]  # the most held at once, by node
    most: dict[str, float]  # the same by job

    @property
    def waits(self) -> list[Span]:
        """When jobs waited, and for how many."""
        return [span for span in self.spans if span.node is None]


def read_block(values: dict[str, Any]) -> Block:
    """Samples, end, marks and half of a series; ValueError says what is wrong with them."""
    samples = values["samples"]
    if not isinstance(samples, list) or not 0 < len(samples) <= SAMPLES:
        raise ValueError(f"expected a list of 1 to {SAMPLES} samples")
    if sum(len(jobs) for one in samples for jobs in one["nodes"].values()) > SEEN:
        raise ValueError(f"the samples list more than {SEEN} holdings")
    times = [_known(sample["t"]) for sample in samples]
    if any(after < before for before, after in pairwise(times)):
        raise ValueError("the times of the samples run backwards")
    end = max(times[-1], _known(values["end"]))
    start = 0.0 if 0 <= times[0] < end / 4 else times[0]
    if not math.isfinite(end - start):
        raise ValueError("the samples last for ever")
    states = [_places(sample) for sample in samples]
    return Block(
        start,
        end,
        _spans(times, end, states),
        sorted(_half(one) for one in values.get("half") or []),
        sorted(_event(*one) for one in values.get("marks") or []),
        _most(states, lambda job, node: node),
        _most(states, lambda job, node: job),
    )


def _known(value: Any) -> float:
    found = read_number(value)
    if found is None:
        raise ValueError("a number is missing")
    return found


def read_count(value: Any) -> float:
    """A number that is not negative."""
    if (found := _known(value)) < 0:
        raise ValueError(f"expected a count, found {number(found)}")
    return found


def read_word(value: Any) -> str:
    """A string, as it was seen."""
    if not isinstance(value, str):
        raise ValueError(f"expected a word, found {type(value).__name__}")
    return value


def _event(at: Any, words: Any, fault: Any = False) -> Event:
    return Event(_known(at), read_word(words), fault is True)


def _half(values: Any) -> Half:
    start, end, job, held, need = values
    if _known(end) < _known(start):
        raise ValueError("a part of a gang was held until before it was taken")
    return Half(float(start), float(end), read_word(job), read_count(held), read_count(need))


def _places(sample: dict[str, Any]) -> dict[Place, float]:
    """What one sample saw: (job, node) and what is held there, (job, None) and what is missing."""
    seen: dict[Place, float] = {
        (job, node): read_count(held)
        for node, jobs in sample["nodes"].items()
        for job, held in jobs.items()
    }
    seen |= {(job, None): read_count(n) for job, n in (sample.get("waits") or {}).items()}
    return {place: amount for place, amount in seen.items() if amount}


def _spans(times: list[float], end: float, states: list[dict[Place, float]]) -> list[Span]:
    """Equal neighbours joined; the last sample holds until the end."""
    found, begun = [], dict[Place, tuple[float, float]]()
    for t, state in zip([*times, end], [*states, {}], strict=True):
        for place in [one for one, (_, seen) in begun.items() if state.get(one) != seen]:
            start, amount = begun.pop(place)
            found.append(Span(*place, start, t, amount))
        for place, amount in state.items():
            begun.setdefault(place, (t, amount))
    return sorted(found, key=lambda span: (span.start, span.end))


def _most(states: list[dict[Place, float]], key: Callable[[str, str], str]) -> dict[str, float]:
    """The most that was held in one sample, by job or by node."""
    most: dict[str, float] = {}
    for state in states:
        now: dict[str, float] = {}
        for (job, node), amount in state.items():
            if node is not None:
                name = key(job, node)
                now[name] = now.get(name, 0) + amount
        most |= {name: max(held, most.get(name, 0)) for name, held in now.items()}
    return most


def sentence_of(blocks: list[Block], taken: float, units: str, few: str) -> str:
    """The finding; what the control did, where it held a part of a gang."""
    if not taken:
        raise ValueError("no sample was taken")
    first, said = blocks[0], ""
    if len(blocks) > 1 and (halves := blocks[1].halves):
        said = f" In the control {_held(halves, units)}."
    if first.halves:
        return f"Part of a gang was held: {_held(first.halves, units)}{few}.{said}"
    start = f"At each of {number(taken)} sample{'s' * (taken != 1)}"
    if not first.most:
        return f"{start} no job held any of the {units}{_waited(first, '')}{few}.{said}"
    job = max(first.most, key=lambda name: first.most[name])
    most = f"{shortened(job, 24)} held up to {number(first.most[job])}{_waited(first, job)}"
    return f"{start} every gang held all of its {units} or none; {most}{few}.{said}"


def _held(halves: list[Half], units: str) -> str:
    """The first two parts that were held, and how many more there were."""
    told = [
        f"{shortened(one.job, 24)} held {one.words} {units} from {brief(one.start)} to "
        f"{brief(one.end)} s"
        for one in halves[:2]
    ]
    more = len(halves) - len(told)
    return "; ".join(told) + (f"; and {more} more time{'s' * (more != 1)}" if more else "")


def _waited(block: Block, holder: str) -> str:
    """`, B waited 1.8 s`: the job that waited the longest, all its waits together."""
    waits: dict[str, float] = {}
    for span in block.waits:
        waits[span.job] = waits.get(span.job, 0) + span.end - span.start
    if not waits:
        return ""
    job = max(waits, key=lambda name: waits[name])
    who = " and" if job == holder else f", {shortened(job, 24)}"
    took = f"{brief(waits[job])} s"
    return f"{who} waited {took if len(waits) == 1 else f'longest ({took})'}"


def rows_of(blocks: list[Block], left_out: list[Event]) -> list[list[str]]:
    """Every part of a gang, then the longest holdings and waits, as many as fit; by time.

    A reader looks here for what the picture is too small for: which node, how long exactly, and
    marks that found no room there.
    """
    told: list[tuple[float, int, float, list[str]]] = []
    for at, block in enumerate(blocks):
        place = "control: " * at
        for one in block.halves:
            times = [_exact(one.start), _exact(one.end)]
            row = [one.job, f"{place}part of a gang", *times, one.words]
            told.append((-math.inf, at, one.start, row))
        for span in block.spans:
            where = "waits" if span.node is None else span.node
            times = [_exact(span.start), _exact(span.end)]
            row = [span.job, place + where, *times, number(span.amount)]
            told.append((span.start - span.end, at, span.start, row))
    kept = sorted(told)[: ROWS - 2 - min(len(left_out), MARKS)]
    rows = [row for _, _, _, row in sorted(kept, key=lambda one: one[1:3])]
    if len(told) > len(kept):
        rows.append([f"{len(told) - len(kept)} more", "left out; the record has them", "", "", ""])
    faults_first = sorted(left_out, key=lambda event: (not event.fault, event.at))
    for event in faults_first[:MARKS]:
        kind = "fault" if event.fault else "mark"
        rows.append([kind, shortened(event.words, 80), _exact(event.at), "", ""])
    if (more := len(left_out) - MARKS) > 0:
        rows.append([f"{more} more marks", "left out; the record has them", "", "", ""])
    return rows


def counted(job: str) -> str:
    """Puts job2 before job10."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(12), job)


def plural(unit: str) -> str:
    """What is scheduled, as more than one."""
    short = shortened(unit, 32)
    return short if short.endswith("s") else f"{short}s"


def shortened(words: str, most: int) -> str:
    """Both ends of a name: hosts of one cluster differ at either."""
    line = one_line(words)
    return (
        line if len(line) <= most else f"{line[: most // 2 - 1]}..{line[-(most - most // 2 - 1) :]}"
    )


def brief(value: float) -> str:
    """Seconds to three digits, without zeros at their end: `0.4`."""
    return f"{float(number(value)):.10g}"


def _exact(value: float) -> str:
    return f"{round(value, 3):.10g}"
