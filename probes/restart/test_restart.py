"""Tests that a killed run resumes by itself, and is equal to one never killed."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from probes.cluster.kept_gang import GANG_NAME
from probes.restart import criterion as check
from probes.restart import faulted_run, judge, scenarios
from probes.restart import other_ranks as ranks
from probes.restart.faulted_run import run_kill_rerun, run_with_faults
from probes.restart.other_ranks import SOAK_SECONDS, run_world_sizes

pytestmark = pytest.mark.criterion("RESTART")


@pytest.mark.parametrize(
    "scenario", scenarios.params_by_tier(scenarios.SCENARIOS, quick=1, standard=5)
)
@pytest.mark.keeps_gang
def test_killed_run_resumes_as_if_never_killed(
    scenario, cluster, workplace, original, limits, measure
):
    """A run that is killed or stopped resumes by itself, and equals a run that was never killed.

    Loss, gradient norm, learning rate and sample ids of every step and rank, and the parameters at
    the end, are compared bit by bit.  The same resume with one thing wrong must be seen as unequal.
    """
    original.require_shared_folder(cluster, measure)
    measure.progress(f"restart: {scenario.summary}")
    run = run_with_faults(
        original.slow_config,
        scenario,
        workplace,
        gang=lambda: cluster.kept_gang.take(measure.covered),
        victim=scenario.victim % cluster.size,
        setup=original.run,
    )
    judge_killed(original, run, cluster, workplace, limits, measure)


def judge_killed(original, run, cluster, workplace, limits, measure):
    """Judge a run that was killed, by whichever signal and process, and run its controls."""
    judge.judge_run(original, run, limits, measure)
    judge.find_leaks(cluster, workplace, measure, run.attempts)
    judge.report_run(cluster.node_names, original, run, measure)
    scenarios.control_run(original, run, measure)
    scenarios.control_leaked_group(cluster, cluster.gang(1, name=GANG_NAME), measure)


@pytest.mark.keeps_gang
def test_a_run_can_be_repeated(cluster, original, measure):
    """The same run, repeated from step 0, is bitwise the same, with saves and without.

    Where it is not, no comparison of two runs says anything, and a number was wrong.
    """
    original.ensure_reference_run(cluster, measure)
    scenarios.control_wrong_resume(original, measure)
    judge.judge_repeat(original, measure)
    measure.covered(f"{original.steps} steps by the same ranks, once with saves and once without")
    measure.covered(original.describe())


@pytest.mark.tier("standard")
def test_the_same_command_goes_on_after_a_killed_launcher(
    cluster, workplace, original, limits, measure
):
    """A launcher that is killed leaves nothing behind, and the same command resumes the run."""
    original.ensure_reference_run(cluster, measure)
    scenario = scenarios.LAUNCHER_KILLED
    measure.progress(f"restart: {scenario.summary}")
    run, groups = run_kill_rerun(cluster, original.slow_config, scenario, workplace)
    fate = f"of the killed launcher still held after {faulted_run.FREE_SECONDS} s"
    judge.judge_left_behind(groups, fate, measure, on="the killed launcher")
    judge_killed(original, run, cluster, workplace, limits, measure)


@pytest.mark.parametrize(
    "name", scenarios.params_by_tier(faulted_run.CORRUPTIONS, quick=faulted_run.QUICK_CORRUPTIONS)
)
def test_a_damaged_checkpoint_is_refused(name, cluster, original, measure):
    """A run never loads a checkpoint that is damaged or of another run, but the one before it.

    The run then ends as if nothing had been wrong.
    """
    original.ensure_reference_run(cluster, measure)
    outcome = original.corrupted[name]
    scenarios.control_intact_checkpoint(original, measure)
    if judge.resume_finished(outcome, f"with the damage {name!r} the run did not recover", measure):
        judge.judge_refusal(name, original, outcome, measure)


@pytest.mark.tier("standard")
def test_a_full_disk_costs_a_save_and_not_the_run(cluster, original, measure):
    """If the disk is full on one rank, all ranks give up this save, and the run continues."""
    original.ensure_reference_run(cluster, measure)
    note = "seatrial could not make a write fail as on a full disk"
    measure(check.FAULTS_INJECTED, original.full_disk_files or None, note=note)
    if not original.full_disk_files:
        return
    scenarios.control_wrong_resume(original, measure)
    scenarios.control_roomy_disk(original, measure)
    if judge.resume_finished(original.full_disk, "a full disk ended the run", measure):
        judge.judge_full_disk(original, original.full_disk, measure)


@pytest.mark.parametrize("loss", scenarios.params_by_tier(scenarios.NODE_LOSSES, standard=1))
def test_a_lost_node_is_done_without(loss, cluster, workplace, small_original, limits, measure):
    """A run that loses nodes continues on others, or waits for one and holds nothing meanwhile.

    The nodes are spare raylets on the head's machine, each with one unit of a made-up resource.
    """
    small_original.require_shared_folder(cluster, measure)
    with ranks.spare_nodes(cluster, loss.spare_count, measure) as spares:
        measure.progress(f"restart: {loss.summary}")
        repair = ranks.NodeRepair(cluster, spares, loss)
        run = run_with_faults(
            small_original.slow_config,
            loss,
            workplace,
            gang=lambda: ranks.spare_gang(spares, name=GANG_NAME, notify=repair),
            victim=ranks.RANKS - 1,
            setup=small_original.run,
            make_fault=lambda out, _, fault: ranks.NodeKill(out, spares, loss, fault),
        )
        judge.find_leaks(cluster, workplace, measure, run.attempts)
        one = ranks.spare_gang(spares, 1, name=GANG_NAME)
        sizes = scenarios.control_leaked_group(cluster, one, measure)
    judge.judge_run(small_original, run, limits, measure)
    ranks.judge_wait(loss, repair, measure)
    scenarios.control_run(small_original, run, measure)
    if loss.must_wait:
        ranks.control_silent_wait(loss, replace(repair, messages=[], held=sum(sizes)), measure)
    judge.report_run({**cluster.node_names, **spares.node_names}, small_original, run, measure)


@pytest.mark.tier("soak")
def test_a_punished_run_is_the_run_never_killed(cluster, workplace, long_original, measure):
    """Random ranks are killed for ten minutes: each run finishes and equals one never killed."""
    long_original.ensure_reference_run(cluster, measure)
    measure.progress(f"restart: {ranks.SUMMARY}")
    seed = time.time_ns() % 2**32
    runs = ranks.run_random_kills(cluster, long_original, workplace, SOAK_SECONDS, seed)
    scenarios.control_wrong_resume(long_original, measure)
    ranks.judge_kills(runs, long_original, SOAK_SECONDS, measure)
    ranks.control_unexplained_kills(runs, long_original, measure)
    attempts = [attempt for run in runs for attempt in run.attempts]
    judge.find_leaks(cluster, workplace, measure, attempts)
    for number, run in enumerate(runs, 1):
        measure.note("ettr", faulted_run.ettr(run), "ratio", on=f"run {number}")
    scenarios.control_leaked_group(cluster, cluster.gang(1, name=GANG_NAME), measure)
    times = f"{ranks.count_kills(runs)} kills in {len(runs)} runs"
    measure.covered(f"{ranks.SUMMARY}: {times}, seed {seed}; {long_original.describe()}")
    errors = [injector.error for injector in ranks.injectors_of(runs) if injector.error]
    if errors:
        measure.covered(f"seatrial could not inject {len(errors)} of the kills: {errors[0]}")


@pytest.mark.tier("standard")
def test_fewer_ranks_go_on_with_the_same_samples(cluster, workplace, original, measure):
    """A run that resumes with one rank less has the same samples and almost the same loss.

    The noise is measured: the distance between runs of both sizes that were not resumed.
    """
    original.require_shared_folder(cluster, measure)
    if cluster.size < 2:
        pytest.fail("this test needs 2 ranks: it resumes a run with one rank fewer", pytrace=False)
    measure.progress("restart: runs are resumed with one rank fewer")
    runs = run_world_sizes(cluster, workplace)
    ranks.judge_world_sizes(runs, measure)
    measure.covered(f"{len(runs.full)} ranks saved, {len(runs.resumed)} ranks resumed")
