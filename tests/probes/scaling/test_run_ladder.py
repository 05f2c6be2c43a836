"""The ladder's climb: several runs, rungs that die, bytes that go astray, windows that are long."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.check.recorder import Recorder
from probes.fabric.node_pairs import PairSearch
from probes.scaling import judge as scaling_controls
from probes.scaling import run_ladder as scaling_rungs
from probes.scaling import test_scaling
from probes.scaling.judge import compare_compute, note_other_runs, time_same_work
from probes.scaling.run_ladder import (
    LadderRig,
    Plan,
    Replay,
    build_ladder,
    gang_hangs,
    is_stuck,
    locate_slow_links,
    nodes_off_fabric,
    repeat_base,
    required_efficiency,
    rerun_ladder,
    run_ladder,
    worst_run,
)
from probes.scaling.test_scaling import MAX_STEPS, fill_window
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang, GangError, WorkerLost
from reports.measurement import Limit
from reports.record import Finding
from scaling.collectives.fault_search import FaultSearchResult
from scaling.collectives.line_rate import Fit
from scaling.ladder.ladder import Rung
from scaling.ladder.step_breakdown import Step, mean_seconds
from scaling.loss import predict
from scaling.loss.ladder_result import Ladder
from scaling.loss.predict import REPLAY_STEPS
from tests.support.simulated_ladder import ladder
from tests.support.simulated_steps import Cluster


class Notes:
    """A ledger that only remembers."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.found: list[str] = []

    def __call__(self, name: str, value: Any, **more: Any) -> None:
        self.seen.append((name, value, more.get("on")))

    def note(self, name: str, value: Any, unit: str, on: str = "") -> None:
        self.seen.append((name, value, on))

    def explain(self, *found: Any) -> None:
        each = ([one] if isinstance(one, Finding) else one for one in found)
        self.found += [one.code for some in each for one in some]

    def progress(self, _: str) -> None:
        pass

    covered = progress


def climbs(monkeypatch: pytest.MonkeyPatch, *ladders: Any) -> None:
    """What each further climb finds: a rung, or an error."""
    found = iter([rung for rungs in ladders for rung in rungs])

    def climb(*_: Any) -> Any:
        one = next(found)
        if isinstance(one, Exception):
            raise one
        return one

    monkeypatch.setattr(scaling_rungs, "run_rung", climb)
    monkeypatch.setattr(scaling_rungs, "replay_collectives", lambda *_: REPLAY)
    monkeypatch.setattr(scaling_rungs, "worker_groups", lambda *_: [])


def slower(found: Ladder, share: float) -> list[Rung]:
    """Its rungs; the largest took so much longer."""
    *below, top = found.rungs
    steps = [[replace(one, seconds=one.seconds * share) for one in mine] for mine in top.steps]
    return [*below, replace(top, steps=steps)]


REPLAY = Replay([0.0] * 3)
LOAD = f"{TrainConfig().batch * TrainConfig().seq:,} tokens per GPU and step"
GANG = cast(Gang, None)  # nothing is asked of it


def ledger(notes: Notes) -> Recorder:
    return cast(Recorder, notes)


def rig(notes: Notes, gang: Any = GANG) -> LadderRig:
    return LadderRig(gang, {}, ledger(notes))


def plan(*nodes: int) -> Plan:
    return Plan([*nodes], TrainConfig(), [("all_gather", 1 << 20)])


def test_of_several_runs_the_worst_one_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    once, notes = ladder(), Notes()
    first = dict.fromkeys((1, 2, 4), REPLAY)
    replays = {
        1: REPLAY,
        2: replace(REPLAY, before=[0.0] * 3),
        4: replace(REPLAY, before=[0.0] * 3),
    }
    usual, slow, slowest = [*once.rungs], slower(once, 1.2), slower(once, 1.5)
    climbs(monkeypatch, slow, slowest)
    ladders = rerun_ladder(rig(notes), (usual, first), plan(1, 2, 4), 2)
    assert [rungs for rungs, _ in ladders] == [usual, slow, slowest]
    chosen, others = worst_run(ladders)
    assert chosen == (slowest, replays)
    assert others == [usual, slow]
    found = build_ladder(chosen, others, plan(1, 2, 4), None, [])
    assert [len(rung.other_runs) for rung in found.rungs] == [2, 2, 2]
    assert (found.interval_basis, once.interval_basis) == ("over 3 runs", "within one run")
    note_other_runs(others, ledger(notes))
    heard = [one for one in notes.seen if one[0] == "efficiency_again"]
    load = "4 nodes, 8,192 tokens per GPU and step, other run"
    assert [on for _, _, on in heard] == [f"{load} 1", f"{load} 2"]
    assert any(one[2] == "2 nodes, other run 2" for one in notes.seen)  # its losses are looked at
    assert worst_run([(usual, replays)]) == ((usual, replays), [])


