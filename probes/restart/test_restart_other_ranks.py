"""Tests that a run resumes on other nodes, on fewer ranks, and after many kills."""

import time
from dataclasses import replace

import pytest

from probes.restart.controls import control_leaked_group, control_run, control_wrong_resume
from probes.restart.faulted_run import GANG_NAME, ettr, run_with_faults
from probes.restart.judge import find_leaks, judge_run, report_run
from probes.restart.node_loss import (
    RANKS,
    NodeKill,
    NodeRepair,
    control_silent_wait,
    judge_wait,
    spare_gang,
    spare_nodes,
)
from probes.restart.random_kills import (
    SOAK_SECONDS,
    SUMMARY,
    control_unexplained_kills,
    count_kills,
    injectors_of,
    judge_kills,
    run_random_kills,
)
from probes.restart.scenarios import NODE_LOSSES, params_by_tier
from probes.restart.world_size_change import judge_world_sizes, run_world_sizes

pytestmark = pytest.mark.criterion("RESTART")


@pytest.mark.parametrize("loss", params_by_tier(NODE_LOSSES, standard=1))
def test_a_lost_node_is_done_without(loss, cluster, workplace, small_original, limits, measure):
    """A run that loses nodes goes on with others, or waits for one and holds nothing meanwhile.

    The nodes are spare raylets on the head's machine, each with one unit of a made-up resource.
    """
    small_original.require_shared_folder(cluster, measure)
    with spare_nodes(cluster, loss.spare_count, measure) as spares:
        measure.progress(f"restart: {loss.summary}")
        repair = NodeRepair(cluster, spares, loss)
        run = run_with_faults(
            small_original.slow_config,
            loss,
            workplace,
            gang=lambda: spare_gang(spares, name=GANG_NAME, notify=repair),
            victim=RANKS - 1,
            setup=small_original.run,
            make_fault=lambda out, _, fault: NodeKill(out, spares, loss, fault),
        )
        find_leaks(cluster, workplace, measure, run.attempts)
        sizes = control_leaked_group(cluster, spare_gang(spares, 1, name=GANG_NAME), measure)
    judge_run(small_original, run, limits, measure)
    judge_wait(loss, repair, measure)
    control_run(small_original, run, measure)
    if loss.must_wait:
        control_silent_wait(loss, replace(repair, messages=[], held=sum(sizes)), measure)
    report_run({**cluster.node_names, **spares.node_names}, small_original, run, measure)


@pytest.mark.tier("soak")
def test_a_punished_run_is_the_run_never_killed(cluster, workplace, long_original, measure):
    """Random ranks are killed at random moments, for ten minutes: no run is lost or unequal."""
    long_original.ensure_reference_run(cluster, measure)
    measure.progress(f"restart: {SUMMARY}")
    seed = time.time_ns() % 2**32
    runs = run_random_kills(cluster, long_original, workplace, SOAK_SECONDS, seed)
    control_wrong_resume(long_original, measure)
    judge_kills(runs, long_original, SOAK_SECONDS, measure)
    control_unexplained_kills(runs, long_original, measure)
    find_leaks(cluster, workplace, measure, [attempt for run in runs for attempt in run.attempts])
    for number, run in enumerate(runs, 1):
        measure.note("ettr", ettr(run), "ratio", on=f"run {number}")
    control_leaked_group(cluster, cluster.gang(1, name=GANG_NAME), measure)
    measure.covered(f"{SUMMARY}: {count_kills(runs)} times in {len(runs)} runs, seed {seed}")
    errors = [injector.error for injector in injectors_of(runs) if injector.error]
    if errors:
        measure.covered(f"{len(errors)} kills could not be injected: {errors[0]}")


@pytest.mark.tier("standard")
def test_fewer_ranks_go_on_with_the_same_samples(cluster, workplace, original, measure):
    """A run resumed by one rank less takes the same samples, and its loss is within the noise.

    The noise is measured: the distance between runs of both sizes that were not resumed.
    """
    original.require_shared_folder(cluster, measure)
    if cluster.size < 2:
        pytest.fail("a run of one rank cannot resume with one rank less", pytrace=False)
    measure.progress("restart: resumed by one rank less")
    runs = run_world_sizes(cluster, workplace)
    judge_world_sizes(runs, measure)
    measure.covered(f"saved by {len(runs.full)} ranks, resumed by {len(runs.resumed)}")
