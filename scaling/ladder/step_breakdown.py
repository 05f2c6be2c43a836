"""Where the time of a step goes: terms that sum to the step, and who keeps whom waiting.

Each rank cuts its step into consecutive segments, so they telescope.  Means over ranks and steps
are linear, hence for weak scaling, with E_n = T_1 / T_n,

    1 - E_n = sum over k of (C_k(n) - C_k(1)) / T_n      exactly.

Waiting for FSDP's collectives lies inside forward and backward.  Where the trainer's clock tells it
apart, on GPUs, it is terms of its own; on a CPU it is not separable, and no term claims to be it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scaling.bounds import Part, Seconds

# Segments without a collective inside: what a rank spends there is its own doing.
LOCAL_SEGMENTS = ("data", "optimizer", "checkpoint", "other")


@dataclass(frozen=True)
class Step:
    """One rank's step: seconds, and the segments that sum to them.

    `exposed` is how much of a segment was waiting for which collective: {segment: {collective:
    seconds}}; empty where that is not separable.  `wall` is what the host's own clock says, in
    seconds; None where it was not read.
    """

    seconds: Seconds
    segments: dict[str, Part]
    exposed: dict[str, dict[str, Part]] = field(default_factory=dict)
    wall: Seconds | None = None

    def seconds_in(self, segments: Sequence[str]) -> float:
        """Seconds in these segments, with what they waited."""
        return sum(self.segments[name] for name in segments)

    @property
    def waits(self) -> dict[str, float]:
        """Seconds by collective, in all segments together."""
        names = dict.fromkeys(name for waits in self.exposed.values() for name in waits)
        return {n: sum(waits.get(n, 0.0) for waits in self.exposed.values()) for n in names}

    def compute_in(self, segments: Sequence[str]) -> float:
        """Seconds in these segments, without what they waited."""
        waited = sum(sum(self.exposed.get(name, {}).values()) for name in segments)
        return self.seconds_in(segments) - waited

    @property
    def terms(self) -> dict[str, float]:
        """Seconds by segment without its waits, which follow the segment that they are first in."""
        result, waited = dict[str, float](), self.waits
        for name, seconds in self.segments.items():
            waits = self.exposed.get(name, {})
            result[name] = seconds - sum(waits.values())
            result |= {f"exposed {collective}": waited[collective] for collective in waits}
        return result


def parse_steps(spans: Sequence[dict[str, Any]]) -> list[Step]:
    """The trainer's span records as steps."""
    return [
        Step(span["seconds"], span["segments"], span.get("exposed", {}), span.get("wall"))
        for span in spans
    ]


def by_step(
    ranks: Sequence[Sequence[Step]],
    seconds: Callable[[Step], float],
    combine: Callable[[list[float]], float] = statistics.fmean,
) -> list[float]:
    """Combine what ranks spent, step by step: their mean, or the most of all."""
    return [combine([seconds(step) for step in row]) for row in zip(*ranks, strict=True)]


def mean_terms(ranks: Sequence[Sequence[Step]]) -> dict[str, float]:
    """Mean seconds of each term, over ranks and steps: segments, and what is separable of them."""
    all_terms = [step.terms for steps in ranks for step in steps]
    names = dict.fromkeys(name for step_terms in all_terms for name in step_terms)
    return {
        name: sum(step_terms.get(name, 0.0) for step_terms in all_terms) / len(all_terms)
        for name in names
    }


def mean_seconds(ranks: Sequence[Sequence[Step]]) -> float:
    """Mean seconds of a step, over ranks and steps: T_n."""
    seconds = [step.seconds for steps in ranks for step in steps]
    return sum(seconds) / len(seconds)