def test_a_further_run_that_fails_is_told_and_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    once, notes = ladder(), Notes()
    climbs(monkeypatch, [once.rungs[0], GangError("rank 3 died")])
    first: tuple[list[Rung], dict[int, Replay]] = ([*once.rungs], {})
    ladders = rerun_ladder(rig(notes), first, plan(1, 2, 4), 2)
    assert ladders == [first]
    assert notes.seen == [("efficiency", None, f"run 2, {LOAD}")]
    assert notes.found == ["SCALE-RUNG-FAILED"]


def base_taking(share: float) -> Rung:
    """One node's rung, each step of which takes so many times as long."""
    base = ladder().rungs[0]
    steps = [[replace(one, seconds=one.seconds * share) for one in mine] for mine in base.steps]
    return replace(base, steps=steps)


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ([1.02], ""),  # the first repeat confirms it
        ([1.3, 1.01], ""),  # the odd one was disturbed
        ([0.7, 0.71], ""),  # the first run was
        ([0.7, 1.4], "differ by more than"),
    ],
)
def test_one_node_is_run_again_until_its_fastest_run_is_confirmed(
    monkeypatch: pytest.MonkeyPatch, shares: list[float], told: str
) -> None:
    first, repeats = base_taking(1.0), [*map(base_taking, shares)]
    climbs(monkeypatch, repeats)
    assert repeat_base(rig(Notes()), first, plan(1, 2, 4)) == repeats
    rungs = [first, *ladder().rungs[1:]]
    found = build_ladder((rungs, {1: REPLAY, 2: REPLAY, 4: REPLAY}), [], plan(1), None, repeats)
    fastest = min([first, *repeats], key=lambda rung: rung.seconds)
    assert found.rungs[0].steps == fastest.steps
    assert len(found.base_repeats) == len(repeats)
    assert (told in found.base_doubt) if told else (found.base_doubt == "")


def test_the_base_is_one_node_from_the_first_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, float]] = []

    def climb(_: Any, __: Any, count: int, ___: Any, first: int, timeout_s: float) -> Rung:
        asked.append((count, first, timeout_s))
        return base_taking(1.0)

    monkeypatch.setattr(scaling_rungs, "run_rung", climb)
    repeat_base(rig(Notes()), base_taking(1.0), plan(1, 2, 4))
    assert asked == [(1, 0, 300)]


def test_a_base_that_could_not_be_run_again_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    once, notes = ladder(), Notes()
    climbs(monkeypatch, [GangError("rank 1 died")])
    repeats = repeat_base(rig(notes), once.rungs[0], plan(1, 2, 4))
    assert repeats == []
    found = build_ladder((once.rungs, dict.fromkeys((1, 2, 4), REPLAY)), [], plan(1), None, repeats)
    assert "was not repeated" in found.base_doubt


def test_each_further_run_begins_where_the_last_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    once, starts = ladder(), list[int]()

    def climb(_: Any, __: Any, count: int, ___: Any, start: int, *_more: Any) -> Rung:
        starts.append(start)
        return once.rungs[count - 1]

    climbs(monkeypatch)
    monkeypatch.setattr(scaling_rungs, "run_rung", climb)
    rerun_ladder(rig(Notes()), (once.rungs[:2], {}), plan(1, 2, 5), 2)
    assert starts == [0, 2, 0, 4]


def test_before_a_rung_half_as_many_steps_are_replayed_as_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once, replayed = ladder(), list[int]()
    climbs(monkeypatch, once.rungs[:2])
    monkeypatch.setattr(
        scaling_rungs, "replay_collectives", lambda *asked: replayed.append(asked[-1]) or REPLAY
    )
    run_ladder(rig(Notes()), plan(1, 2))
    assert replayed == [REPLAY_STEPS, REPLAY_STEPS / 2, REPLAY_STEPS]


