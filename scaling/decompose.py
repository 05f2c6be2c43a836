"""Where the time of a step goes: terms that sum to the step, and who keeps whom waiting.

Each rank cuts its step into consecutive segments, so they telescope.  Means over ranks and steps
are linear, hence for weak scaling, with E_n = T_1 / T_n,

    1 - E_n = sum over k of (C_k(n) - C_k(1)) / T_n      exactly.

Waiting for FSDP's collectives lies inside forward and backward, and no term claims to be it: on a
CPU it is not separable, and on a GPU the events that would tell it apart are not built yet.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Segments without a collective inside: what a rank spends there is its own doing.
OWN = ("data", "optimizer", "checkpoint", "other")


@dataclass(frozen=True)
class Step:
    """One rank's step: seconds, and the segments that sum to them."""

    seconds: float
    segments: dict[str, float]


def steps_of(spans: Sequence[dict[str, Any]]) -> list[Step]:
    """The trainer's span records as steps."""
    return [Step(record["seconds"], record["segments"]) for record in spans]


def terms(ranks: Sequence[Sequence[Step]]) -> dict[str, float]:
    """Mean seconds of each segment, over ranks and steps."""
    every = [step for steps in ranks for step in steps]
    return {
        name: sum(step.segments[name] for step in every) / len(every) for name in every[0].segments
    }


def mean_seconds(ranks: Sequence[Sequence[Step]]) -> float:
    """Mean seconds of a step, over ranks and steps: T_n."""
    every = [step.seconds for steps in ranks for step in steps]
    return sum(every) / len(every)


def residual(base: Sequence[Sequence[Step]], here: Sequence[Sequence[Step]]) -> float:
    """|(1 - E_n) - sum of the lost shares|: what the terms do not explain of the lost percent.

    E_n comes from whole steps, the shares from their segments, so a segment that is missing or
    counted twice shows here.
    """
    lost = 1 - mean_seconds(base) / mean_seconds(here)
    return abs(lost - sum(loss(terms(base), terms(here)).values()))


def unsummed(ranks: Sequence[Sequence[Step]]) -> float:
    """The largest |seconds - sum of segments| / seconds of any step; 0 where all add up.

    It sees what `residual` cannot: a segment that is missing in the same way on both rungs.
    """
    every = [step for steps in ranks for step in steps if step.seconds > 0]
    return max((abs(s.seconds - sum(s.segments.values())) / s.seconds for s in every), default=0.0)


def loss(base: dict[str, float], here: dict[str, float]) -> dict[str, float]:
    """Share of this rung's step that each term added since the base rung; sums to 1 - E_n."""
    total = sum(here.values())
    return {name: (seconds - base[name]) / total for name, seconds in here.items()}


@dataclass(frozen=True)
class Laggard:
    """Who holds the others up: its place in the list, in which segment, by what share of a step."""

    rank: int
    segment: str
    share: float


def laggard(ranks: Sequence[Sequence[Step]]) -> Laggard:
    """The rank whose own segments exceed the median rank's most, as a share of the mean step.

    Only segments without a collective are looked at: inside the others all ranks wait for the
    slowest, and so look alike.
    """
    mean, worst = mean_seconds(ranks), Laggard(0, "none", 0.0)
    for name in OWN:
        typical = [statistics.median(step.segments[name] for step in steps) for steps in ranks]
        middle = statistics.median_low(typical)
        rank = max(range(len(ranks)), key=typical.__getitem__)
        share = (typical[rank] - middle) / mean
        if share > worst.share:
            worst = Laggard(rank, name, share)
    return worst


def slow_node(seconds: dict[str, float]) -> tuple[str, float]:
    """The slowest node when each runs alone, and by what share it exceeds the median node."""
    node = max(seconds, key=lambda name: seconds[name])
    middle = statistics.median_low(seconds.values())
    return node, seconds[node] / middle - 1
