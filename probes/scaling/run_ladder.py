"""Runs the ladder rung by rung, and replays the collectives of each rung.

A rung that fails costs its own figures only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from probes.fabric.detect import find_slow_links
from probes.fabric.node_pairs import run_pair_search
from probes.findings import finding
from probes.scaling.plan import LadderRig, Plan, node_count_text
from probes.scaling.replay import (
    Replay,
    replace_lost_workers,
    replay_collectives,
    replay_uncertainty,
)
from reference_trainer.launch.gang import Gang, GangError
from reports.measurement import Limit, Verdict
from scaling.ladder.ladder import Rung, first_node, run_rung, worker_groups
from scaling.loss.base_runs import MAX_REPEATS, base_doubt
from scaling.loss.explain import SlowLink, is_link_cause
from scaling.loss.ladder_result import Ladder
from scaling.loss.predict import step_seconds
from scaling.loss.replay import REPLAY_STEPS, count_calls, modelled_seconds, saved_at_agreed_rate

LadderRun = tuple[list[Rung], dict[int, Replay]]  # the rungs that ran, and their replays by count


def run_ladder(rig: LadderRig, plan: Plan) -> LadderRun:
    """Run the rungs that can be run, each with a replay of its collectives."""
    rungs: list[Rung] = []
    replays: dict[int, Replay] = {}
    for count in plan.node_counts:
        on = node_count_text(count)
        rig.measure.progress(f"scaling: {count} of {plan.node_counts[-1]} nodes")
        first = first_node(plan.node_counts, count)
        try:
            rung, replays[count] = run_rung_with_replay(rig, rungs, plan, count, first)
            rungs.append(rung)
        except GangError as error:
            rig.measure("efficiency", None, on=f"{on}, {plan.load}", note=str(error))
            rig.measure.explain(finding("SCALE-RUNG-FAILED", f"{on}: {error}"))
            if not rungs:
                break  # there is nothing to compare with
            replace_lost_workers(rig.gang, error)
        if is_stuck(rig.gang, replays, [count]):
            break  # the next rung would collide with what still runs
    return rungs, replays


def rerun_ladder(rig: LadderRig, first: LadderRun, plan: Plan, runs: int) -> list[LadderRun]:
    """Run all rungs `runs` more times: runs differ more than steps.  Return the runs that ended.

    The first entry is `first`.  Each run takes other nodes where it can.  A run that fails is the
    last.
    """
    ladders = [first]
    for run in range(2, runs + 2):
        rig.measure.progress(f"scaling: all rungs, run {run} of {runs + 1}")
        rungs: list[Rung] = []
        replays: dict[int, Replay] = {}
        try:
            for count in [rung.count for rung in first[0]]:
                start = first_node(plan.node_counts, count, run - 1)
                rung, replays[count] = run_rung_with_replay(rig, rungs, plan, count, start)
                rungs.append(rung)
        except GangError as error:
            rig.measure("efficiency", None, on=f"run {run}, {plan.load}", note=str(error))
            rig.measure.explain(finding("SCALE-RUNG-FAILED", f"run {run} of the rungs: {error}"))
            break
        ladders.append((rungs, replays))
    return ladders


def repeat_base(rig: LadderRig, base: Rung, plan: Plan) -> list[Rung]:
    """Repeat the rung of one node, after the larger rungs, until its fastest run is confirmed."""
    repeats: list[Rung] = []
    while len(repeats) < MAX_REPEATS:
        rig.measure.progress("scaling: 1 node again, to confirm the base")
        try:
            repeats.append(run_rung(rig.gang, rig.node_names, 1, plan.config, 0, plan.timeout_s))
        except GangError as error:
            rig.measure.covered(f"one node was not run again: {error}")
            replace_lost_workers(rig.gang, error)
            break
        fastest, *others = sorted([base, *repeats], key=attrgetter("seconds"))
        if not base_doubt(fastest, [rung.seconds for rung in others]):
            break
    return repeats


def median_run(ladders: Sequence[LadderRun]) -> tuple[LadderRun, list[list[Rung]]]:
    """Select the run whose largest rung is the median one; return it and the others' rungs.

    A disturbance of one run is then not taken for a property of the cluster.
    """
    order = sorted(ladders, key=lambda run: top_efficiency(run[0]))
    chosen = order[(len(order) - 1) // 2]
    return chosen, [run[0] for run in ladders if run is not chosen]


def top_efficiency(rungs: Sequence[Rung]) -> float:
    """Compute the efficiency of the largest rung."""
    return rungs[0].seconds / rungs[-1].seconds


def is_stuck(gang: Gang, replays: Mapping[int, Replay], nodes: Sequence[int]) -> bool:
    """Return whether one of these rungs, or its collectives, failed and still runs in the gang."""
    failed = any(replays.get(count, Replay()).seconds is None for count in nodes)
    return failed and gang_hangs(gang)


def gang_hangs(gang: Gang) -> bool:
    """Return whether ranks still run an earlier call, or do not answer."""
    return bool(gang.busy() or gang.silent())


def run_rung_with_replay(
    rig: LadderRig, lower: Sequence[Rung], plan: Plan, count: int, first: int
) -> tuple[Rung, Replay]:
    """Run a rung from node `first` on, and replay its collectives before and after it.

    Two replays show whether other work on the machines changed meanwhile.  Raises GangError when
    the rung fails.
    """
    groups = worker_groups(rig.gang, count, first)
    early = replay_collectives(rig, lower, plan, groups, REPLAY_STEPS // 2) if lower else Replay()
    rung = run_rung(rig.gang, rig.node_names, count, plan.config, first, plan.timeout_s)
    late = replay_collectives(rig, [*lower, rung], plan, groups, REPLAY_STEPS)
    return rung, replace(late, before=early.after)


def build_ladder(
    median: LadderRun,
    other_ladders: Sequence[Sequence[Rung]],
    plan: Plan,
    agreed: Limit | None,
    base_repeats: Sequence[Rung],
) -> Ladder:
    """Build the ladder of the `median` run, with the step times of the other runs.

    `agreed` is the limit of bus bandwidth.  The base is the fastest of one node's rung and its
    `base_repeats`: a slower base would flatter the larger rungs.
    """
    (first, *larger), replays = median
    fastest, *slower = sorted([first, *base_repeats], key=attrgetter("seconds"))
    rungs, single = [fastest, *larger], replays.get(1, Replay())
    return Ladder(
        rungs=[
            replace(
                with_replay(rung, replays[rung.count], (rungs[0], single), plan, agreed),
                other_runs=[step_seconds(run[index].judged_steps) for run in other_ladders],
            )
            for index, rung in enumerate(rungs)
        ],
        calls=count_calls(plan.order),
        fits=dict(replays[rungs[-1].count].fits),
        base_repeats=slower,
    )


def with_replay(
    rung: Rung, replay: Replay, base: tuple[Rung, Replay], plan: Plan, agreed: Limit | None
) -> Rung:
    """Add to the rung the time that its collectives took, as far as it is known."""
    if replay.seconds is None:
        return rung
    rung = replace(rung, replay_s=replay.seconds, off_fabric=dict(replay.off_fabric))
    if not replay.fits:
        return rung
    ranks, (base_rung, single) = len(rung.judged_steps), base
    if agreed is not None and agreed.low:
        saved_s = saved_at_agreed_rate(plan.order, replay.fits, ranks, agreed.low)
        rung = replace(rung, agreed_s=replay.seconds - saved_s)
    if single.seconds is not None:
        rung = replace(rung, uncertainty_s=replay_uncertainty(replay, single, base_rung, plan))
    return replace(rung, alpha_beta_s=modelled_seconds(plan.order, replay.fits, ranks))


def locate_slow_links(rig: LadderRig, ladder: Ladder, limit: Limit | None) -> Ladder:
    """Add the slow links to the ladder, if a judged rung lost time to links.

    Pairs of nodes are measured, as in FABRIC.  That takes some seconds, so it is done only where a
    limit is broken.
    """
    rungs, measure = ladder.rungs[1:], rig.measure
    suspected = [
        cause
        for rung, loss in zip(rungs, ladder.explanations(required_efficiency(limit)), strict=True)
        for cause in loss.causes
        if is_link_cause(cause) and limit
        if limit.judge(ladder.efficiency(rung)) is not Verdict.PASS
    ]
    if not suspected:
        return ladder
    measure.progress("scaling: every pair of nodes, to find a slow link")
    try:
        pairs = run_pair_search(rig.gang, rig.node_names).speed
    except GangError as error:
        measure.covered(f"slow links were not searched: {error}")
        return ladder
    measure.covered(f"slow links were searched: {pairs.coverage}")
    places = [SlowLink(tuple(flag.suspects), flag.statement) for flag in find_slow_links(pairs)]
    return replace(ladder, slow_links=places)


def required_efficiency(limit: Limit | None) -> float | None:
    """Return the lowest efficiency that passes: the end of the marginal band, if there is one."""
    if limit is None:
        return None
    # A limit of 0 requires nothing: every rung passes it.
    return (limit.low if limit.marginal_low is None else limit.marginal_low) or None
