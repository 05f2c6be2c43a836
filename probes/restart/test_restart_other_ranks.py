"""Does a run come back on other nodes, on fewer ranks, and however often it is killed?"""

import time

import pytest

from probes.restart.controls import a_leak_is_seen, mistakes_are_seen
from probes.restart.faulted_run import NAME, ettr, sail
from probes.restart.judge import judge_blows, judge_equality, judge_return, leaks, tell
from probes.restart.node_loss import RANKS, Fall, Repair, gang_on, judge_waiting, spare_nodes
from probes.restart.random_kills import PUNISHED_SECONDS, WORDS, judge_kills, punish
from probes.restart.scenarios import LOSSES, later
from probes.restart.world_size_change import judge_sizes, resize

pytestmark = pytest.mark.criterion("RESTART")


@pytest.mark.parametrize("loss", later(LOSSES, standard=1))
def test_a_lost_node_is_done_without(loss, cluster, workplace, small_original, limits, measure):
    """A run that loses nodes goes on with others, or waits for one and holds nothing meanwhile.

    The nodes are spare raylets on the head's machine, each with one unit of a made-up resource.
    """
    small_original.see(cluster, measure)
    with spare_nodes(cluster, loss.berths, measure) as berths:
        measure.progress(f"restart: {loss.words}")
        repair = Repair(cluster, berths, loss)
        voyage = sail(
            small_original.paced,
            loss,
            workplace,
            gang=lambda: gang_on(berths, name=NAME, say=repair),
            victim=RANKS - 1,
            before=small_original.run,
            arm=lambda out, blow: Fall(out, berths, loss, blow),
        )
        leaks(cluster, workplace, measure, voyage.attempts)
        a_leak_is_seen(cluster, gang_on(berths, 1, name=NAME), measure)
    mistakes_are_seen(small_original, measure)
    if voyage.results:
        judge_equality(small_original, voyage, measure)
    judge_blows(voyage, measure)
    judge_return(voyage, limits, measure)
    judge_waiting(loss, repair, measure)
    tell({**cluster.names, **berths.names}, small_original, voyage, measure)


@pytest.mark.tier("soak")
def test_a_punished_run_is_the_run_never_killed(cluster, workplace, long_original, measure):
    """Random ranks are killed at random moments, for ten minutes: no run is lost or unequal."""
    long_original.ready(cluster, measure)
    measure.progress(f"restart: {WORDS}")
    seed = time.time_ns() % 2**32
    done = punish(cluster, long_original, workplace, PUNISHED_SECONDS, seed)
    mistakes_are_seen(long_original, measure)
    judge_kills(done, long_original, PUNISHED_SECONDS, measure)
    leaks(cluster, workplace, measure, done.attempts)
    for number, voyage in enumerate(done.voyages, 1):
        measure.note("ettr", ettr(voyage), "ratio", on=f"run {number}")
    a_leak_is_seen(cluster, cluster.gang(1, name=NAME), measure)
    measure.covered(f"{WORDS}: {done.kills} times in {len(done.voyages)} runs, seed {seed}")
    if done.errors:
        measure.covered(f"{len(done.errors)} blows could not be struck: {done.errors[0]}")


@pytest.mark.tier("standard")
def test_fewer_ranks_go_on_with_the_same_samples(cluster, workplace, original, measure):
    """A run resumed by one rank less takes the same samples, and its loss is within the noise.

    The noise is measured: the distance of two runs of both sizes that nobody resumed.
    """
    original.see(cluster, measure)
    if cluster.size < 2:
        pytest.fail("one rank less than one is none", pytrace=False)
    measure.progress("restart: resumed by one rank less")
    sizes = resize(cluster, workplace)
    judge_sizes(sizes, measure)
    measure.covered(f"saved by {len(sizes.whole)} ranks, resumed by {len(sizes.resumed)}")
