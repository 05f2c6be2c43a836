"""A rung's collectives without the trainer: how long they take, and over which road."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from probes.acceptance.measure import Ledger
from probes.cluster.byte_counters import growth, main_road, read_counters
from probes.scaling.plan import Plan, said
from reference_trainer.launch.gang import Gang, GangError, WorkerLost
from scaling.collectives.alpha_beta import Fit
from scaling.ladder.ladder import Rung
from scaling.loss.causes import beyond
from scaling.loss.replay import expected, least_sent
from scaling.loss.significance import median_error


@dataclass(frozen=True)
class Replay:
    """A rung's collectives without the trainer: seconds of each step after the rung (none: not
    timed) and before it, the fits of each collective, and nodes whose bytes took another road than
    the agreed one, and which."""

    steps: Sequence[float] = ()
    fits: Mapping[str, Fit] = field(default_factory=dict)
    strays: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[float] = ()

    @property
    def seconds(self) -> float | None:
        """Of the typical step, around the rung."""
        known = [statistics.median(steps) for steps in (self.before, self.steps) if steps]
        return statistics.fmean(known) if self.steps else None

    @property
    def drift(self) -> float:
        """Seconds by which the typical step before the rung and after it differ."""
        if not (self.before and self.steps):
            return 0.0
        return abs(statistics.median(self.steps) - statistics.median(self.before))


def mend(gang: Gang, error: GangError) -> None:
    """New workers where processes died, so that the rungs above can be climbed all the same."""
    if isinstance(error, WorkerLost):
        gang.mend(error.ranks)


def replayed(
    gang: Gang,
    names: dict[str, str],
    rungs: Sequence[Rung],
    plan: Plan,
    groups: Sequence[Sequence[int]],
    times: int,
    measure: Ledger,
) -> Replay:
    """So many steps' collectives, replayed without the trainer in groups of the gang's workers.

    An emulated accelerator leaves work for the core: what one node's step takes beyond it.
    """
    blocks = sum(moment is None for moment in plan.order)
    rest, busy = plan.config.pace_s / blocks, core_work(rungs[0], plan) / blocks
    patience = 60 + 4 * times * rungs[-1].seconds  # to connect, and to play what its steps did
    nodes = [names[gang.places[worker].node] for group in groups for worker in group]
    try:
        before = gang.run(read_counters, groups=groups, timeout=60)
        steps, fits = expected(gang, groups, plan.order, rest, busy, times, timeout=patience)
        after = gang.run(read_counters, groups=groups, timeout=60)
    except GangError as error:  # the rung itself is measured all the same
        measure.covered(f"communication on {said(len(set(nodes)))} was not timed: {error}")
        mend(gang, error)
        return Replay()
    sent = {node: growth(b, a) for node, b, a in zip(nodes, before, after, strict=True)}
    crossed = len(groups) == 1 and len(sent) > 1  # else ranks of one node are all there is
    least = least_sent(plan.order, len(nodes), times) if crossed else math.inf
    return Replay(steps, fits, astray(sent, plan.fabric, least))


def core_work(base: Rung, plan: Plan) -> float:
    """Seconds of a step that an emulated accelerator leaves for the core; 0 where it is real."""
    pace = plan.config.pace_s
    return max(0.0, base.seconds - pace) if pace else 0.0


def doubtful(here: Replay, alone: Replay, base: Rung, plan: Plan) -> float:
    """Seconds by which a rung's replay, less one node's, may be off.

    The noise of both, what it changed by while the rung ran; and where ranks share cores, a step's
    work for the core: who waits for whom there is not the same twice.
    """
    noise = math.hypot(median_error(here.steps), median_error(alone.steps))
    return beyond(noise, len(here.steps)) + here.drift + core_work(base, plan)


def astray(
    sent: Mapping[str, Mapping[str, int]], fabric: str | None, least: float
) -> dict[str, str]:
    """Nodes that sent most of their bytes over another road than the agreed one, and which.

    `sent` are bytes by node and road; a node had to send `least` of them: far less is not theirs.
    """
    found = {}
    for node, roads in sent.items():
        road = main_road(roads)
        if fabric and road != fabric and roads.get(road, 0) > least / 2:
            found[node] = road
    return found