def loss_residual(base: Sequence[Sequence[Step]], current: Sequence[Sequence[Step]]) -> float:
    """|(1 - E_n) - sum of the lost shares|: what the terms do not explain of the lost percent.

    E_n comes from whole steps, the shares from their segments, so a segment that is missing or
    counted twice shows here.  On a GPU a step is the sum of its segments: there `wall_gap` sees it.
    """
    lost = 1 - mean_seconds(base) / mean_seconds(current)
    return abs(lost - sum(loss_by_term(mean_terms(base), mean_terms(current)).values()))


def largest(values: Iterable[float | None]) -> float | None:
    """The largest; None of none, and where one is no number, which a maximum may hide."""
    known = list(values)
    numbers = [value for value in known if value is not None and not math.isnan(value)]
    return max(numbers) if numbers and len(numbers) == len(known) else None


def segment_gap(ranks: Sequence[Sequence[Step]]) -> float | None:
    """The largest |seconds - sum of segments| / seconds of any step; 0 where all add up.

    It sees what `residual` cannot: a segment that is missing in the same way on both rungs.  None
    where there is no step, or one of no length.
    """
    return largest(
        abs(step.seconds - sum(step.segments.values())) / step.seconds if step.seconds > 0 else None
        for steps in ranks
        for step in steps
    )


def wall_gap(ranks: Sequence[Sequence[Step]]) -> float | None:
    """The largest share by which a rank's steps together differ from the host's clock over them.

    It sees what sums cannot where they are made of the same readings: time that no segment holds,
    or that two hold.  None where the host's clock was not read in every step.
    """
    gaps: list[float | None] = []
    for steps in ranks:
        walls = [step.wall for step in steps if step.wall is not None]
        total = sum(walls) if len(walls) == len(steps) else 0.0
        gaps.append(abs(sum(s.seconds for s in steps) - total) / total if total > 0 else None)
    return largest(gaps)


def loss_by_term(base: dict[str, float], current: dict[str, float]) -> dict[str, float]:
    """Share of this rung's step that each term added since the base rung; sums to 1 - E_n."""
    total = sum(current.values())
    names = dict.fromkeys([*current, *base])
    return {name: (current.get(name, 0.0) - base.get(name, 0.0)) / total for name in names}


@dataclass(frozen=True)
class Straggler:
    """Who holds the others up: its place in the list, in which segment, by what share of a step."""

    rank: int
    segment: str
    share: float


def find_stragglers(ranks: Sequence[Sequence[Step]]) -> list[Straggler]:
    """Each rank's worst excess over the median rank, as a share of the mean step; worst rank first.

    Only segments without a collective are looked at: inside the others all ranks wait for the
    slowest, and so look alike.  A rank that exceeds the median nowhere is in segment "none".
    """
    mean, worst = mean_seconds(ranks), [Straggler(rank, "none", 0.0) for rank in range(len(ranks))]
    for name in LOCAL_SEGMENTS:
        medians = [statistics.median(step.segments[name] for step in steps) for steps in ranks]
        median = _low_median(medians)
        for rank, seconds in enumerate(medians):
            share = _share((seconds - median) / mean)
            if share > worst[rank].share:
                worst[rank] = Straggler(rank, name, share)
    return sorted(worst, key=lambda one: one.share, reverse=True)


def _low_median(values: Iterable[float]) -> float:
    """The lower median of those that are numbers."""
    numbers = [value for value in values if not math.isnan(value)]
    return statistics.median_low(numbers) if numbers else math.nan


def _share(value: float) -> float:
    """A share that can be compared: one that is no number is worse than any, and no value."""
    return math.inf if math.isnan(value) else value


def slowest_nodes(seconds: dict[str, float]) -> list[tuple[str, float]]:
    """The nodes when each runs alone, slowest first, and by what share each exceeds the median.

    Of an even number the lower median is the measure, so half of the nodes can be slow and show.
    """
    median = _low_median(seconds.values())
    excess = [(node, _share(took / median - 1)) for node, took in seconds.items()]
    return sorted(excess, key=lambda one: one[1], reverse=True)
