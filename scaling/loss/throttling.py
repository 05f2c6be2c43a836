"""Nodes that become slower while they run: in a rung, or before it, while they ran alone.

Two witnesses are heard: the time in meetings, and the node's own work between them.  The second is
quieter, and it has a name, while in a meeting all wait for the slowest and look alike.  Where own
work tells nothing, the waiting may: who is slow behind a meeting's last collective is awaited in
the next one, and spends least there.  Its links may be what is slow; where waits are timed, the
time in meetings is heard less its waits, and nobody is guessed at.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.ladder.ladder import Rung
from scaling.ladder.skew import MEETINGS, computing, split
from scaling.ladder.step_breakdown import mean_seconds
from scaling.loss.significance import Series, followed, onset, owner, relative, rising, spread

# Of three ranks two wait for the third, so a mean rank waits two thirds of what it costs; in the
# meeting where the third is late it is one third.
MOST = 0.6

STEADY = ("optimizer", "other")  # own work that a slow processor stretches


@dataclass(frozen=True)
class Slowing:
    """Seconds per step: lost to slowing in this rung, or before it, while the node ran alone.

    waited: lost in this rung as timed waits became longer, which is no slowing.  told: whether
    compute is known to be what slowed down.
    """

    now: float = 0.0
    past: float = 0.0
    waited: float = 0.0
    told: bool = True


def slowing_of(
    alone: dict[str, list[float]], own: dict[str, list[float]], met: list[float], here: Rung
) -> tuple[Slowing, str | None, dict[str, list[float]], list[float]]:
    """(the cost, the node, the nodes' series and the rung's as if nothing had become slower).

    A node that slowed down alone and is stable here has reached its lower speed before: it costs
    the whole fall in every step.
    """
    falls = _falls(alone, own)
    steady = {
        name: _less(series, falls[name]) if name in falls else series
        for name, series in alone.items()
    }
    worst = max(falls, key=lambda name: falls[name][-1], default=None)
    together = {name: own_work(here, name) for name in alone}
    shown = _own_falls(together)
    node = max(shown, key=lambda name: shown[name][-1], default=worst)
    scale = statistics.median(map(statistics.median, alone.values()))
    busy, waited = met, 0.0
    if here.separable:
        busy = computing(here.steps, here.steps[0][0].exposed)
        waits = _less(met, busy)
        if rising(waits):
            longer = onset(waits)
            waited, met = statistics.fmean(longer), _less(met, longer)
    fits = [onset(busy)] if rising(busy) else []
    if node in shown:
        fits.append(followed(shown[node], busy, scale))
    if fits := [fit for fit in fits if fit]:
        fit = min(fits, key=lambda fit: spread(_less(busy, fit)))
        told = here.separable or node in shown
        node = node if told else _awaited(here, fit) or node
        cost = Slowing(statistics.fmean(fit), waited=waited, told=told)
        return cost, node, steady, _less(met, fit)
    past = _ahead(steady, worst, falls[worst][-1:])[0] if worst else 0.0
    return Slowing(past=past, waited=waited), worst, steady, met


def _less(series: Sequence[float], other: Sequence[float]) -> list[float]:
    return [x - y for x, y in zip(series, other, strict=True)]


def _awaited(here: Rung, fall: Sequence[float]) -> str | None:
    """The node that the others wait for in a meeting of the steps that fell; None if not clear.

    Of two ranks each may wait for the other, so they show nobody.
    """
    late = [more > max(fall) / 2 for more in fall]
    if len(here.steps) < 3 or all(late):
        return None
    fell, before = (
        [[step for step, at in zip(steps, late, strict=True) if at is then] for steps in here.steps]
        for then in (True, False)
    )
    lost = mean_seconds(fell) - mean_seconds(before)
    for segment in MEETINGS:
        if segment in fell[0][0].segments:
            cut = split(fell, segment)
            if cut.skew - split(before, segment).skew > MOST * lost > 0:
                return owner(Counter(here.nodes[rank] for rank in cut.last))
    return None


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

    Data and checkpoints are left out: they slow down for other reasons than the processor.  What it
    computes in meetings is in it where waits are timed.
    """
    first = rung.steps[0][0]
    timed = first.exposed if rung.separable else ()
    names = [name for name in first.segments if name in STEADY or name in timed]
    return [
        statistics.fmean(step.computed(names) for step in at)
        for at in zip(*rung.on(node), strict=True)
    ]
