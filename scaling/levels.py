"""What meetings gained since one node, cut with the help of the nodes' own runs alone.

On a CPU, and wherever waiting is not separable, compute and communication lie together in the
meetings.  What tells them apart is the rung of one node, which every node ran alone: the slowest
of the nodes, step by step, is what the meetings would take if communication were free.  The rest is
communication.

    growth = slow + slowing + variation + tail + communication        exactly
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scaling.ladder import Rung
from scaling.noise import (
    clear,
    expected_maximum,
    followed,
    median_error,
    onset,
    outlying,
    rising,
    spread,
)
from scaling.skew import Account, account

# Equal steps repeat within this on a sound machine: half of the 8 % that the author of "NCCL Ring
# vs Tree for Multi-Node LLM Fine-Tuning" gives as the noise of whole runs.
QUIET = 0.04

STEADY = ("optimizer", "other")  # own work that a slow processor stretches

LIKELY = 1.64  # standard errors: one in twenty by chance, enough for a second witness

Series = Mapping[str, Sequence[float]]  # by node


@dataclass(frozen=True)
class Levels:
    """Seconds per step that meetings gained since one node; the five terms sum to `growth`.

    slow: the slowest node is that much slower alone.  slowing: nodes became slower over the window.
    variation: the slowest of all nodes varies from step to step.  tail: steps far above the
    typical step of this rung.  communication: the rest, with its standard `error`.
    `spikes` is how much of variation and tail is outliers, and noise above QUIET; `ordinary` what
    sound nodes' noise would cost.  `alone` is a meeting's seconds on one node.
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
    also_slow: tuple[str, ...] = ()
    slowing_node: str | None = None
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
    slowing, node, steady, met = _slowing(alone, own, account(here.steps).met(), here)
    slow_names = _slow(steady, own)
    slow = statistics.median(steady[slow_names[0]]) - first if slow_names else 0.0
    frontier, noise = _frontier(transfer, alone, steady)
    typical, expected = statistics.median(met), statistics.median(frontier)
    communication, variation, slow, fall = _positive(
        typical - expected - slowing.past,
        expected - first - slow,
        slow,
        slowing.now + slowing.past,
    )
    tail = statistics.fmean(met) - typical
    rough = {name: outlying(series, noise) for name, series in steady.items()}
    broad = expected_maximum(len(names)) * max(0.0, noise - QUIET * first)
    likely = broad + statistics.fmean(map(max, zip(*rough.values(), strict=True)))
    return Levels(
        growth=statistics.fmean(met) + slowing.now - first,
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
        also_slow=tuple(slow_names[1:]),
        slowing_node=node,
        spiky_node=_owner(rough),
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


@dataclass(frozen=True)
class _Slowing:
    """Seconds per step: lost to slowing in this rung, or before it, while the node ran alone."""

    now: float = 0.0
    past: float = 0.0


def _slowing(
    alone: dict[str, list[float]], own: dict[str, list[float]], met: list[float], here: Rung
) -> tuple[_Slowing, str | None, dict[str, list[float]], list[float]]:
    """(the cost, the node, the nodes' series and the rung's as if nothing had slowed down).

    A node that slowed down alone and is stable here has reached its lower speed before: it costs
    the whole fall in every step.
    """
    falls = _falls(alone, own)
    steady = {
        name: [x - y for x, y in zip(series, falls[name], strict=True)] if name in falls else series
        for name, series in alone.items()
    }
    worst = max(falls, key=lambda name: falls[name][-1], default=None)
    together = {name: own_work(here, name) for name in alone}
    shown = _own_falls(together)
    node = worst or max(shown, key=lambda name: shown[name][-1], default=None)
    scale = statistics.median(map(statistics.median, alone.values()))
    fits = [onset(met)] if rising(met) else []
    if node in shown:
        fits.append(followed(shown[node], met, scale))
    if fits := [fit for fit in fits if fit]:
        levels = [[x - y for x, y in zip(met, fit, strict=True)] for fit in fits]
        level, fit = min(zip(levels, fits, strict=True), key=lambda pair: spread(pair[0]))
        return _Slowing(now=statistics.fmean(fit)), node, steady, level
    past = _ahead(steady, worst, falls[worst][-1:])[0] if worst else 0.0
    return _Slowing(past=past), worst, steady, met


def _ahead(steady: Series, node: str, fall: list[float]) -> list[float]:
    """How far a fall of one node moves the frontier: not at all while another node is slower."""
    levels = {name: statistics.median(series) for name, series in steady.items()}
    room = max(levels.values()) - levels[node]
    return [max(0.0, value - room) for value in fall]


def _falls(alone: dict[str, list[float]], own: Series) -> dict[str, list[float]]:
    """By node that slowed down alone: seconds of its meetings above their start, by step.

    Its own work is the second witness, for it is quiet where single steps of meetings are far off.
    """
    peers, shown, found = list(alone.values()), _own_falls(own), {}
    for name, series in alone.items():
        if rising(series, len(alone), peers):
            found[name] = onset(series)
        elif name in shown and (fall := followed(shown[name], series, statistics.median(series))):
            found[name] = fall
    return found


def _own_falls(own: Series) -> dict[str, list[float]]:
    """By node whose own work grows over the window against the other nodes': by what share."""
    against = {name: relative(own, name) for name in own if len(own) > 1}
    peers = list(against.values())
    return {
        name: [value / statistics.median(own[name]) for value in onset(series)]
        for name, series in against.items()
        if rising(series, len(own), peers) and statistics.median(own[name]) > 0
    }


def own_work(rung: Rung, node: str) -> list[float]:
    """Seconds of a node's steady own work by step, mean over its ranks.

    Data and checkpoints are left out: they slow down for other reasons than the processor.
    """
    names = [name for name in STEADY if name in rung.steps[0][0].segments]
    return [
        statistics.fmean(sum(step.segments[name] for name in names) for step in at)
        for at in zip(*rung.on(node), strict=True)
    ]


def relative(series: Series, name: str) -> list[float]:
    """What one node's series is above the median of the others', step by step."""
    others = [values for other, values in series.items() if other != name]
    return [
        value - statistics.median(at)
        for value, at in zip(series[name], zip(*others, strict=True), strict=False)
    ]


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


def _owner(rough: Series) -> str | None:
    """The node with nearly all of the outliers, at least three of them; None if there is none."""
    count = {name: sum(value > 0 for value in series) for name, series in rough.items()}
    name = max(count, key=count.__getitem__)
    # Three quarters on one of two nodes or more is beyond chance only from some events on.
    chance = 0.5 ** count[name]
    return name if count[name] >= 0.75 * sum(count.values()) and chance < 0.01 else None


@dataclass(frozen=True)
class Own:
    """What one own segment gained since one node, seconds per step: common + sum of `nodes`.

    common: every node is slower, `shared` if beyond the noise.  nodes: what the job waited for one
    node that came last, beyond the median rank; `tied` are those slower beyond the noise.
    """

    segment: str
    common: float
    shared: bool
    nodes: dict[str, float]
    tied: tuple[str, ...]
    alone: float


def own_levels(base: Rung, here: Rung, mine: Account, first: Account) -> list[Own]:
    """What each segment without a collective gained.  `mine`, `first`: the accounts of the two."""
    names = list(dict.fromkeys(here.nodes))
    segments = [name for name in here.steps[0][0].segments if name not in mine.transfer]
    found = []
    for segment in segments:
        typical, extra = _typical(mine, segment)
        before, waited = _typical(first, segment)
        nodes = dict.fromkeys(names, 0.0)
        for rank, seconds in extra.items():
            nodes[here.nodes[rank]] += seconds
        # The ranks of one node wait for each other as well: that much is no loss of this rung.
        beyond, known = sum(nodes.values()), sum(waited.values())
        nodes = {n: s - known * s / beyond if beyond > 0 else 0.0 for n, s in nodes.items()}
        growth = statistics.fmean(mine.own(segment)) - statistics.fmean(first.own(segment))
        more = [x - y for x, y in zip(typical, before, strict=False)]
        found.append(
            Own(
                segment=segment,
                common=growth - sum(nodes.values()),
                shared=clear(more, tests=len(segments)),
                nodes=nodes,
                tied=_tied(here, segment, len(names) * len(segments)),
                alone=statistics.fmean(before),
            )
        )
    return found


def _typical(found: Account, segment: str) -> tuple[list[float], dict[int, float]]:
    """(the median rank's seconds by step, mean seconds that each rank cost beyond it)."""
    typical, extra = [0.0] * found.steps, dict[int, float]()
    for charge in found.charges:
        if charge.segment == segment:
            typical[charge.step] += charge.typical
            if charge.rank is not None:
                more = (charge.seconds - charge.typical) / found.steps
                extra[charge.rank] = extra.get(charge.rank, 0.0) + more
    return typical, extra


def _tied(here: Rung, segment: str, tests: int) -> tuple[str, ...]:
    """Nodes whose slowest rank is slower in this segment than the other nodes', beyond noise."""
    names = list(dict.fromkeys(here.nodes))
    if len(names) < 2:
        return ()
    slowest = {
        name: [
            max(step.segments[segment] for step in at) for at in zip(*here.on(name), strict=True)
        ]
        for name in names
    }
    return tuple(name for name in names if clear(relative(slowest, name), tests=tests))
