"""The ladder, climbed: rung by rung, with what its own collectives take, and over which road.

A rung that fails costs its own figures and no other's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from probes.acceptance.measure import Ledger
from probes.fabric.detect import slow_links
from probes.fabric.node_pairs import bad_pairs
from probes.findings import finding
from probes.scaling.plan import Plan, said
from probes.scaling.replay import Replay, doubtful, mend, replayed
from reference_trainer.launch.gang import Gang, GangError
from reports.record import Limit, Verdict
from scaling.ladder.ladder import Rung, climb, first_of, groups_of
from scaling.loss.explain import Place, about_links
from scaling.loss.ladder_result import Ladder
from scaling.loss.predict import step_seconds
from scaling.loss.replay import (
    PLAYED,
    calls_of,
    modelled,
    spared_by_agreed_links,
)

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
