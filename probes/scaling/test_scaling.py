"""Tests that scaling is close to linear, and locates every lost percent."""

import dataclasses
import math

import pytest

from probes.check.judging import is_alone
from probes.scaling import base_speed, judge, run_ladder
from probes.scaling import criterion as check
from reference_trainer.launch.gang import GangError
from scaling.ladder.ladder import run_rung, rung_sizes
from scaling.loss.predict import step_collectives

STEPS = {"quick": 8, "standard": 24, "soak": 100}
RUNS = {"quick": 1, "standard": 1, "soak": 3}  # of each rung
# Least seconds of a rung's window on GPUs: a GPU that throttles is fast at first.  Emulated
# accelerators do not heat up.
WINDOW_S = {"quick": 10, "standard": 30, "soak": 120}
MAX_STEPS = 1000  # limit of a window where a step takes ms: more records would fill the report


@pytest.mark.criterion("SCALING")
@pytest.mark.keeps_gang
def test_each_node_adds_its_share(cluster, terms, tier, limits, measure, workplace):
    """The same work per accelerator takes about the same time on more nodes.

    The step is cut into terms that sum to it, on every rung, so what a rung loses against one
    node is the sum of what its terms gained.
    """
    alone = is_alone(cluster, terms)
    # On a cluster that cannot prove it, only the data is judged: of one node and of all.
    timed = measure.contract.judges("SCALING", check.EFFICIENCY)
    nodes = rung_sizes(len(cluster.nodes), terms.rungs if timed else [1], short=tier == "quick")
    memory = run_ladder.least_gpu_memory(cluster.facts) if cluster.on_gpu else None
    load = run_ladder.train_config(terms, STEPS[tier], memory, cluster.size // len(cluster.nodes))
    measure.covered(run_ladder.describe_load(load, memory))
    agreed, other_ladders, strong = measure.contract.limit("FABRIC", "busbw"), [], {}
    with cluster.kept_gang.lend(measure.covered) as gang:
        rig = run_ladder.LadderRig(gang, cluster.node_names, measure)
        window = WINDOW_S[tier] if cluster.on_gpu else 0
        config = fill_window(gang, rig.node_names, load, window)
        order = step_collectives(config, 2 if cluster.on_gpu else 4)
        plan = run_ladder.Plan(nodes, config, order, terms.fabric, 300 + 4 * window, timed)
        first = run_ladder.run_ladder(rig, plan)
        if not first[0]:
            return
        if run_ladder.is_stuck(gang, first[1], nodes):
            failed = "ranks of the failed run hang or have ended"
            measure.covered(f"{failed}: nothing more was timed")
            ladder = run_ladder.build_ladder(first, other_ladders, plan, agreed, [])
        else:
            ladders = run_ladder.rerun_ladder(rig, first, plan, (RUNS[tier] - 1) * timed)
            chosen, other_ladders = run_ladder.worst_run(ladders)
            # Other runs each have their own base.
            can_repeat = timed and not other_ladders and not run_ladder.gang_hangs(gang)
            repeats = run_ladder.repeat_base(rig, chosen[0][0], plan) if can_repeat else []
            ladder = run_ladder.build_ladder(chosen, other_ladders, plan, agreed, repeats)
            if not run_ladder.gang_hangs(gang):
                ladder = run_ladder.locate_slow_links(rig, ladder, limits(check.EFFICIENCY))
                tests = base_speed.speed_tests(ladder.rungs[0], limits, cluster.emulated)
                base_speed.control_bad_base(rig, config, ladder.rungs[0], tests, alone)
                longer = timed and tier != "quick"
                if timed:
                    judge.control_planted_delay(rig, config, ladder, limits, alone)
                if longer:
                    saves = base_speed.SavePlan(workplace, config, terms)
                    base_speed.time_saves(rig, cluster, ladder.rungs[-1].count, saves)
                if longer and not run_ladder.gang_hangs(gang):
                    judge.time_unsent_step(rig, ladder.rungs, config)
                    strong = judge.time_same_work(rig, nodes, config)
    measure.covered(coverage_text(ladder, terms, len(cluster.nodes)))
    judge.note_other_runs(other_ladders, measure)
    explained = judge.judge_ladder(ladder, limits, measure, alone)
    base = ladder.rungs[0]
    base_speed.judge_speed(base, base_speed.speed_tests(base, limits, cluster.emulated), measure)
    outlook = judge.record_prediction(ladder, measure)
    judge.record_figures(ladder, explained, limits, measure, strong, outlook)


def fill_window(gang, names, config, window_s):
    """Set the steps of the load so that they fill the window (seconds), from a short trial."""
    if not window_s:
        return config
    few = dataclasses.replace(config, steps=judge.FEW_STEPS)
    try:
        seconds = run_rung(gang, names, 1, few).seconds
    except GangError:  # the ladder reports it
        return config
    steps = min(max(config.steps, math.ceil(window_s / seconds)), MAX_STEPS)
    return dataclasses.replace(config, steps=steps)


def coverage_text(ladder, terms, nodes):
    """Describe what was run, for how long, and what was not exercised."""
    rungs, known = ladder.rungs, rung_sizes(nodes, terms.rungs)
    windows = [rung.seconds * len(rung.steps[0]) for rung in rungs]
    *others, last = counts = [rung.count for rung in rungs]
    left_out = [count for count in known if count < last and count not in counts]
    return (
        f"timed on {', '.join([*map(str, others), run_ladder.node_count_text(last)])}, "
        f"{len(rungs[0].steps[0])} steps each, {ladder.interval_basis}. "
        f"Each number of nodes was timed for {min(windows):.0f} to {max(windows):.0f} s. "
        f"1 node means each of {run_ladder.node_count_text(nodes)} alone. The job ran "
        + (f"on the shards in {terms.shards}" if terms.shards else "on synthetic data")
        + ", without checkpoints"
        + (f". Not run on {', '.join(map(str, left_out))} nodes" if left_out else "")
    )
