"""Tests that a killed run resumes by itself, and is equal to one never killed."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from probes.restart.faulted_run import (
    CORRUPTIONS,
    FREE_SECONDS,
    GANG_NAME,
    QUICK_CORRUPTIONS,
    ettr,
    run_kill_rerun,
    run_with_faults,
)
from probes.restart.judge import (
    find_leaks,
    judge_full_disk,
    judge_left_behind,
    judge_refusal,
    judge_repeat,
    judge_run,
    report_run,
    resume_finished,
)
from probes.restart.other_ranks import (
    RANKS,
    SOAK_SECONDS,
    SUMMARY,
    NodeKill,
    NodeRepair,
    control_silent_wait,
    control_unexplained_kills,
    count_kills,
    injectors_of,
    judge_kills,
    judge_wait,
    judge_world_sizes,
    run_random_kills,
    run_world_sizes,
    spare_gang,
    spare_nodes,
)
from probes.restart.scenarios import (
    LAUNCHER_KILLED,
    NODE_LOSSES,
    SCENARIOS,
    control_intact_checkpoint,
    control_leaked_group,
    control_roomy_disk,
    control_run,
    control_wrong_resume,
    params_by_tier,
)

pytestmark = pytest.mark.criterion("RESTART")


@pytest.mark.parametrize("scenario", params_by_tier(SCENARIOS, quick=1, standard=4))
def test_killed_run_resumes_as_if_never_killed(
    scenario, cluster, workplace, original, limits, measure
):
    """A run that is killed or stopped resumes by itself, bitwise equal to one never killed.

    Loss, gradient norm, learning rate and sample ids of every step and rank, and the parameters at
    the end, are compared bit by bit.  The same resume with one thing wrong must be seen as unequal.
    """
    original.require_shared_folder(cluster, measure)
    measure.progress(f"restart: {scenario.summary}")
    run = run_with_faults(
        original.slow_config,
        scenario,
        workplace,
        gang=lambda: cluster.gang(name=GANG_NAME),
        victim=scenario.victim % cluster.size,
        setup=original.run,
    )
    judge_run(original, run, limits, measure)
    find_leaks(cluster, workplace, measure, run.attempts)
    report_run(cluster.node_names, original, run, measure)
    control_run(original, run, measure)
    control_leaked_group(cluster, cluster.gang(1, name=GANG_NAME), measure)


def test_a_run_can_be_repeated(cluster, original, measure):
    """The same run from its first step again is bitwise the same, and saving changes nothing.

    Where it is not, no comparison of two runs says anything, and a number was wrong.
    """
    original.ensure_reference_run(cluster, measure)
    control_wrong_resume(original, measure)
    judge_repeat(original, measure)
    config = original.config
    shape = f"{config.steps} steps of a model of width {config.dim}"
    measure.covered(f"{shape}, twice by the same ranks: once with saves and once without")


@pytest.mark.tier("standard")
def test_the_same_command_goes_on_after_a_killed_launcher(
    cluster, workplace, original, limits, measure
):
    """A launcher that is killed leaves nothing behind, and the same command typed again resumes."""
    original.ensure_reference_run(cluster, measure)
    measure.progress(f"restart: {LAUNCHER_KILLED.summary}")
    run, groups = run_kill_rerun(cluster, original.slow_config, LAUNCHER_KILLED, workplace)
    fate = f"of the killed launcher are left after {FREE_SECONDS} s"
    judge_left_behind(groups, fate, measure, on="the killed launcher")
    judge_run(original, run, limits, measure)
    find_leaks(cluster, workplace, measure, run.attempts)
    report_run(cluster.node_names, original, run, measure)
    control_run(original, run, measure)
    control_leaked_group(cluster, cluster.gang(1, name=GANG_NAME), measure)


@pytest.mark.parametrize("name", params_by_tier(CORRUPTIONS, quick=QUICK_CORRUPTIONS))
def test_a_damaged_checkpoint_is_refused(name, cluster, original, measure):
    """A checkpoint that is torn, altered or not this run's is never loaded: the one before it is.

    The run then ends as if nothing had been wrong.
    """
    original.ensure_reference_run(cluster, measure)
    outcome = original.corrupted[name]
    control_intact_checkpoint(original, measure)
    if resume_finished(outcome, f"{name}: the run did not recover", measure):
        judge_refusal(name, original, outcome, measure)


@pytest.mark.tier("standard")
def test_a_full_disk_costs_a_save_and_not_the_run(cluster, original, measure):
    """A save that meets a full disk on one rank is given up by all; run and later saves go on."""
    original.ensure_reference_run(cluster, measure)
    measure(
        "faults_injected",
        original.full_disk_files or None,
        note="no file was made to meet a full disk",
    )
    if not original.full_disk_files:
        return
    control_wrong_resume(original, measure)
    control_roomy_disk(original, measure)
    if resume_finished(original.full_disk, "a full disk ended the run", measure):
        judge_full_disk(original, original.full_disk, measure)


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
