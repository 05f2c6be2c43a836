"""Is scaling close to linear, and where does every lost percent go?"""

import dataclasses

import pytest

from probes.findings import finding
from reference_trainer.config import TrainConfig
from reports.record import Verdict
from scaling import decompose
from scaling.decompose import laggard, mean_seconds, residual, slow_node
from scaling.ladder import climb, counts

STEPS = {"quick": 8, "standard": 24, "soak": 100}
# About 0.9e9 parameters and 8192 tokens per GPU and step: an efficiency means nothing without them,
# for the same cluster drops from 96 to 77 % with an eighth of the tokens.
GPU_SHAPE = {"dim": 2048, "layers": 16, "heads": 16, "seq": 2048, "batch": 4, "vocab": 32768}


@pytest.mark.criterion("SCALING")
def test_each_node_adds_its_share(cluster, terms, tier, limits, measure):
    """The same work per accelerator takes about the same time on 1, 2, 4 and 8 nodes.

    The step is cut into terms that sum to it, on every rung, so what a rung loses against one
    node is the sum of what its terms gained.
    """
    shape = GPU_SHAPE if cluster.on_gpu else {}
    config = TrainConfig(steps=STEPS[tier], pace_s=terms.pace_seconds, digest=False, **shape)
    ladder = counts(len(cluster.nodes))
    names = cluster.names
    with cluster.gang() as gang:
        rungs = []
        for count in ladder:
            measure.progress(f"scaling: {count} of {ladder[-1]} nodes")
            rungs.append(climb(gang, names, count, config))
        control(gang, names, config, rungs[-1], measure)
    measure.covered(
        f"rungs of {', '.join(map(str, ladder))} nodes, {STEPS[tier]} steps each; "
        f"the rung of 1 on each of {len(cluster.nodes)} nodes"
    )
    judge(rungs, limits, measure)
    draw(rungs, limits, measure)


def judge(rungs, limits, measure):
    """Efficiency and residual of each rung, and who holds the others up."""
    base = rungs[0].median_node()
    for rung in reversed(rungs[1:]):
        on, efficiency = f"{rung.count} nodes", mean_seconds(base) / rung.seconds
        measure("efficiency", efficiency, on=on, samples=len(rung.steps[0]))
        measure("residual", residual(base, rung.steps), on=on)
        if limits("efficiency") and limits("efficiency").judge(efficiency) is Verdict.FAIL:
            measure.explain(lost(base, rung, efficiency))
    if len(rungs) == 1:
        measure("efficiency", None, note="one node cannot show scaling")
    for rung in rungs:
        on = f"{rung.count} nodes" if rung.count > 1 else "1 node"
        measure.note("tokens_per_second", rung.tokens_per_second, "tokens/s", on=on)
    measure("non_finite", sum(rung.non_finite for rung in rungs))
    stragglers(rungs, limits, measure)


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


def lost(base, rung, efficiency):
    """The largest terms of what a rung lost."""
    shares = decompose.loss(decompose.terms(base), decompose.terms(rung.steps))
    largest = sorted(shares.items(), key=lambda item: -item[1])[:3]
    said = ", ".join(f"{name} {share:.1%}" for name, share in largest)
    return finding(
        "SCALE-LOSS", f"at {rung.count} nodes {1 - efficiency:.1%} of a step is lost: {said}"
    )


def control(gang, names, config, rung, measure):
    """A delay planted on one rank must come back with its rank and segment."""
    culprit, delay = gang.size // 2, 0.4 * rung.seconds
    planted = dataclasses.replace(config, steps=3, stall=f"data:rank={culprit}:seconds={delay}")
    seen = laggard(climb(gang, names, rung.count, planted).steps) if rung.count > 1 else None
    found = (seen.rank, seen.segment) == (culprit, "data") and seen.share > 0.15 if seen else None
    measure.control(
        "planted delay",
        f"rank {culprit} waits {delay:.2g} s for its data in every step",
        caught=found,
        saw=f"rank {seen.rank} in {seen.segment}, {seen.share:.0%}" if seen else "one node",
    )


def draw(rungs, limits, measure):
    """Numbers for the two figures, and the table behind them."""
    base = rungs[0].median_node()
    parts = [decompose.terms(base), *(decompose.terms(rung.steps) for rung in rungs[1:])]
    limit = limits("efficiency")
    measure.series(
        "efficiency",
        {
            "nodes": [rung.count for rung in rungs],
            "efficiency": [1.0, *(mean_seconds(base) / rung.seconds for rung in rungs[1:])],
            "limit": limit.low if limit else None,
            "tokens_per_second": [rung.tokens_per_second for rung in rungs],
            "tokens_per_gpu_step": rungs[0].tokens_per_step,
        },
    )
    measure.series(
        "terms",
        {
            "nodes": [rung.count for rung in rungs],
            "terms": {name: [part[name] for part in parts] for name in parts[0]},
        },
    )
    measure.keep(
        "steps.json",
        [
            {
                "nodes": rung.count,
                "ranks": rung.nodes,
                "steps": [[dataclasses.asdict(step) for step in steps] for steps in rung.steps],
            }
            for rung in rungs
        ],
        kind="series",
        caption="every timed step of every rank, cut into segments",
    )
