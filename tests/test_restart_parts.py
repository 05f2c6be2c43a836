"""RESTART's reading of what it saw, on journals written down by hand; no cluster."""

from types import SimpleNamespace

import pytest

from probes.restart_judging import back_to_work
from probes.restart_run import Blow, Scenario, Voyage, costs, ettr, lives
from reference_trainer.gang import Place
from reference_trainer.supervisor import Attempt, Heartbeats, Patience, WorkerLost


def life(first, last, *, t, up_s=5.0):
    """A rank's journal from its start after step `first - 1` to its last step, a second each."""
    events = [{"event": "start", "start_step": first - 1, "t": t, "up_s": up_s}]
    for step in range(first, last + 1):
        events.append({"event": "begin", "step": step, "t": t + step - first})
        events.append({"event": "step", "step": step, "t": t + step - first + 1, "seconds": 1.0})
    return events


@pytest.fixture
def voyage():
    """Six steps done, struck in the seventh; back from step 4, and on to 10."""
    scenario = Scenario(name="x", words="x", blows=(Blow("begin", 7),), resumes=4, lost=4)
    journal = [*life(1, 6, t=100.0), {"event": "begin", "step": 7, "t": 106.1}]
    journal += life(5, 10, t=120.0)
    return Voyage(
        scenario=scenario,
        strikes=[SimpleNamespace(sent=1106.2, at=106.2)],
        results=[{}],
        attempts=[
            Attempt(places=[], started=1090.0, ready=1095.0, ended=1107.0),
            Attempt(places=[], started=1107.0, ready=1112.0, ended=1130.0),
        ],
        error="",
        lives=lives(journal),
    )


def test_lives_are_cut_at_each_start(voyage):
    assert [len(voyage.steps(at)) for at in (0, 1)] == [6, 6]
    ((done, start),) = voyage.cuts
    assert (done, start["start_step"]) == (6, 4)
    assert lives([{"event": "step"}]) == []


def test_a_life_that_gets_nowhere_does_not_hide_what_was_done_before(voyage):
    voyage.lives.insert(1, life(5, 4, t=110.0))
    assert [done for done, _ in voyage.cuts] == [6, 6]


def test_costs_of_a_blow(voyage):
    cost = costs(voyage, 0)
    assert cost.detect == pytest.approx(0.8)
    assert cost.reschedule == pytest.approx(5.0)
    assert cost.init == pytest.approx(6.0)  # 5 s up at its start, and 1 s of its first step
    assert cost.redo == pytest.approx(2.0)  # steps 5 and 6
    assert back_to_work(voyage) == pytest.approx(120.0 + 3 - 106.2)
    assert ettr(voyage) == pytest.approx(10 / 40)


def test_what_was_not_seen_is_none(voyage):
    voyage.strikes[0].sent = voyage.strikes[0].at = 0.0
    voyage.lives, voyage.attempts, voyage.results = voyage.lives[:1], voyage.attempts[:1], []
    cost = costs(voyage, 0)
    assert (cost.detect, cost.reschedule, cost.init, cost.redo) == (None, None, None, 0.0)
    assert back_to_work(voyage) is None
    assert ettr(voyage) is None


def watch(*beats, asked=()):
    """The supervisor's heartbeats (a mock: no Ray), with what each rank last said."""
    place = [Place(node="n", address="10.0.0.1", host=f"node{r}", pid=1, gpus=[]) for r in range(3)]
    found = Heartbeats.__new__(Heartbeats)
    found.gang = SimpleNamespace(size=3, places=place)
    found.patience = Patience(first_answer=60, first_step=300, answer=10, step=60)
    found._last = [dict(zip(("phase", "step", "age"), beat, strict=True)) for beat in beats]
    found._asked = list(asked or [100.0] * 3)
    return found


FINE = ("training", 7, 1.0)


def test_ranks_that_answer_and_get_on_are_left_alone():
    watch(FINE, FINE, FINE)._judge([0, 1, 2], 105.0)
    watch(("starting", 1, 200.0), FINE, ("saving", 8, 200.0))._judge([0, 1, 2], 105.0)
    watch(FINE, FINE, FINE, asked=[100.0, 60.0, 100.0])._judge([0, 2], 105.0)  # 1 has ended


def test_a_rank_that_does_not_answer_is_named():
    with pytest.raises(WorkerLost, match="rank 1 on node1 did not answer for 12 s") as lost:
        watch(FINE, FINE, FINE, asked=[100.0, 93.0, 100.0])._judge([0, 1, 2], 105.0)
    assert lost.value.ranks == [1]


def test_a_rank_that_starts_may_be_silent_for_longer():
    starting = ("starting", 0, 40.0)
    watch(starting, starting, starting, asked=[60.0] * 3)._judge([0, 1, 2], 105.0)
    with pytest.raises(WorkerLost, match="did not answer for 65 s"):
        watch(starting, starting, starting, asked=[40.0] * 3)._judge([0, 1, 2], 105.0)


def test_of_ranks_that_do_not_get_on_the_one_furthest_behind_is_named():
    late, behind = ("training", 8, 61.0), ("training", 7, 62.0)
    with pytest.raises(WorkerLost, match="rank 2 on node2 stayed in step 7 for 62 s") as lost:
        watch(late, late, behind)._judge([0, 1, 2], 105.0)
    assert lost.value.ranks == [2]
