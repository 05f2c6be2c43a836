"""Is scaling close to linear, and where does every lost percent go?"""

import dataclasses
import re

import pytest

from probes.findings import finding
from reference_trainer.config import PRESETS, TrainConfig
from reference_trainer.gang import GangError
from reference_trainer.shards import VOCAB
from reports.record import Verdict
from scaling import decompose
from scaling.decompose import laggard, mean_seconds, residual, slow_node, unsummed
from scaling.expected import PLAYED, calls_of, expected, order_of, spared_by_agreed_links
from scaling.ladder import climb, counts, groups_of, hush, strong
from scaling.predict import step_seconds
from scaling.retold import Ladder
from scaling.skew import MEETINGS, exposed_said

FEW, HARDEST = 4, 8  # steps of what only informs, and how many times its usual work a node does
STEPS = {"quick": 8, "standard": 24, "soak": 100}
RUNS = {"quick": 1, "standard": 1, "soak": 3}  # of each rung
# 8192 tokens per GPU and step: an efficiency means nothing without them, for the same cluster drops
# from 96 to 77 % with an eighth of the tokens.
GPU_SHAPE = {**PRESETS["1B"], "seq": 2048, "batch": 4, "dropout": 0.0, "deterministic": False}
# Sharded, each rank's optimizer has less to do; that gains a few per cent at most.
MOST_EFFICIENT = 1.1
# What scaling.causes may name.
CAUSES = (
    *("SCALE-SLOW-NODE", "SCALE-SLOWING", "SCALE-STRAGGLER", "SCALE-DATA", "SCALE-CHECKPOINT"),
    *("SCALE-JITTER", "SCALE-LINK", "SCALE-TOKENS", "SCALE-UNEXPLAINED"),
)


@pytest.mark.criterion("SCALING")
def test_each_node_adds_its_share(cluster, terms, tier, limits, measure):
    """The same work per accelerator takes about the same time on 1, 2, 4 and 8 nodes.

    The step is cut into terms that sum to it, on every rung, so what a rung loses against one
    node is the sum of what its terms gained.
    """
    config = load_of(terms, cluster.on_gpu, STEPS[tier])
    nodes = counts(len(cluster.nodes))
    names = cluster.names
    order = order_of(config, 2 if cluster.on_gpu else 4)
    again = {}
    with cluster.gang() as gang:
        rungs, talk = ascend(gang, names, nodes, config, order, measure)
        if not rungs:
            return
        if is_stuck(gang, talk, nodes):
            failed = "ranks of the rung that failed hang, or are gone"
            measure.covered(f"{failed}: nothing more was tried")
        else:
            ladders, whole = repeat(gang, names, rungs, config, RUNS[tier] - 1, measure)
            rungs, again = typical(ladders, measure)
            if whole or not (gang.busy() or gang.silent()):
                control(gang, names, config, rungs[-1], measure)
                if tier != "quick":
                    unsent(gang, names, rungs, config, measure)
                    same_work(gang, names, nodes, config, measure)
    ladder = told(rungs, again, talk, order, measure.contract.limit("FABRIC", "busbw"))
    measure.covered(
        f"rungs of {', '.join(str(rung.count) for rung in rungs)} nodes, {STEPS[tier]} steps each, "
        f"{len(again.get(1, [])) + 1} times; "
        f"the rung of 1 on each of {len(cluster.nodes)} nodes; "
        + (f"on the shards in {terms.shards}" if terms.shards else "on synthetic data")
    )
    explained = judge(ladder, limits, measure)
    foresee(ladder, measure)
    draw(ladder, explained, limits, measure)


def load_of(terms, on_gpu, steps):
    """What is trained; on the shards that the contract names, where it does."""
    shape = dict(GPU_SHAPE) if on_gpu else {}
    if terms.shards:
        shape.update(data=terms.shards, vocab=max(VOCAB, shape.get("vocab", 0)))
    return TrainConfig(steps=steps, pace_s=terms.pace_seconds, digest=False, **shape)


