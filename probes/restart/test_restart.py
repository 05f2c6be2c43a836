"""Does a killed run come back by itself, and is it the run that was never killed?"""

import pytest

from probes.restart.checkpoint_corruption import DAMAGES, QUICK_DAMAGES
from probes.restart.controls import a_leak_is_seen, an_untouched_one_is_seen, mistakes_are_seen
from probes.restart.faulted_run import NAME, sail
from probes.restart.judge import (
    came_back,
    judge_blows,
    judge_equality,
    judge_full_disk,
    judge_refusal,
    judge_return,
    leaks,
    repeats,
    tell,
)
from probes.restart.launcher_kill import judge_left_behind, twice
from probes.restart.scenarios import AGAIN, SCENARIOS, later

pytestmark = pytest.mark.criterion("RESTART")


@pytest.mark.parametrize("scenario", later(SCENARIOS, quick=1, standard=4))
def test_killed_run_resumes_as_if_never_killed(
    scenario, cluster, workplace, original, limits, measure
):
    """A run that is killed or stopped resumes by itself, bitwise equal to one never killed.

    Loss, gradient norm, learning rate and sample ids of every step and rank, and the parameters at
    the end, are compared bit by bit.  The same resume with one thing wrong must be seen as unequal.
    """
    original.see(cluster, measure)
    measure.progress(f"restart: {scenario.words}")
    voyage = sail(
        original.paced,
        scenario,
        workplace,
        gang=lambda: cluster.gang(name=NAME),
        victim=scenario.victim % cluster.size,
        before=original.run,
    )
    if not scenario.dies:
        mistakes_are_seen(original, measure)
    if voyage.results and not scenario.dies:
        judge_equality(original, voyage, measure)
    judge_blows(voyage, measure)
    judge_return(voyage, limits, measure)
    leaks(cluster, workplace, measure, voyage.attempts)
    tell(cluster.names, original, voyage, measure)
    if scenario.dies:
        a_leak_is_seen(cluster, cluster.gang(1, name=NAME), measure)


def test_a_run_can_be_repeated(cluster, original, measure):
    """The same run from its first step again is bitwise the same, and saving changes nothing.

    Where it is not, no comparison of two runs says anything, and a number was wrong.
    """
    original.ready(cluster, measure)
    mistakes_are_seen(original, measure)
    repeats(original, measure)
    config = original.config
    shape = f"{config.steps} steps of a model of width {config.dim}"
    measure.covered(f"{shape}, twice by the same ranks: once with saves and once without")


@pytest.mark.tier("standard")
def test_the_same_command_goes_on_after_a_killed_launcher(
    cluster, workplace, original, limits, measure
):
    """A launcher that is killed leaves nothing behind, and the same command typed again resumes."""
    original.ready(cluster, measure)
    measure.progress(f"restart: {AGAIN.words}")
    voyage, kept = twice(cluster, original.paced, AGAIN, workplace)
    mistakes_are_seen(original, measure)
    if voyage.results:
        judge_equality(original, voyage, measure)
    judge_blows(voyage, measure)
    judge_left_behind(kept, measure)
    judge_return(voyage, limits, measure)
    leaks(cluster, workplace, measure, voyage.attempts)
    tell(cluster.names, original, voyage, measure)
    a_leak_is_seen(cluster, cluster.gang(1, name=NAME), measure)


@pytest.mark.parametrize("name", later(DAMAGES, quick=QUICK_DAMAGES))
def test_a_damaged_checkpoint_is_refused(name, cluster, original, measure):
    """A checkpoint that is torn, altered or not this run's is never loaded: the one before it is.

    The run then ends as if nothing had been wrong.
    """
    original.ready(cluster, measure)
    found = original.damaged[name]
    an_untouched_one_is_seen(original, measure)
    if came_back(found, f"{name}: the run did not come back", measure):
        judge_refusal(name, original, found, measure)


@pytest.mark.tier("standard")
def test_a_full_disk_costs_a_save_and_not_the_run(cluster, original, measure):
    """A save that meets a full disk on one rank is given up by all; run and later saves go on."""
    original.ready(cluster, measure)
    measure("struck", original.filled or None, note="no file was made to meet a full disk")
    if not original.filled:
        return
    mistakes_are_seen(original, measure)
    if came_back(original.full_disk, "a full disk ended the run", measure):
        judge_full_disk(original, original.full_disk, measure)
