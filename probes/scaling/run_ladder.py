"""The ladder, climbed: rung by rung, with what its own collectives take, and over which road.

A rung that fails costs its own figures and no other's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from probes.acceptance.measure import Ledger
from probes.cluster.byte_counters import growth, main_road, read_counters
from probes.fabric.detect import slow_links
from probes.fabric.node_pairs import bad_pairs
from probes.findings import finding
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang, GangError, WorkerLost
from reports.record import Limit, Verdict
from scaling.collectives.alpha_beta import Fit
from scaling.ladder.ladder import Rung, climb, first_of, groups_of, load
from scaling.loss.causes import beyond
from scaling.loss.explain import Place, about_links
from scaling.loss.ladder_result import Ladder
from scaling.loss.predict import step_seconds
from scaling.loss.replay import (
    PLAYED,
    Moment,
    calls_of,
    expected,
    least_sent,
    modelled,
    spared_by_agreed_links,
)
from scaling.loss.significance import median_error


@dataclass(frozen=True)
class Plan:
    """What is climbed: node counts, the load, its collectives in order, the agreed fabric (None: it
    is not known), and how long a rung may take, in seconds."""

    nodes: list[int]
    config: TrainConfig
    order: Sequence[Moment]
    fabric: str | None = None
    patience: float = 300

    @property
    def load(self) -> str:
        """What each GPU takes in, in words."""
        return load(self.config.batch * self.config.seq)


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


Climbed = tuple[list[Rung], dict[int, Replay]]  # the rungs that ran, and their replays by count


def ascend(gang: Gang, names: dict[str, str], plan: Plan, measure: Ledger) -> Climbed:
    """The rungs that could be run, and their collectives, replayed around each."""
    rungs: list[Rung] = []
    replays: dict[int, Replay] = {}
    for count in plan.nodes:
        measure.progress(f"scaling: {count} of {plan.nodes[-1]} nodes")
        first = first_of(plan.nodes, count)
        try:
            rung, replays[count] = around(gang, names, rungs, plan, (count, first), measure)
            rungs.append(rung)
        except GangError as error:
            measure("efficiency", None, on=f"{said(count)}, {plan.load}", note=str(error))
            measure.explain(finding("SCALE-RUNG", f"{said(count)}: {error}"))
            if not rungs:
                break  # there is nothing to compare with
            mend(gang, error)
        if is_stuck(gang, replays, [count]):
            break  # the next rung would meet what still runs there
    return rungs, replays


def repeat(
    gang: Gang, names: dict[str, str], first: Climbed, plan: Plan, times: int, measure: Ledger
) -> tuple[list[Climbed], bool]:
    """The whole ladder so often more: runs differ more than steps.  (All that ended, whether all).

    The first is the one that was climbed already.  Each run takes other nodes where it can.
    """
    ladders = [first]
    for run in range(2, times + 2):
        measure.progress(f"scaling: all rungs, run {run} of {times + 1}")
        rungs: list[Rung] = []
        replays: dict[int, Replay] = {}
        try:
            for count in [rung.count for rung in first[0]]:
                at = first_of(plan.nodes, count, run - 1)
                rung, replays[count] = around(gang, names, rungs, plan, (count, at), measure)
                rungs.append(rung)
        except GangError as error:
            measure("efficiency", None, on=f"run {run}, {plan.load}", note=str(error))
            measure.explain(finding("SCALE-RUNG", f"run {run} of the rungs: {error}"))
            return ladders, False
        ladders.append((rungs, replays))
    return ladders, True


def typical(ladders: Sequence[Climbed]) -> tuple[Climbed, list[list[Rung]]]:
    """The run whose largest rung is the median one, and the rungs of the others.

    What disturbs one run is not taken for what the cluster does.
    """
    order = sorted(ladders, key=lambda climbed: top_efficiency(climbed[0]))
    chosen = order[(len(order) - 1) // 2]
    return chosen, [climbed[0] for climbed in ladders if climbed is not chosen]


def top_efficiency(rungs: Sequence[Rung]) -> float:
    """That of the largest rung."""
    return rungs[0].seconds / rungs[-1].seconds


def mend(gang: Gang, error: GangError) -> None:
    """New workers where processes died, so that the rungs above can be climbed all the same."""
    if isinstance(error, WorkerLost):
        gang.mend(error.ranks)


def is_stuck(gang: Gang, replays: Mapping[int, Replay], nodes: Sequence[int]) -> bool:
    """Whether one of these rungs, or its collectives, failed and still runs in the gang."""
    failed = any(replays.get(count, Replay()).seconds is None for count in nodes)
    return failed and hangs(gang)


def hangs(gang: Gang) -> bool:
    """Whether ranks still run what they were told before, or do not answer."""
    return bool(gang.busy() or gang.silent())


def around(
    gang: Gang,
    names: dict[str, str],
    below: Sequence[Rung],
    plan: Plan,
    where: tuple[int, int],
    measure: Ledger,
) -> tuple[Rung, Replay]:
    """A rung, and the replay of its collectives before and after it: what else the machines do may
    change meanwhile.  `where` is (nodes, the first).  GangError where the rung fails."""
    count, first = where
    groups = groups_of(gang, count, first)
    early = Replay()
    if below:
        early = replayed(gang, names, below, plan, groups, PLAYED // 2, measure)
    rung = climb(gang, names, count, plan.config, first, plan.patience)
    late = replayed(gang, names, [*below, rung], plan, groups, PLAYED, measure)
    return rung, replace(late, before=early.steps)


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


def told(
    climbed: Climbed, others: Sequence[Sequence[Rung]], plan: Plan, agreed: Limit | None
) -> Ladder:
    """The ladder; `others` are the rungs of its other runs, `agreed` the limit of bus bandwidth."""
    rungs, replays = climbed
    timed = {count: one for count, one in replays.items() if one.seconds is not None}
    ranks = {rung.count: len(rung.judged) for rung in rungs}
    fitted = {count: one for count, one in timed.items() if one.fits}
    return Ladder(
        rungs=rungs,
        again={
            rung.count: [step_seconds(each[at].judged) for each in others]
            for at, rung in enumerate(rungs)
        }
        if others
        else {},
        talk={count: one.seconds for count, one in replays.items()},
        calls=calls_of(plan.order),
        fits=replays[rungs[-1].count].fits,
        agreed={
            count: (one.seconds or 0.0)
            - spared_by_agreed_links(plan.order, one.fits, ranks[count], agreed.low)
            for count, one in fitted.items()
            if agreed is not None and agreed.low
        },
        doubt={
            count: doubtful(one, timed[1], rungs[0], plan)
            for count, one in fitted.items()
            if 1 in timed
        },
        alpha_beta={
            count: modelled(plan.order, one.fits, ranks[count]) for count, one in fitted.items()
        },
        strays={count: one.strays for count, one in timed.items() if one.strays},
    )


def placed(
    gang: Gang, names: dict[str, str], ladder: Ladder, limit: Limit | None, measure: Ledger
) -> Ladder:
    """The ladder with its slow links in their places, where a rung that is judged lost to links.

    Pairs of nodes meet, as in FABRIC: some seconds, spent only where a limit is broken.
    """
    rungs = ladder.rungs[1:]
    sought = [
        cause
        for rung, why in zip(rungs, ladder.explained(wanted(limit)), strict=True)
        for cause in why.causes
        if about_links(cause) and limit
        if limit.judge(ladder.efficiency(rung)) is not Verdict.PASS
    ]
    if not sought:
        return ladder
    measure.progress("scaling: every pair of nodes, for a link that is slow")
    try:
        pairs, _ = bad_pairs(gang, names)
    except GangError as error:
        measure.covered(f"the slow link was not looked for: {error}")
        return ladder
    measure.covered(f"the slow link was looked for: {pairs.coverage}")
    places = [Place(tuple(one.suspects), one.statement) for one in slow_links(pairs)]
    return replace(ladder, places=places)


def wanted(limit: Limit | None) -> float | None:
    """The efficiency that passes: the end of the marginal band, where there is one."""
    if limit is None:
        return None
    # An efficiency of 0 is no wish: every rung passes it.
    return (limit.low if limit.marginal_low is None else limit.marginal_low) or None


def said(count: int) -> str:
    """`1 node`, `4 nodes`."""
    return f"{count} nodes" if count > 1 else "1 node"