def ascend(gang, names, nodes, config, order, measure):
    """The rungs that could be run, and what their collectives take, timed right after each.

    A rung that fails costs its own figures and no other's.
    """
    rungs, talk = [], {}
    for count in nodes:
        measure.progress(f"scaling: {count} of {nodes[-1]} nodes")
        try:
            rungs.append(climb(gang, names, count, config))
            talk[count] = timed_calls(gang, rungs, config, order, measure)
        except GangError as error:
            measure("efficiency", None, on=said(count), note=str(error))
            measure.explain(finding("SCALE-RUNG", f"{said(count)}: {error}"))
            if not rungs:
                break  # there is nothing to compare with
        if is_stuck(gang, talk, [count]):
            break  # the next rung would meet what still runs there
    return rungs, talk


def repeat(gang, names, first, config, times, measure):
    """The whole ladder so often more: runs differ more than steps.  (All that ended, whether all).

    Each is a list of rungs; the first is the one that was climbed already.
    """
    ladders = [first]
    for run in range(2, times + 2):
        measure.progress(f"scaling: all rungs, run {run} of {times + 1}")
        try:
            ladders.append([climb(gang, names, rung.count, config) for rung in first])
        except GangError as error:
            measure("efficiency", None, on=f"run {run}", note=str(error))
            measure.explain(finding("SCALE-RUNG", f"run {run} of the rungs: {error}"))
            return ladders, False
    return ladders, True