class Mendable:
    """A gang of which one rank died, and what it is asked."""

    def __init__(self) -> None:
        self.mended: list[list[int]] = []

    def replace_workers(self, lost: list[int]) -> list[int]:
        self.mended.append(lost)
        return lost

    def replace_waiting(self) -> list[int]:
        self.mended.append([0, 1, 3])
        return [0, 1, 3]

    def silent(self) -> list[int]:
        return [] if self.mended else [1]

    def busy(self) -> list[int]:
        return []


def test_a_middle_rung_that_dies_costs_the_larger_ones_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once, notes, gang = ladder(), Notes(), Mendable()
    died = WorkerLost("rank: rank 1 died", ranks=[1], lost_at=0.0)
    climbs(monkeypatch, [once.rungs[0], died, once.rungs[2]])
    rungs, replays = run_ladder(rig(notes, gang), plan(1, 2, 4))
    assert rungs == [once.rungs[0], once.rungs[2]]
    assert [*replays] == [1, 4]
    assert gang.mended == [[1]]
    assert notes.seen == [("efficiency", None, f"2 nodes, {LOAD}")]
    assert notes.found == ["SCALE-RUNG-FAILED"]


def test_ranks_that_wait_for_one_that_failed_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the base could not be run again, and no rung would have an efficiency."""
    once, notes, gang = ladder(), Notes(), Mendable()
    failed = WorkerLost("rank: rank 2 failed: no memory", ranks=[], lost_at=0.0, failed=[2])
    climbs(monkeypatch, [once.rungs[0], once.rungs[1], failed])
    rungs, _ = run_ladder(rig(notes, gang), plan(1, 2, 4))
    assert rungs == once.rungs[:2]
    assert gang.mended == [[0, 1, 3]]


def test_a_rank_that_dies_while_the_base_is_repeated_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gang = Mendable()
    climbs(monkeypatch, [WorkerLost("rank 1 died", ranks=[1], lost_at=0.0)])
    assert repeat_base(rig(Notes(), gang), ladder().rungs[0], plan(1, 2, 4)) == []
    assert gang.mended == [[1]]


@pytest.mark.parametrize(
    ("busy", "silent", "hangs"),
    [([], [], False), ([2], [], True), ([], [2], True), ([2], [2], True)],
)
def test_a_gang_hangs_if_a_rank_is_busy_or_silent(
    busy: list[int], silent: list[int], hangs: bool
) -> None:
    gang = SimpleNamespace(busy=lambda: busy, silent=lambda: silent)
    assert gang_hangs(cast(Gang, gang)) is hangs


@pytest.mark.parametrize(
    ("replays", "stuck"),
    [({1: REPLAY, 2: Replay()}, True), ({1: REPLAY}, True), ({1: REPLAY, 2: REPLAY}, False)],
)
def test_one_rung_that_failed_and_still_runs_is_enough_to_stop(
    replays: dict[int, Replay], stuck: bool
) -> None:
    gang: Any = SimpleNamespace(busy=lambda: [2], silent=list)
    assert is_stuck(gang, replays, [1, 2]) is stuck


class Replaying(Mendable):
    """Two nodes, of which the second sends 1 MB over another interface."""

    def __init__(self) -> None:
        super().__init__()
        self.places = [SimpleNamespace(node=f"id{rank}") for rank in range(2)]
        self.counted, self.limits_s = 0, list[float]()

    def run(self, _: Any, *, groups: Any, timeout: float) -> list[dict[str, int]]:
        self.limits_s.append(timeout)
        self.counted += 1_000_000
        return [{"fab0": self.counted, "eth0": 0}, {"fab0": 0, "eth0": self.counted}]


def replayed(gang: Any, groups: list[list[int]], notes: Notes, work: Plan) -> Replay:
    """Replay four steps."""
    names = {"id0": "node0", "id1": "node1"}
    at = LadderRig(gang, names, ledger(notes))
    return scaling_rungs.replay_collectives(at, ladder().rungs[:2], work, groups, 4)


def emulated(pace_s: float) -> Plan:
    """Two nodes whose steps have two blocks of compute, and reduce 1 MiB."""
    order: list[Any] = [None, ("all_gather", 1 << 20), None]
    return Plan([1, 2], TrainConfig(pace_s=pace_s), order, fabric="fab0")


@pytest.mark.parametrize(
    ("groups", "off_fabric"), [([[0, 1]], {"node1": "eth0"}), ([[0], [1]], {})]
)
def test_a_replay_leaves_the_core_as_much_work_as_the_rung_and_has_time_for_its_steps(
    monkeypatch: pytest.MonkeyPatch, groups: list[list[int]], off_fabric: dict[str, str]
) -> None:
    """Nodes that run alone send nothing to each other, and nothing is expected of the fabric."""
    base, rung, *_ = ladder().rungs
    gang, asked = Replaying(), list[Any]()

    def time_collectives(*how: Any, timeout: float) -> Any:
        asked.extend((*how[3:], timeout))
        return [0.5] * 3, {}

    monkeypatch.setattr(predict, "time_collectives", time_collectives)
    pace_s = base.seconds - 0.02
    found = replayed(gang, groups, Notes(), emulated(pace_s))
    # A step's sleep and work are shared out to its blocks; 60 s to connect, and 4 times the steps.
    assert asked == pytest.approx([pace_s / 2, 0.01, 4, 60 + 4 * 4 * rung.seconds])
    assert gang.limits_s == [60, 60]
    assert (found.after, found.off_fabric) == ([0.5] * 3, off_fabric)


def test_a_replay_that_loses_a_rank_is_noted_and_the_rank_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise WorkerLost("rank 1 died", ranks=[1], lost_at=0.0)

    monkeypatch.setattr(predict, "time_collectives", fail)
    gang, covered, notes = Replaying(), list[str](), Notes()
    monkeypatch.setattr(notes, "covered", covered.append)
    assert replayed(gang, [[0, 1]], notes, emulated(0.1)) == Replay()
    assert covered == ["communication on 2 nodes was not timed: rank 1 died"]
    assert gang.mended == [[1]]


def test_links_of_the_agreed_rate_would_save_time() -> None:
    """At twice the rate the bytes of a step take half as long."""
    cluster = Cluster(nodes=2, steps=8)
    fits = {"all_gather": Fit(latency_us=0.0, bandwidth=1.0, residual=0.0, points=2)}
    replays = {1: Replay([0.0] * 3), 2: Replay([0.7] * 3, fits)}
    rungs = [cluster.base(), cluster.largest()]
    limit = Limit(low=2.0, because="as agreed")
    found = build_ladder((rungs, replays), [], plan(1, 2), limit, [])
    (_, both) = found.rungs
    assert both.alpha_beta_s == pytest.approx((1 << 20) / 2e9)
    assert both.agreed_s == pytest.approx(0.7 - (1 << 20) / 4e9)


def test_all_that_is_told_of_collectives_is_beyond_one_node() -> None:
    """With two GPUs on each node those of one node talk already; its fits are over its two."""
    cluster = Cluster(nodes=2, per_node=2, steps=8)
    fits = {"all_gather": Fit(latency_us=0.0, bandwidth=1.0, residual=0.0, points=2)}
    alone, both = Replay([0.5] * 3, fits), Replay([0.7] * 3, fits)
    rungs = [cluster.base(), cluster.largest()]
    found = build_ladder((rungs, {1: alone, 2: both}), [], plan(1, 2), None, [])
    # 1 MiB at 1 GB/s, times 1/2 among two ranks and 3/4 among four.
    seconds = [rung.alpha_beta_s for rung in found.rungs]
    assert seconds == [(1 << 20) / 2e9, pytest.approx((1 << 20) * 0.75e-9)]
    assert found.fit_growth == {2: pytest.approx((1 << 20) / 4e9)}
    assert found.replay_growth == {2: pytest.approx(0.2)}
    unknown = build_ladder((rungs, {1: Replay(), 2: both}), [], plan(1, 2), None, [])
    assert unknown.fit_growth == unknown.replay_growth == {}  # what one node's cost is not known
    single = Cluster(nodes=2, steps=8)
    bare = build_ladder(
        ([single.base(), single.largest()], {1: Replay([0.0] * 3), 2: both}),
        [], plan(1, 2), None, [],
    )  # fmt: skip
    assert bare.fit_growth == {2: pytest.approx((1 << 20) / 2e9)}
    # Of unequal nodes the median one may have one rank, though another's ranks talk: no fit is its.
    limit = Limit(low=2.0, because="as agreed")
    unequal = build_ladder(
        ([single.base(), single.largest()], {1: alone, 2: both}), [], plan(1, 2), limit, [],
    )  # fmt: skip
    assert [rung.replay_s for rung in unequal.rungs] == [0.5, 0.7]
    assert [rung.alpha_beta_s is None for rung in unequal.rungs] == [True, False]


def test_bytes_are_astray_only_where_most_went_elsewhere_and_enough_of_them() -> None:
    sent = {
        "node0": {"fab0": 10_000, "eth0": 300},
        "node1": {"fab0": 300, "eth0": 10_000},
        "node2": {"fab0": 0, "eth0": 3_000},  # no collective is as small: Ray's own
    }
    assert nodes_off_fabric(sent, "fab0", min_bytes=8_000) == {"node1": "eth0"}
    assert nodes_off_fabric(sent, None, min_bytes=8_000) == {}
    assert nodes_off_fabric(sent, "fab0", min_bytes=20_000) == {}, "just half of them is not most"
    assert nodes_off_fabric(sent, "rdma", min_bytes=8_000) == {"node0": "fab0", "node1": "eth0"}


def test_every_interface_of_a_fabric_is_the_fabric() -> None:
    rails = {"node0": {"fab0": 5_000, "fab1": 4_000}, "node1": {"fab1": 1_000, "eth0": 9_000}}
    assert nodes_off_fabric(rails, "fab0,fab1", min_bytes=8_000) == {"node1": "eth0"}


def test_pairs_meet_only_where_a_rung_that_is_judged_lost_to_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hunt = FaultSearchResult({("node0", "node3"): 0.01}, 0.1, {"node3": "both"}, [], 3, 0, "all")
    asked = []

    def pairs(*_: Any) -> PairSearch:
        asked.append(1)
        return PairSearch(hunt, hunt, wrong={}, lost={}, sent={})

    monkeypatch.setattr(scaling_rungs, "run_pair_search", pairs)
    limit = Limit(low=0.6, marginal_low=0.9, because="as agreed")
    at = rig(Notes())
    for found in (ladder(), ladder(data=0.3)):
        assert locate_slow_links(at, found, limit) is found
    slow = ladder(link=0.3)
    assert locate_slow_links(at, slow, None) is slow
    assert not asked
    (place,) = locate_slow_links(at, slow, limit).slow_links or []
    assert place.nodes == ("node3",)
    assert "the links of node3 are slow both ways" in place.said


def test_a_crowded_uplink_is_one_place_with_the_names_of_its_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    links = [(f"node{at}", f"node{39 - at}") for at in range(20)]
    hunt = FaultSearchResult(dict.fromkeys(links, 0.05), 0.1, {}, links, 3, 0, "all", 0.085)
    pairs = PairSearch(hunt, hunt, {}, {}, {}, alone=dict.fromkeys(links, 0.1))
    monkeypatch.setattr(scaling_rungs, "run_pair_search", lambda *_: pairs)
    limit = Limit(low=0.6, marginal_low=0.9, because="as agreed")
    (place,) = locate_slow_links(rig(Notes()), ladder(link=0.3), limit).slow_links or []
    assert place.names == ("node0 to node19", "node20 to node39")
    assert {*place.nodes} == {f"node{at}" for at in range(40)}


def test_what_passes_is_the_end_of_the_marginal_band() -> None:
    assert required_efficiency(None) is None
    assert required_efficiency(Limit(low=0.5, because="as agreed")) == 0.5
    assert required_efficiency(Limit(low=0.5, marginal_low=0.7, because="as agreed")) == 0.7


def computing(*seconds: float) -> list[list[Step]]:
    """One rank's steps that compute so long."""
    return [[Step(one, {"forward": one / 3, "backward": 2 * one / 3}) for one in seconds]]


