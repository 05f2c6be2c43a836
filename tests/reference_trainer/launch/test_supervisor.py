"""The supervisor: whom its heartbeats blame, and what a failed start costs; no cluster."""

from types import SimpleNamespace

import pytest

from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import GangError
from reference_trainer.launch.launchers import job_timeouts
from reference_trainer.launch.supervisor import HeartbeatMonitor, Timeouts, WorkerLost, supervise
from reference_trainer.launch.worker import RankLocation

FINE = ("training", 7, 1.0)


def watch(*beats, asked=()):
    """The supervisor's heartbeats (a mock: no Ray), with what each rank last said."""
    place = [
        RankLocation(node="n", address="10.0.0.1", host=f"node{r}", pid=1, gpus=[])
        for r in range(3)
    ]
    found = HeartbeatMonitor.__new__(HeartbeatMonitor)
    found.gang = SimpleNamespace(size=3, places=place)
    found.timeouts = Timeouts(first_answer=60, first_step=300, answer=10, step=60)
    found._answers = [dict(zip(("phase", "step", "age"), beat, strict=True)) for beat in beats]
    found._asked_at = list(asked or [100.0] * 3)
    return found


def test_ranks_that_answer_and_get_on_are_left_alone():
    watch(FINE, FINE, FINE)._check([0, 1, 2], 105.0)
    watch(("starting", 1, 200.0), FINE, ("saving", 8, 200.0))._check([0, 1, 2], 105.0)
    watch(FINE, FINE, FINE, asked=[100.0, 60.0, 100.0])._check([0, 2], 105.0)  # 1 has ended


def test_a_rank_that_does_not_answer_is_named():
    with pytest.raises(WorkerLost, match="rank 1 on node1 did not answer for 12 s") as lost:
        watch(FINE, FINE, FINE, asked=[100.0, 93.0, 100.0])._check([0, 1, 2], 105.0)
    assert lost.value.ranks == [1]


def test_a_rank_that_starts_may_be_silent_for_longer():
    starting = ("starting", 0, 40.0)
    watch(starting, starting, starting, asked=[60.0] * 3)._check([0, 1, 2], 105.0)
    with pytest.raises(WorkerLost, match="did not answer for 65 s"):
        watch(starting, starting, starting, asked=[40.0] * 3)._check([0, 1, 2], 105.0)


def test_of_ranks_that_do_not_get_on_the_one_furthest_behind_is_named():
    late, behind = ("training", 8, 61.0), ("training", 7, 62.0)
    with pytest.raises(WorkerLost, match="rank 2 on node2 stayed in step 7 for 62 s") as lost:
        watch(late, late, behind)._check([0, 1, 2], 105.0)
    assert lost.value.ranks == [2]


def test_a_gang_that_does_not_come_together_costs_an_attempt_and_not_the_run():
    class Late:
        def __enter__(self):
            raise GangError("starting: rank 1 did not answer")

        def __exit__(self, *_):
            pass

    heard = []
    with pytest.raises(GangError, match="attempt 3 of 3 failed: starting") as lost:
        supervise(Late, print, restarts=2, on_event=lambda event, values: heard.append(event))
    assert len(lost.value.attempts) == 3
    assert heard.count("lost") == 3
    assert heard[-1] == "given-up"


def test_patience_ends_a_little_before_the_jobs_own_time_outs():
    assert job_timeouts(TrainConfig()) == Timeouts()
    slow = job_timeouts(TrainConfig(timeout_s=900, init_timeout_s=1800))
    assert (slow.step, slow.first_step) == (870, 1770)
