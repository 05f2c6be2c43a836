"""Tests that a killed run resumes by itself, and equals the run that was never killed."""

import pytest

from probes.restart.checkpoint_corruption import CORRUPTIONS, QUICK_CORRUPTIONS
from probes.restart.controls import (
    control_intact_checkpoint,
    control_leaked_group,
    control_roomy_disk,
    control_run,
    control_wrong_resume,
)
from probes.restart.faulted_run import GANG_NAME, run_with_faults
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
from probes.restart.launcher_kill import FREE_SECONDS, run_kill_rerun
from probes.restart.scenarios import LAUNCHER_KILLED, SCENARIOS, params_by_tier

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