def test_steps_that_send_nothing_must_compute_as_long_as_those_of_one_node() -> None:
    alone = computing(*[1.0, 1.01, 0.99, 1.0] * 6)
    assert "the same within the noise" in compare_compute(computing(1.0, 1.01, 1.0, 0.99), alone)
    longer = compare_compute(computing(1.3, 1.31, 1.3, 1.29), alone)
    assert longer.endswith("a step on one node for 1.000 s: +0.300 s are unexplained")


def test_the_same_work_on_more_nodes_is_a_series_up_to_where_it_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two nodes halve the step; the rung of four is lost."""
    step = [[Step(1.0, {"forward": 1.0})]]
    rungs = [
        Rung(1, ["a"], step, 800, non_finite=0),
        Rung(2, ["a", "b"], [[Step(0.625, {})]] * 2, 800, non_finite=0),
        GangError("rank 3 died"),
    ]
    climbs(monkeypatch, rungs)
    monkeypatch.setattr(scaling_controls, "run_rung", scaling_rungs.run_rung)
    notes = Notes()
    found = time_same_work(rig(notes), [1, 2, 4], TrainConfig(batch=4))
    assert found == {
        "nodes": [1, 2], "efficiency": [1.0, 0.8], "tokens_per_gpu_step": [800, 400],
    }  # fmt: skip
    assert [(value, on) for _, value, on in notes.seen] == [
        (1.0, "1 node, 800 tokens per GPU and step"),
        (0.8, "2 nodes, 400 tokens per GPU and step"),
    ]


@pytest.mark.parametrize(
    ("window", "seconds", "steps"), [(0, 1.0, 24), (30, 0.1, 300), (30, 5.0, 24), (30, 1e-4, 1000)]
)
def test_a_window_is_long_enough_for_a_gpu_to_heat_up(
    monkeypatch: pytest.MonkeyPatch, window: int, seconds: float, steps: int
) -> None:
    rung = cast(Rung, SimpleNamespace(seconds=seconds))
    monkeypatch.setattr(test_scaling, "run_rung", lambda *_: rung)
    assert fill_window(GANG, {}, TrainConfig(steps=24), window).steps == steps <= MAX_STEPS


def test_a_replay_is_as_doubtful_as_its_noise_and_the_cores_work() -> None:
    base, steady, rough = ladder().rungs[0], Replay([0.5] * 12), Replay([0.5, 0.6, 0.7] * 4)
    pace = mean_seconds(base.median_node()) - 0.01
    real, emulated = plan(1, 2), replace(plan(1, 2), config=TrainConfig(pace_s=pace))
    assert scaling_rungs.replay_uncertainty(steady, steady, base, real) == 0
    assert scaling_rungs.replay_uncertainty(steady, steady, base, emulated) == pytest.approx(0.01)
    assert scaling_rungs.replay_uncertainty(rough, steady, base, real) > 0.05
    drifted = replace(steady, before=[0.4] * 6)
    assert drifted.seconds == pytest.approx(0.45)
    assert scaling_rungs.replay_uncertainty(drifted, steady, base, real) == pytest.approx(0.1)


def test_a_rank_that_died_in_a_part_of_the_gang_is_mended_in_its_own_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the workers 2 and 3, which ran alone, the second died: worker 3 is replaced, not 1."""
    import ray

    gang, place = Gang(4), SimpleNamespace(location=SimpleNamespace(remote=lambda: None))
    here: Any = SimpleNamespace(node="id0")
    gang._workers, gang._bundles, gang.places = [place] * 4, [*range(4)], [here] * 4
    gang._calls, gang.jobs = ["of worker 2", "of worker 3"], [[2, 3]]
    failed = {1: RuntimeError("died")}
    monkeypatch.setattr("reference_trainer.launch.gang._failed_calls", lambda *_: failed)
    monkeypatch.setattr("reference_trainer.launch.gang._pending", lambda *_: [])
    monkeypatch.setattr(ray, "kill", lambda _: None)
    for name, value in (
        ("_group_state", "CREATED"),
        ("_spawn", place),
        ("_locate_workers", ["new"]),
    ):
        monkeypatch.setattr(gang, name, lambda *_, value=value: value)
    assert gang.replace_workers([3]) == [3]
    assert gang.places == [here, here, here, "new"]