def typical(ladders, measure):
    """The run whose largest rung is the median one, and the steps of the others by node count.

    What disturbs one run is not taken for what the cluster does.
    """
    order = sorted(ladders, key=top_efficiency)
    chosen = order[(len(order) - 1) // 2]
    others = [rungs for rungs in ladders if rungs is not chosen]
    for number, rungs in enumerate(others, 1):
        for rung in rungs:
            one_model(rung, measure, f"{said(rung.count)}, other run {number}")
        on = f"{said(rungs[-1].count)}, other run {number}"
        measure.note("efficiency_again", top_efficiency(rungs), "ratio", on=on)
    again = {
        rung.count: [step_seconds(rungs[at].judged) for rungs in others]
        for at, rung in enumerate(chosen)
    }
    return chosen, again if others else {}


def top_efficiency(rungs):
    """That of the largest rung."""
    return mean_seconds(rungs[0].median_node()) / rungs[-1].seconds


def is_stuck(gang, talk, nodes):
    """Whether one of these rungs, or its collectives, failed and still runs in the gang."""
    failed = any(talk.get(count, (None, {}))[0] is None for count in nodes)
    return failed and bool(gang.busy() or gang.silent())


def told(rungs, again, talk, order, agreed):
    """The ladder; `agreed` is the limit of the bus bandwidth, or None."""
    there = [rung for rung in rungs if talk[rung.count][1] and agreed is not None and agreed.low]
    return Ladder(
        rungs=rungs,
        again=again,
        talk={count: seconds for count, (seconds, _) in talk.items()},
        calls=calls_of(order),
        fits=talk[rungs[-1].count][1],
        agreed={
            rung.count: talk[rung.count][0]
            - spared_by_agreed_links(order, talk[rung.count][1], len(rung.steps), agreed.low)
            for rung in there
            if rung.count > 1
        },
    )


def timed_calls(gang, rungs, config, order, measure):
    """Seconds of a step whose collectives are played on the newest rung, and their fits.

    An emulated accelerator leaves work for the core: what one node's step takes beyond it.
    """
    rung, blocks = rungs[-1], sum(moment is None for moment in order)
    rest = config.pace_s / blocks
    busy = max(0.0, mean_seconds(rungs[0].median_node()) - config.pace_s) / blocks if rest else 0.0
    patience = 60 + 4 * PLAYED * rung.seconds  # to connect, and to play what its steps did
    try:
        return expected(gang, groups_of(gang, rung.count), order, rest, busy, timeout=patience)
    except GangError as error:  # the rung itself was measured all the same
        measure.covered(f"communication on {rung.count} nodes was not timed: {error}")
        return None, {}


def judge(ladder, limits, measure):
    """Efficiency and residual of each rung, and who holds the others up; the rungs, explained."""
    rungs, limit = ladder.rungs, limits("efficiency")
    base, explained = rungs[0].median_node(), ladder.explained(limit.low if limit else None)
    named = set()
    for rung, why in reversed([*zip(rungs[1:], explained, strict=True)]):
        on, efficiency = said(rung.count), ladder.efficiency(rung)
        value, doubt = believed(efficiency)
        measure("efficiency", value, on=on, samples=len(rung.steps[0]), note=doubt)
        least, most = ladder.intervals[rung.count]
        measure.note("efficiency_from", least, "ratio", on=on)
        measure.note("efficiency_to", most, "ratio", on=on)
        measure.note("predicted_communication", ladder.expected.get(rung.count), "s", on=on)
        unexplained = residual(base, rung.steps)
        measure("residual", max(unexplained, unsummed(rung.steps)), on=on)
        measure.covered(str(why))
        if limit and limit.judge(efficiency) is not Verdict.PASS:
            measure.explain(finding("SCALE-LOSS", str(why)))
            # What is named on the largest rung is not named again on the smaller ones.
            for cause in [cause for cause in why.causes if (cause.code, cause.where) not in named]:
                assert cause.code in CAUSES
                places = re.split("[ ,]+", cause.where)
                suspects = [node for node in dict.fromkeys(rung.nodes) if node in places]
                measure.explain(finding(cause.code, f"at {on} {cause.said}", suspects))
            named |= {(cause.code, cause.where) for cause in why.causes}
    if len(rungs) == 1:
        measure("efficiency", None, note="one node cannot show scaling")
    measure("residual", unsummed(rungs[0].steps), on=said(1))
    for rung in rungs:
        one_model(rung, measure, said(rung.count))
    measure.covered(exposed_said(rungs[-1].steps, rungs[-1].separable))
    stragglers(rungs, limits, measure)
    return explained


def said(count):
    """`1 node`, `4 nodes`."""
    return f"{count} nodes" if count > 1 else "1 node"


def believed(efficiency):
    """The value and "", or None and why: many nodes cannot be so much better than one."""
    if efficiency <= MOST_EFFICIENT:
        return efficiency, ""
    return None, f"{efficiency:.2f}: one node was slower alone, so something disturbed it there"


def one_model(rung, measure, on):
    """What a rung took in, and that its ranks trained one model with it."""
    measure.note("tokens_per_second", rung.tokens_per_second, "tokens/s", on=on)
    measure.note("tokens_per_gpu_step", rung.tokens_per_rank, "tokens", on=on)
    if rung.mfu is not None:
        measure.note("mfu", rung.mfu, "ratio", on=on)
    if rung.memory is not None:
        measure.note("memory_over_estimate", rung.memory, "ratio", on=on)
    measure("non_finite", rung.non_finite, on=on)
    if rung.non_finite:
        losses = f"{rung.non_finite} losses of ranks and steps were no numbers"
        measure.explain(finding("SCALE-NAN", f"at {on} {losses}"))
    measure("disagreements", len(rung.disagreements), on=on)
    if rung.disagreements:
        measure.explain(finding("SCALE-APART", f"at {on} in {rung.disagreements[0]}"))


def stragglers(rungs, limits, measure):
    """A node slow by itself, and a rank that holds the others up in the largest rung."""
    node, alone = slow_node(rungs[0].by_node())
    late = laggard(rungs[-1].steps)
    measure("straggler", alone, on=f"{node} alone")
    measure(
        "straggler",
        late.share,
        on=f"rank {late.rank} ({rungs[-1].nodes[late.rank]}) in {late.segment}",
    )
    limit = limits("straggler")
    if limit.judge(alone) is Verdict.FAIL:
        said = f"{node} alone takes {alone:.0%} longer for a step than the median node"
        measure.explain(finding("SCALE-STRAGGLER", said, [node]))
    if limit.judge(late.share) is Verdict.FAIL:
        name = rungs[-1].nodes[late.rank]
        said = f"rank {late.rank} on {name} holds the others up in {late.segment}: {late.share:.0%}"
        measure.explain(finding("SCALE-STRAGGLER", said, [f"rank {late.rank}", name]))


def foresee(ladder, measure):
    """What more nodes would do: a prediction, with its band and its assumptions."""
    try:
        seen = ladder.foreseen()
    except ValueError as error:
        measure.covered(str(error))
        return
    measure.covered(str(seen))
    measure.keep("prediction.json", dataclasses.asdict(seen), caption=str(seen))


def control(gang, names, config, rung, measure):
    """A delay planted on one rank comes back with its rank and segment, and all wait for it."""
    culprit, delay = len(rung.steps) // 2, 0.4 * rung.seconds
    planted = dataclasses.replace(config, steps=3, stall=f"data:rank={culprit}:seconds={delay}")
    found, saw = None, "one node"
    if rung.count > 1:
        try:
            late = climb(gang, names, rung.count, planted).steps
            seen = laggard(late)
            spent = [decompose.terms([steps]) for steps in late]
            met = [sum(mine[name] for name in MEETINGS) for mine in spent]
            waited = min(met[:culprit] + met[culprit + 1 :]) - met[culprit]
            located = (seen.rank, seen.segment) == (culprit, "data") and seen.share > 0.15
            found = located and waited > delay / 2
            saw = f"rank {seen.rank} in {seen.segment}, {seen.share:.0%}"
            saw += f"; each other rank waited {waited:.2g} s or more for it"
        except GangError as error:  # the rungs were measured all the same
            saw = str(error)
    measure.control(
        "planted delay",
        f"rank {culprit} waits {delay:.2g} s for its data in every step",
        caught=found,
        saw=saw,
    )


def unsent(gang, names, rungs, config, measure):
    """What a step takes when it is sharded as on the largest rung, and nothing is sent."""
    count, short = rungs[-1].count, dataclasses.replace(config, steps=FEW)
    alone = mean_seconds(rungs[0].median_node())
    try:
        silent = mean_seconds(hush(gang, names, count, short).median_node())
    except GangError as error:
        measure.covered(f"a step without communication was not timed: {error}")
        return
    measure.note("without_communication", silent, "s", on=f"{count} nodes")
    measure.covered(
        f"sharded as on {count} nodes, with nothing sent, a step takes {silent:.3f} s; "
        f"{alone:.3f} s on one node"
    )


def same_work(gang, names, nodes, config, measure):
    """Strong scaling, which only informs: the largest rung's step, done by fewer nodes as well."""
    whole = None
    for count in [count for count in nodes if count * HARDEST >= nodes[-1]]:
        on = said(count)
        try:
            work = strong(dataclasses.replace(config, steps=FEW), count, nodes[-1])
            rung = climb(gang, names, count, work)
        except (GangError, ValueError) as error:
            measure.covered(f"the same work on {on} was not timed: {error}")
            return
        seconds = mean_seconds(rung.median_node()) if count == 1 else rung.seconds
        whole = whole or seconds * count
        measure.note("strong_efficiency", whole / (seconds * count), "ratio", on=on)
        tokens = f"{rung.tokens_per_rank} tokens per rank"
        measure.covered(f"the same work on {on}: {seconds:.3f} s with {tokens}")


def draw(ladder, explained, limits, measure):
    """Numbers for the three figures, and the table behind them."""
    rungs, base = ladder.rungs, ladder.rungs[0].median_node()
    parts = [decompose.terms(base), *(decompose.terms(rung.steps) for rung in rungs[1:])]
    limit = limits("efficiency")
    caption = "every timed step of every rank, cut into segments; the collectives of each rung"
    measure.keep("ladder.json", ladder.told(), kind="series", caption=caption)
    between = [ladder.intervals[rung.count] for rung in rungs[1:]]
    measure.series(
        "efficiency",
        {
            "nodes": [rung.count for rung in rungs],
            "efficiency": [1.0, *map(ladder.efficiency, rungs[1:])],
            "low": [None, *(low for low, _ in between)],
            "high": [None, *(high for _, high in between)],
            "limit": limit.low if limit else None,
            "tokens_per_second": [rung.tokens_per_second for rung in rungs],
            "tokens_per_gpu_step": rungs[0].tokens_per_rank,
        },
    )
    if explained:
        measure.series(
            "lost",
            {
                "nodes": [why.nodes for why in explained],
                "lost": [why.lost for why in explained],
                "parts": [[dataclasses.asdict(part) for part in why.parts] for why in explained],
                "sentences": [str(why) for why in explained],
            },
        )
    measure.series(
        "terms",
        {
            "nodes": [rung.count for rung in rungs],
            "terms": {name: [part[name] for part in parts] for name in parts[0]},
        },
    )
