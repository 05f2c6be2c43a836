"""Replays a rung's collectives without the trainer: their time, and the interface they use."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from probes.cluster.byte_counters import (
    counter_growth,
    join_fabric,
    main_device,
    read_counters,
)
from probes.scaling.plan import LadderRig, Plan, node_count_text
from reference_trainer.launch.gang import Gang, GangError, WorkerLost
from scaling.collectives.alpha_beta import Fit
from scaling.ladder.ladder import Rung
from scaling.loss.causes import noise_limit
from scaling.loss.replay import min_bytes_sent, time_collectives
from scaling.loss.significance import median_error


@dataclass(frozen=True)
class Replay:
    """Result of replaying a rung's collectives without the trainer.

    `after` and `before` are the seconds of each step, after and before the rung (empty: not timed).
    `fits` is the alpha-beta fit of each collective.  `off_fabric` maps each node whose bytes left
    the agreed fabric to the interface that it used.
    """

    after: Sequence[float] = ()
    fits: Mapping[str, Fit] = field(default_factory=dict)
    off_fabric: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[float] = ()

    @property
    def seconds(self) -> float | None:
        """Seconds of a typical step: mean of both medians; None without `after`."""
        known = [statistics.median(steps) for steps in (self.before, self.after) if steps]
        return statistics.fmean(known) if self.after else None

    @property
    def drift(self) -> float:
        """Seconds by which the medians before and after the rung differ; 0 if one is missing."""
        if not (self.before and self.after):
            return 0.0
        return abs(statistics.median(self.after) - statistics.median(self.before))


def replace_lost_workers(gang: Gang, error: GangError) -> None:
    """Replace workers that died, or that wait for a failed rank, so that later runs can start."""
    if isinstance(error, WorkerLost):
        if error.ranks:
            gang.replace_workers(error.ranks)
        else:
            gang.replace_waiting()


def replay_collectives(
    rig: LadderRig, rungs: Sequence[Rung], plan: Plan, groups: Sequence[Sequence[int]], repeats: int
) -> Replay:
    """Replay the collectives of `repeats` steps without the trainer, in groups of workers.

    An emulated accelerator leaves work for the CPU core: the time of one node's step beyond
    `pace_s`.  If the replay fails, that is noted and an empty Replay is returned.
    """
    gang, blocks = rig.gang, sum(moment is None for moment in plan.order)
    sleep_s, busy = plan.config.pace_s / blocks, core_work(rungs[0], plan) / blocks
    timeout_s = 60 + 4 * repeats * rungs[-1].seconds  # to connect, and to replay the steps
    nodes = [rig.node_names[gang.places[worker].node] for group in groups for worker in group]
    try:
        before = gang.run(read_counters, groups=groups, timeout=60)
        played = gang, groups, plan.order, sleep_s, busy, repeats
        steps, fits = time_collectives(*played, timeout=timeout_s)
        after = gang.run(read_counters, groups=groups, timeout=60)
    except GangError as error:  # the measurement of the rung remains valid
        on = node_count_text(len(set(nodes)))
        rig.measure.covered(f"communication on {on} was not timed: {error}")
        replace_lost_workers(gang, error)
        return Replay()
    sent = {node: counter_growth(b, a) for node, b, a in zip(nodes, before, after, strict=True)}
    crossed = len(groups) == 1 and len(sent) > 1  # otherwise all ranks are on one node
    min_bytes = min_bytes_sent(plan.order, len(nodes), repeats) if crossed else math.inf
    return Replay(steps, fits, nodes_off_fabric(sent, plan.fabric, min_bytes))


def core_work(base: Rung, plan: Plan) -> float:
    """Compute the seconds of a step that an emulated accelerator leaves for the core; 0 if real."""
    pace = plan.config.pace_s
    return max(0.0, base.seconds - pace) if pace else 0.0


def replay_uncertainty(replay: Replay, single: Replay, base: Rung, plan: Plan) -> float:
    """Estimate by how many seconds a rung's replay, minus one node's, may be wrong.

    It is the noise of both replays, plus the drift during the rung, plus a step's work for the
    core.  Where ranks share cores, that work makes them wait differently each time.
    """
    noise = math.hypot(median_error(replay.after), median_error(single.after))
    return noise_limit(noise, len(replay.after)) + replay.drift + core_work(base, plan)


def nodes_off_fabric(
    sent: Mapping[str, Mapping[str, int | None]], fabric: str | None, min_bytes: float
) -> dict[str, str]:
    """Find the nodes that sent most bytes over another interface than the agreed one, and which.

    `sent` holds bytes by node and interface.  A node had to send `min_bytes`; it is left out if its
    main interface sent less than half of them.
    """
    off_fabric = {}
    for node, counted in sent.items():
        by_interface = join_fabric(counted, fabric)
        interface = main_device(by_interface)
        if fabric and interface != fabric and (by_interface.get(interface) or 0) > min_bytes / 2:
            off_fabric[node] = interface
    return off_fabric
