"""Is scaling close to linear, and where does every lost percent go?"""

import dataclasses
import math

import pytest

from probes.scaling.checkpoint_cost import Saving, saving
from probes.scaling.controls import FEW, control, same_work, unsent
from probes.scaling.judge import draw, foresee, judge, other_runs
from probes.scaling.plan import Plan
from probes.scaling.run_ladder import ascend, hangs, is_stuck, placed, repeat, told, typical
from reference_trainer.config import PRESETS, TrainConfig
from reference_trainer.data.shards import VOCAB
from reference_trainer.launch.gang import GangError
from scaling.ladder.ladder import climb, counts
from scaling.loss.replay import order_of

STEPS = {"quick": 8, "standard": 24, "soak": 100}
RUNS = {"quick": 1, "standard": 1, "soak": 3}  # of each rung
# A GPU that throttles is fast at first: the least seconds of a rung's window on GPUs, and the most
# steps that they may take.  Emulated accelerators do not heat up.
WINDOW = {"quick": 0, "standard": 30, "soak": 120}
MOST_STEPS = 1000
# 8192 tokens per GPU and step: an efficiency means nothing without them, for the same cluster drops
# from 96 to 77 % with an eighth of the tokens.
GPU_SHAPE = {**PRESETS["1B"], "seq": 2048, "batch": 4, "dropout": 0.0, "deterministic": False}


@pytest.mark.criterion("SCALING")
def test_each_node_adds_its_share(cluster, terms, tier, limits, measure, workplace):
    """The same work per accelerator takes about the same time on 1, 2, 4 and 8 nodes.

    The step is cut into terms that sum to it, on every rung, so what a rung loses against one
    node is the sum of what its terms gained.
    """
    names, nodes = cluster.names, counts(len(cluster.nodes))
    load = load_of(terms, cluster.on_gpu, STEPS[tier])
    agreed, others, strong = measure.contract.limit("FABRIC", "busbw"), [], {}
    with cluster.gang() as gang:
        window = WINDOW[tier] if cluster.on_gpu else 0
        config = long_enough(gang, names, load, window)
        order = order_of(config, 2 if cluster.on_gpu else 4)
        plan = Plan(nodes, config, order, terms.fabric, patience=300 + 4 * window)
        first = ascend(gang, names, plan, measure)
        if not first[0]:
            return
        if is_stuck(gang, first[1], nodes):
            failed = "ranks of the rung that failed hang, or are gone"
            measure.covered(f"{failed}: nothing more was tried")
            ladder = told(first, others, plan, agreed)
        else:
            ladders, whole = repeat(gang, names, first, plan, RUNS[tier] - 1, measure)
            chosen, others = typical(ladders)
            ladder = told(chosen, others, plan, agreed)
            if whole or not hangs(gang):
                ladder = placed(gang, names, ladder, limits("efficiency"), measure)
                control(gang, names, config, ladder.rungs[-1], measure)
                if tier != "quick":
                    saves = Saving(workplace, config, terms)
                    saving(cluster, gang, ladder.rungs[-1].count, saves, measure)
                if tier != "quick" and not hangs(gang):
                    unsent(gang, names, ladder.rungs, config, measure)
                    strong = same_work(gang, names, nodes, config, measure)
    measure.covered(covered(ladder, terms, len(cluster.nodes)))
    other_runs(others, measure)
    explained = judge(ladder, limits, measure)
    foresee(ladder, measure)
    draw(ladder, explained, limits, measure, strong)


def load_of(terms, on_gpu, steps):
    """What is trained; on the shards that the contract names, where it does."""
    shape = dict(GPU_SHAPE) if on_gpu else {}
    if terms.shards:
        shape.update(data=terms.shards, vocab=max(VOCAB, shape.get("vocab", 0)))
    return TrainConfig(steps=steps, pace_s=terms.pace_seconds, digest=False, **shape)


def long_enough(gang, names, config, window):
    """The same load with as many steps as fill the window (seconds), by what the first few take."""
    if not window:
        return config
    try:
        seconds = climb(gang, names, 1, dataclasses.replace(config, steps=FEW)).seconds
    except GangError:  # the ladder will say so
        return config
    steps = min(max(config.steps, math.ceil(window / seconds)), MOST_STEPS)
    return dataclasses.replace(config, steps=steps)


def covered(ladder, terms, nodes):
    """What was run, for how long, and what was not exercised."""
    rungs = ladder.rungs
    windows = [rung.seconds * len(rung.steps[0]) for rung in rungs]
    return (
        f"rungs of {', '.join(str(rung.count) for rung in rungs)} nodes, "
        f"{len(rungs[0].steps[0])} steps each, {ladder.over}; "
        f"their windows lasted {min(windows):.0f} to {max(windows):.0f} s; "
        f"the rung of 1 on each of {nodes} nodes; "
        + (f"on the shards in {terms.shards}" if terms.shards else "on synthetic data")
        + "; no rung saves checkpoints"
    )
