"""Splits a step's time into terms that sum to the step, and finds stragglers.

Each rank cuts its step into consecutive segments, so they telescope. Means over ranks and steps are
linear. Hence for weak scaling, with E_n = T_1 / T_n,

    1 - E_n = sum over k of (C_k(n) - C_k(1)) / T_n      exactly.

Waits for FSDP's collectives are inside forward and backward. On GPUs the trainer's clock measures
these waits, and they are separate terms. On a CPU they are not separable, and no term shows them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scaling.bounds import Part, Seconds

# Segments without a collective: the time spent there depends on the rank alone.
LOCAL_SEGMENTS = ("data", "optimizer", "checkpoint", "other")


@dataclass(frozen=True)
class Step:
    """One rank's step: seconds, and the segments that sum to them.

    `exposed` is the time in a segment that was spent waiting, by collective: {segment:
    {collective: seconds}}. It is empty if waits are not separable. `wall` is the step's seconds
    by the host's own clock; None if it was not read.
    """

    seconds: Seconds
    segments: dict[str, Part]
    exposed: dict[str, dict[str, Part]] = field(default_factory=dict)
    wall: Seconds | None = None

    def seconds_in(self, segments: Sequence[str]) -> float:
        """Sum the seconds of these segments, waits included."""
        return sum(self.segments[name] for name in segments)

    @property
    def waits(self) -> dict[str, float]:
        """Seconds of waiting by collective, over all segments."""
        names = dict.fromkeys(name for waits in self.exposed.values() for name in waits)
        return {n: sum(waits.get(n, 0.0) for waits in self.exposed.values()) for n in names}

    def compute_in(self, segments: Sequence[str]) -> float:
        """Sum the seconds of these segments, waits excluded."""
        waited = sum(sum(self.exposed.get(name, {}).values()) for name in segments)
        return self.seconds_in(segments) - waited

    @property
    def terms(self) -> dict[str, float]:
        """Seconds by segment without its waits, and by collective waited for.

        The waits for a collective follow the segment in which it first appears.
        """
        result, waited = dict[str, float](), self.waits
        for name, seconds in self.segments.items():
            waits = self.exposed.get(name, {})
            result[name] = seconds - sum(waits.values())
            result |= {f"exposed {collective}": waited[collective] for collective in waits}
        return result


def parse_steps(spans: Sequence[dict[str, Any]]) -> list[Step]:
    """Convert the trainer's span records to steps."""
    return [
        Step(span["seconds"], span["segments"], span.get("exposed", {}), span.get("wall"))
        for span in spans
    ]


def by_step(
    ranks: Sequence[Sequence[Step]],
    seconds: Callable[[Step], float],
    combine: Callable[[list[float]], float] = statistics.fmean,
) -> list[float]:
    """Combine a value of all ranks, step by step, for example by mean or maximum."""
    return [combine([seconds(step) for step in row]) for row in zip(*ranks, strict=True)]


def mean_terms(ranks: Sequence[Sequence[Step]]) -> dict[str, float]:
    """Return the mean seconds of each term over ranks and steps: segments, and separable waits."""
    all_terms = [step.terms for steps in ranks for step in steps]
    names = dict.fromkeys(name for step_terms in all_terms for name in step_terms)
    return {
        name: sum(step_terms.get(name, 0.0) for step_terms in all_terms) / len(all_terms)
        for name in names
    }


def mean_seconds(ranks: Sequence[Sequence[Step]]) -> float:
    """Return the mean seconds of a step, over ranks and steps: T_n."""
    seconds = [step.seconds for steps in ranks for step in steps]
    return sum(seconds) / len(seconds)


def loss_residual(base: Sequence[Sequence[Step]], current: Sequence[Sequence[Step]]) -> float:
    """Return |(1 - E_n) - sum of the lost shares|: the part of the loss that no term explains.

    E_n comes from complete steps, the shares from their segments. So a segment that is missing
    or counted twice shows here. On a GPU a step is the sum of its segments; there `wall_gap`
    finds such errors.
    """
    lost = 1 - mean_seconds(base) / mean_seconds(current)
    return abs(lost - sum(loss_by_term(mean_terms(base), mean_terms(current)).values()))


def largest(values: Iterable[float | None]) -> float | None:
    """Return the largest value; None if there are no values, or if one is None or NaN.

    A plain maximum could hide a NaN.
    """
    known = list(values)
    numbers = [value for value in known if value is not None and not math.isnan(value)]
    return max(numbers) if numbers and len(numbers) == len(known) else None


def segment_gap(ranks: Sequence[Sequence[Step]]) -> float | None:
    """Return the largest |seconds - sum of segments| / seconds of any step; 0 if all add up.

    It finds what `loss_residual` cannot: a segment that is missing on both rungs alike. None
    without steps, or if a step has no length.
    """
    return largest(
        abs(step.seconds - sum(step.segments.values())) / step.seconds if step.seconds > 0 else None
        for steps in ranks
        for step in steps
    )


def wall_gap(ranks: Sequence[Sequence[Step]]) -> float | None:
    """Return the largest relative difference between a rank's summed steps and the host's clock.

    It finds time that no segment contains, or that two contain. Sums made from the same clock
    readings cannot show that. None if the host's clock was not read in every step.
    """
    gaps: list[float | None] = []
    for steps in ranks:
        walls = [step.wall for step in steps if step.wall is not None]
        total = sum(walls) if len(walls) == len(steps) else 0.0
        gaps.append(abs(sum(s.seconds for s in steps) - total) / total if total > 0 else None)
    return largest(gaps)


def loss_by_term(base: dict[str, float], current: dict[str, float]) -> dict[str, float]:
    """Return each term's growth since the base rung, as a share of this rung's step.

    The shares sum to 1 - E_n.
    """
    total = sum(current.values())
    names = dict.fromkeys([*current, *base])
    return {name: (current.get(name, 0.0) - base.get(name, 0.0)) / total for name in names}


@dataclass(frozen=True)
class Straggler:
    """A rank that delays the others: `segment` is where, `share` the excess as a share of a step.

    `rank` is its index in the list of ranks.
    """

    rank: int
    segment: str
    share: float


def find_stragglers(ranks: Sequence[Sequence[Step]]) -> list[Straggler]:
    """Find each rank's worst excess over the median rank, as a share of the mean step; worst first.

    Only segments without a collective are compared: in the others all ranks wait for the
    slowest, and look alike. A rank that exceeds the median nowhere gets segment "none".
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
    """Return the lower median of the values that are not NaN; NaN if there are none."""
    numbers = [value for value in values if not math.isnan(value)]
    return statistics.median_low(numbers) if numbers else math.nan


def _share(value: float) -> float:
    """Return the value, or infinity for NaN, so that NaN compares as worse than any number."""
    return math.inf if math.isnan(value) else value


def slowest_nodes(seconds: dict[str, float]) -> list[tuple[str, float]]:
    """Rank the nodes by their seconds when each runs alone, slowest first, with relative excess.

    The excess is relative to the median; for an even number, to the lower median. So even half
    of the nodes can be slow and still show.
    """
    median = _low_median(seconds.values())
    excess = [(node, _share(took / median - 1)) for node, took in seconds.items()]
    return sorted(excess, key=lambda one: one[1], reverse=True)
