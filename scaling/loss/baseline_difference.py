"""What meetings gained since one node, cut with the help of the nodes' own runs alone.

Compute and communication lie together in the meetings, and compute grows for reasons of its own.
What tells them apart is the rung of one node, which every node ran alone: the slowest of the nodes,
step by step, is what the meetings would take if communication were free.  The rest is
communication.

    growth = slow + slowing + variation + tail + communication        exactly
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scaling.ladder.ladder import Rung
from scaling.ladder.skew import account
from scaling.loss.significance import (
    Series,
    clear,
    expected_maximum,
    median_error,
    outlying,
    owner,
    relative,
    spread,
)
from scaling.loss.slow_under_load import also_there
from scaling.loss.throttling import own_work, slowing_of

# Equal steps repeat within this on a sound machine: half of the 8 % that the author of "NCCL Ring
# vs Tree for Multi-Node LLM Fine-Tuning" gives as the noise of whole runs.
QUIET = 0.04

LIKELY = 1.64  # standard errors: one in twenty by chance, enough for a second witness


@dataclass(frozen=True)
class Levels:
    """Seconds per step that meetings gained since one node; the five terms sum to `growth`.

    slow: the slowest node is that much slower alone.  slowing: nodes became slower over the window.
    variation: the slowest of all nodes varies from step to step.  tail: steps far above the
    typical step of this rung.  communication: the rest, with its standard `error`.
    `spikes` is how much of variation and tail is outliers, and noise above QUIET; `ordinary` what
    sound nodes' noise would cost.  `alone` is a meeting's seconds on one node.  `also_slow` are
    nodes slower by less than `slow_node`, and how much: the job does not wait for them.
    `slowing_told` is whether compute is known to be what became slower.
    """

    growth: float
    slow: float
    slowing: float
    variation: float
    tail: float
    communication: float
    error: float
    spikes: float
    ordinary: float
    alone: float
    slow_node: str | None = None
    also_slow: Mapping[str, float] = field(default_factory=dict)
    slowing_node: str | None = None
    slowing_told: bool = True
    spiky_node: str | None = None


def levels(base: Rung, here: Rung) -> Levels:
    """Cut what the meetings of a rung gained.  `base` is the rung of one node, run on every node.

    ValueError where a node of `here` did not run alone.
    """
    names = list(dict.fromkeys(here.nodes))
    if missing := [name for name in names if name not in base.nodes]:
        raise ValueError(f"no run alone of {', '.join(missing)}: the rung of 1 node lacks it")
    transfer = {name: account(base.on(name)).transfer for name in names}
    alone = {name: _summed(series.values()) for name, series in transfer.items()}
    own = {name: own_work(base, name) for name in names}
    first = statistics.fmean(account(base.median_node()).met())
    slowing, node, steady, met = slowing_of(alone, own, account(here.steps).met(), here)
    slow_names = _slow(steady, own)
    if slow_names and base.separable and here.separable:
        # A node that slows down is most of what two others, or one, are compared with.
        alike = len(names) > 3 or not (slowing.now or slowing.past)
        compared = [name for name in slow_names if alike or name == node]
        steady = also_there(steady, compared, base, here)
        slow_names = _slow(steady, {name: own_work(here, name) for name in names})
    slow = statistics.median(steady[slow_names[0]]) - first if slow_names else 0.0
    frontier, noise = _frontier(transfer, alone, steady)
    typical, expected = statistics.median(met), statistics.median(frontier)
    communication, variation, slow, fall = _positive(
        typical - expected - slowing.past + slowing.waited,
        expected - first - slow,
        slow,
        slowing.now + slowing.past,
    )
    tail = statistics.fmean(met) - typical
    rough = {name: outlying(series, noise) for name, series in steady.items()}
    broad = expected_maximum(len(names)) * max(0.0, noise - QUIET * first)
    likely = broad + statistics.fmean(map(max, zip(*rough.values(), strict=True)))
    return Levels(
        growth=statistics.fmean(met) + slowing.now + slowing.waited - first,
        slow=slow,
        slowing=fall,
        variation=variation,
        tail=tail,
        communication=communication,
        error=math.hypot(median_error(met), median_error(frontier)),
        spikes=max(statistics.fmean(outlying(met)), min(likely, max(0.0, tail + variation))),
        ordinary=expected_maximum(len(names)) * min(noise, QUIET * first),
        alone=first,
        slow_node=slow_names[0] if slow_names else None,
        also_slow={name: statistics.median(steady[name]) - first for name in slow_names[1:]},
        slowing_node=node,
        slowing_told=slowing.told,
        spiky_node=owner({n: sum(value > 0 for value in at) for n, at in rough.items()}),
    )


def _summed(series: Iterable[Sequence[float]]) -> list[float]:
    return [sum(at) for at in zip(*series, strict=True)]


def _frontier(
    transfer: Mapping[str, dict[str, list[float]]], alone: Series, steady: Series
) -> tuple[list[float], float]:
    """(seconds of all meetings by step if communication were free, a node's noise in them).

    Nodes wait for the slowest in every meeting anew, so it is the maxima that are added up, and
    the noise of each.  What was taken out of a node's step as slowing is taken out of each meeting.
    """
    series: dict[str, list[list[float]]] = {}
    for name, meetings in transfer.items():
        kept = [x / y if y else 1.0 for x, y in zip(steady[name], alone[name], strict=True)]
        for segment, spent in meetings.items():
            level = [x * y for x, y in zip(spent, kept, strict=True)]
            series.setdefault(segment, []).append(level)
    slowest = [[max(at) for at in zip(*nodes, strict=True)] for nodes in series.values()]
    noise = sum(statistics.median(map(spread, nodes)) for nodes in series.values())
    return _summed(slowest), noise


def _slow(steady: Series, own: Series) -> list[str]:
    """Nodes that are slower than the others beyond the noise, the slowest first.

    Clear in meetings; or clear in their own work, and at least likely in meetings.
    """
    if len(steady) < 2:
        return []
    found = []
    for name in steady:
        more = relative(steady, name)
        likely = statistics.median(more) > LIKELY * median_error(more)
        if clear(more, len(steady)) or (likely and clear(relative(own, name), len(own))):
            found.append(name)
    return sorted(found, key=lambda name: -statistics.median(steady[name]))


def _positive(*terms: float) -> tuple[float, ...]:
    """The same sum, where a term below 0 is taken out of the next.

    Communication is never below 0: where it would be, the nodes alone varied more than here.
    """
    found, debt = [], 0.0
    for term in terms:
        found.append(max(0.0, term + debt))
        debt = min(0.0, term + debt)
    found[1] += debt  # a rung faster than one node: variation may be a gain
    return tuple(found)
