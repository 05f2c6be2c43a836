"""A rung's collectives without the trainer: how long they take, and over which road."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from probes.cluster.byte_counters import counter_growth, main_device, read_counters
from probes.scaling.plan import LadderRig, Plan, node_count_text
from reference_trainer.launch.gang import Gang, GangError, WorkerLost
from scaling.collectives.alpha_beta import Fit
from scaling.ladder.ladder import Rung
from scaling.loss.causes import noise_limit
from scaling.loss.replay import min_bytes_sent, time_collectives
from scaling.loss.significance import median_error


@dataclass(frozen=True)
class Replay:
    """A rung's collectives without the trainer: seconds of each step after the rung (none: not
    timed) and before it, the fits of each collective, and nodes whose bytes took another road than
    the agreed one, and which."""

    after: Sequence[float] = ()
    fits: Mapping[str, Fit] = field(default_factory=dict)
    off_fabric: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[float] = ()

    @property
    def seconds(self) -> float | None:
        """Of the typical step, around the rung."""
        known = [statistics.median(steps) for steps in (self.before, self.after) if steps]
        return statistics.fmean(known) if self.after else None

    @property
    def drift(self) -> float:
        """Seconds by which the typical step before the rung and after it differ."""
        if not (self.before and self.after):
            return 0.0
        return abs(statistics.median(self.after) - statistics.median(self.before))


def replace_lost_workers(gang: Gang, error: GangError) -> None:
    """Start new workers where processes died, or wait for one that failed, so that what comes next
    can be run all the same."""
    if isinstance(error, WorkerLost):
        if error.ranks:
            gang.replace_workers(error.ranks)
        else:
            gang.replace_waiting()


def replay_collectives(
    rig: LadderRig, rungs: Sequence[Rung], plan: Plan, groups: Sequence[Sequence[int]], repeats: int
) -> Replay:
    """So many steps' collectives, replayed without the trainer in groups of the gang's workers.

    An emulated accelerator leaves work for the core: what one node's step takes beyond it.
    """
    gang, blocks = rig.gang, sum(moment is None for moment in plan.order)
    sleep_s, busy = plan.config.pace_s / blocks, core_work(rungs[0], plan) / blocks
    timeout_s = 60 + 4 * repeats * rungs[-1].seconds  # to connect, and to play what its steps did
    nodes = [rig.node_names[gang.places[worker].node] for group in groups for worker in group]
    try:
        before = gang.run(read_counters, groups=groups, timeout=60)
        played = gang, groups, plan.order, sleep_s, busy, repeats
        steps, fits = time_collectives(*played, timeout=timeout_s)
        after = gang.run(read_counters, groups=groups, timeout=60)
    except GangError as error:  # the rung itself is measured all the same
        on = node_count_text(len(set(nodes)))
        rig.measure.covered(f"communication on {on} was not timed: {error}")
        replace_lost_workers(gang, error)
        return Replay()
    sent = {node: counter_growth(b, a) for node, b, a in zip(nodes, before, after, strict=True)}
    crossed = len(groups) == 1 and len(sent) > 1  # else ranks of one node are all there is
    min_bytes = min_bytes_sent(plan.order, len(nodes), repeats) if crossed else math.inf
    return Replay(steps, fits, nodes_off_fabric(sent, plan.fabric, min_bytes))


def core_work(base: Rung, plan: Plan) -> float:
    """Seconds of a step that an emulated accelerator leaves for the core; 0 where it is real."""
    pace = plan.config.pace_s
    return max(0.0, base.seconds - pace) if pace else 0.0


def replay_uncertainty(replay: Replay, single: Replay, base: Rung, plan: Plan) -> float:
    """Seconds by which a rung's replay, less one node's, may be off.

    The noise of both, what it changed by while the rung ran; and where ranks share cores, a step's
    work for the core: who waits for whom there is not the same twice.
    """
    noise = math.hypot(median_error(replay.after), median_error(single.after))
    return noise_limit(noise, len(replay.after)) + replay.drift + core_work(base, plan)


def nodes_off_fabric(
    sent: Mapping[str, Mapping[str, int | None]], fabric: str | None, min_bytes: float
) -> dict[str, str]:
    """Find nodes that sent most of their bytes over another road than the agreed one, and which.

    `sent` are bytes by node and road; a node had to send `min_bytes`: far less is not theirs.
    """
    off_fabric = {}
    for node, by_interface in sent.items():
        interface = main_device(by_interface)
        if fabric and interface != fabric and (by_interface.get(interface) or 0) > min_bytes / 2:
            off_fabric[node] = interface
    return off_fabric
