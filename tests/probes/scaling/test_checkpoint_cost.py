"""What a save holds a job up by, whose writing it is, and what the probe says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.cluster.cluster import Cluster
from probes.contract.contract import ClusterTerms, Contract, load
from probes.scaling import base_speed as scaling_saves
from probes.scaling.base_speed import SAVE_GAP, SAVES, SavePlan, time_saves
from probes.scaling.run_ladder import LadderRig
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang, GangError, WorkerLost
from reference_trainer.model.size import parameter_count
from reports.measurement import Verdict
from reports.record import ProbeResult
from scaling.ladder.ladder import WARM_UP_STEPS, Rung, collect_saves, median_save, slow_writer_node
from scaling.ladder.step_breakdown import Step
from tests.support.controls import recorder

NODES = ["a", "a", "b", "b", "c", "c"]  # of each rank
QUICK = (0.1,) * 6  # seconds of each rank's own writing
TRAINED = TrainConfig(pace_s=0.4)
LAB = load("lab")


def rung(held: dict[int, float], own: tuple[float, ...] = QUICK, nodes: list[str] = NODES) -> Rung:
    """Steps of 1 s; those of these numbers saved for so long, and every rank waited."""
    last = max(held)
    steps = [
        Step(1 + wait, {"forward": 1.0, "checkpoint": wait})
        for wait in (held.get(number, 0.0) for number in range(WARM_UP_STEPS + 1, last + 1))
    ]
    saves = [[{"step": n, "bytes": 6000, "own": mine} for n in held] for mine in own]
    return Rung(len({*nodes}), nodes, [steps] * len(nodes), 100, 0, saves=saves)


def test_a_save_holds_up_by_what_its_step_took_longer() -> None:
    found = collect_saves(rung({WARM_UP_STEPS: 9.0, 4: 0.5, 8: 3.0, 12: 1.0}))
    assert [(save.step, save.stall_s) for save in found] == [(4, 0.5), (8, 3.0), (12, 1.0)]
    assert {(save.size_bytes, save.write_s) for save in found} == {(6000, QUICK)}
    assert median_save(found).step == 12
    assert median_save(found[:2]).step == 8  # of two the longer


def test_a_save_that_a_rank_did_not_make_is_none() -> None:
    one = rung({4: 1.0, 8: 1.0})
    fewer = [*one.saves[:2], one.saves[2][1:], *one.saves[3:]]
    assert [save.step for save in collect_saves(replace(one, saves=fewer))] == [8]


def test_the_wait_of_a_rank_that_begins_its_save_early_is_no_stall() -> None:
    """Nor is a rank that is late after the save: the others wait for it in the next meeting."""
    one = rung({4: 1.0, 5: 0.0})
    saved, after = one.steps[0][-2:]
    early = [*one.steps[0][:-2], Step(3.0, {"forward": 1.0, "checkpoint": 2.0}), waits(after, 2.0)]
    assert collect_saves(replace(one, steps=[early, *one.steps[1:]]))[0].stall_s == 1.0
    late = [*one.steps[0][:-2], Step(4.0, {"forward": 1.0, "checkpoint": 3.0}), after]
    others = [[*one.steps[0][:-2], saved, waits(after, 2.0)]] * 5
    assert collect_saves(replace(one, steps=[late, *others]))[0].stall_s == 3.0


def waits(step: Step, seconds: float) -> Step:
    """The same step, with a wait in forward."""
    return Step(step.seconds + seconds, {**step.segments, "forward": 1.0 + seconds})


@pytest.mark.parametrize(
    ("own", "held", "nodes", "node"),
    [
        ((0.1, 0.1, 0.1, 2.0, 0.1, 0.1), 2.0, NODES, "b"),  # one rank of it is enough
        ((2.0, 2.0, 2.0, 2.0, 2.0, 2.0), 2.0, NODES, None),  # slow everywhere
        ((0.1, 0.1, 0.1, 0.3, 0.1, 0.1), 2.0, NODES, None),  # most of it is something else
        ((1.0, 1.0, 1.0, 1.9, 1.0, 1.0), 1.9, NODES, None),  # not even twice as long
        ((0.1, 2.0), 2.0, ["a", "b"], "b"),
        ((0.1, 2.0), 2.0, ["a", "a"], None),  # there is no other node to compare with
    ],
)
def test_the_node_that_the_others_wait_for_writes_longest(
    own: tuple[float, ...], held: float, nodes: list[str], node: str | None
) -> None:
    (save,) = collect_saves(rung({4: held}, own, nodes))
    assert slow_writer_node(save, nodes) == node


@pytest.fixture
def mended() -> list[list[int]]:
    """The ranks that were made anew."""
    return []


@pytest.fixture
def asked() -> list[TrainConfig]:
    """The loads of all runs of the trainer."""
    return []


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mended: Any, asked: list[TrainConfig]
) -> Callable[..., ProbeResult]:
    """What the probe writes down when its climbs find these, one after the other."""

    def run(
        *found: Any,
        folder: Path | None = tmp_path,
        blind: Any = (),
        hangs: Any = (),
        count: int = 3,
        config: TrainConfig = TRAINED,
        agreed: Contract = LAB,
        **terms: Any,
    ) -> Any:
        each, before = iter(found), len(asked)

        def climb(
            gang: Any, names: Any, count: int, config: TrainConfig, *, timeout: float
        ) -> Rung:
            assert timeout == 15 * 60, "storage may be slow"
            asked.append(config)
            one = next(each)
            if isinstance(one, Exception):
                raise one
            return cast(Rung, one)

        monkeypatch.setattr(scaling_saves, "run_rung", climb)
        ledger = recorder("SCALING", agreed)
        nodes = [{"name": name} for name in dict.fromkeys(NODES)]
        monkeypatch.setattr(scaling_saves, "find_blind_nodes", lambda *_: [*blind])
        seen = SimpleNamespace(nodes=nodes)
        gang = SimpleNamespace(busy=lambda: [*hangs], silent=list, replace_workers=mended.append)
        work = SavePlan(folder, config, ClusterTerms(**terms))
        time_saves(LadderRig(cast(Gang, gang), {}, ledger), cast(Cluster, seen), count, work)
        own = asked[before:]
        for config in own:
            assert config.save_every
            assert str(config.checkpoints).startswith(str(folder))
        assert len({config.checkpoints for config in own}) == len(own)  # none resumes another
        return ledger.finish("finished", 1.0)

    return run


def saved(held: float, own: tuple[float, ...] = QUICK) -> Rung:
    """The climb with as many saves as are timed."""
    each = {SAVE_GAP * (at + 1): held for at in range(SAVES)}
    return rung({**each, SAVES * SAVE_GAP + 1: 100.0}, own)  # the last one is not judged


def late(by: float, rank: int = 3) -> Rung:
    """The climb with one save that is slow on one rank."""
    own = [0.1] * 6
    own[rank] += by
    return rung({WARM_UP_STEPS + 1: by}, tuple(own))


def judged(result: ProbeResult) -> tuple[Any, Verdict | None]:
    """The value of what is judged, and its verdict."""
    (one,) = [one for one in result.measurements if one.name == "checkpoint_overhead"]
    return one.value, one.verdict


def test_saves_that_are_quick_pass_and_a_slow_one_that_is_planted_is_found(run: Any) -> None:
    result = run(saved(0.2), late(0.5))
    assert judged(result) == (pytest.approx(0.2 / 1800), Verdict.PASS)
    assert not result.findings
    (control,) = result.controls
    assert control.caught
    assert control.saw == "rank 3 writes for 0.6 s, other ranks for 0.1 s"
    notes = {one.name: one.value for one in result.measurements if not one.judged}
    assert notes == {"save_stall": pytest.approx(0.2), "save_rate": pytest.approx(30000)}


def test_a_step_follows_each_save_that_is_judged_and_the_slow_save_is_in_the_timed_step(
    run: Any, asked: list[TrainConfig]
) -> None:
    run(saved(0.2), late(0.5))
    timed, slow = asked  # the warm-up steps come before theirs
    assert timed.save_every == SAVE_GAP
    assert timed.steps + WARM_UP_STEPS == SAVES * SAVE_GAP + 1
    assert slow.save_every == slow.steps + WARM_UP_STEPS


def test_the_slow_save_is_judged_as_twice_as_long_as_is_allowed(run: Any) -> None:
    (control,) = run(saved(0.2), late(0.5)).controls
    assert [one.value for one in control.observed] == [pytest.approx(2 * 0.02)]


def test_saves_that_only_inform_are_made_and_their_control_proves_nothing(run: Any) -> None:
    informs = LAB.model_copy(update={"optional": {"SCALING": "one node is all there is"}})
    result = run(saved(0.2), late(0.5), agreed=informs)
    assert result.measurements[0].value == pytest.approx(0.2 / 1800)
    assert [control.caught for control in result.controls] == [None]


@pytest.mark.parametrize(("missing", "made"), [(0, True), (1, False)])
def test_three_saves_of_parameters_and_both_moments_must_fit_into_the_folder(
    run: Any, monkeypatch: pytest.MonkeyPatch, missing: int, made: bool
) -> None:
    free = 3 * 12 * parameter_count(TRAINED) - missing
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    result = run(saved(0.2), late(0.5))
    assert (judged(result)[0] is not None) == made


@pytest.mark.near_miss("SCALING.checkpoint_overhead")
def test_saves_that_take_just_as_long_as_is_allowed_are_sound(run: Any) -> None:
    result = run(saved(0.0199 * 1800), late(0.5))
    assert judged(result)[1] in (Verdict.PASS, Verdict.MARGINAL)


def test_saves_that_take_longer_than_is_allowed_fail(run: Any) -> None:
    assert judged(run(saved(0.0201 * 1800), late(0.5)))[1] is Verdict.FAIL


HALF = rung({WARM_UP_STEPS + 1: 0.25}, (0.25, 0.25, 0.25, 0.5, 0.25, 0.25))


@pytest.mark.parametrize(
    "seen",
    [late(0.5, rank=1), late(0.1), HALF],
    ids=["other rank", "too little", "half of the delay"],
)
def test_a_slow_save_that_is_not_found_is_no_proof(run: Any, seen: Rung) -> None:
    (control,) = run(saved(0.2), seen).controls
    assert control.caught is False


def test_saves_that_hold_training_up_fail_with_the_node_that_writes_longest(run: Any) -> None:
    slow = (0.1, 0.1, 0.1, 0.1, 39.9, 0.1)
    result = run(saved(40.0, slow), late(40.0))
    assert judged(result) == (pytest.approx(40 / 1800), Verdict.FAIL)
    (finding,) = result.findings
    assert (finding.code, finding.suspects) == ("SCALE-CHECKPOINT", ["c"])
    assert finding.statement == (
        "on 3 nodes a save of 6 kB stops training for 40 s. With a save every 30 minutes, training "
        "stops for 2.22 % of the time. The others wait while c writes"
    )
    everywhere = run(saved(40.0, (39.0,) * 6), late(40.0))
    assert [one.suspects for one in everywhere.findings] == [[]]


def test_the_agreed_time_between_saves_is_what_they_are_judged_by(run: Any) -> None:
    assert judged(run(saved(1.0), late(1.0), save_minutes=1.0))[1] is Verdict.MARGINAL
    assert judged(run(saved(1.0), late(1.0), save_minutes=0.5))[1] is Verdict.FAIL


def test_a_save_is_judged_as_one_of_the_agreed_size(run: Any) -> None:
    result = run(saved(1.0), late(1.0), save_gb=6e-4)  # a hundred times what was saved
    assert judged(result) == (pytest.approx(100 / 1800), Verdict.FAIL)
    (finding,) = result.findings
    assert "stops training for 1 s; 0.6 MB would take 100 s (in proportion)" in finding.statement
    assert " for 5.56 % of the time" in finding.statement
    assert result.measurements[0].subject == "3 nodes, 0.6 MB every 30 minutes"


def test_the_delay_that_is_planted_stands_out_of_a_node_that_is_slow_anyway(run: Any) -> None:
    slow = (0.1, 0.1, 0.1, 0.1, 0.1, 5.0)
    own = (0.1, 0.1, 0.1, 10.1, 0.1, 5.5)
    (control,) = run(saved(5.0, slow), rung({WARM_UP_STEPS + 1: 10.0}, own)).controls
    assert control.caught
    assert control.fault.startswith("rank 3 writes 10 s longer")


@pytest.mark.parametrize(
    ("found", "where", "says"),
    [
        ([], {"folder": None}, "([cluster] shared). seatrial has found no folder that it"),
        ([], {"blind": ["node2"]}, "or cannot see the files that other nodes write there"),
        ([], {"hangs": [3]}, "ranks of the previous run hang or have ended"),
        ([], {"config": replace(TRAINED, dim=1 << 20, layers=96)}, " of free space there, found "),
        ([], {"count": 1}, "no run on several nodes succeeded"),
        ([GangError("rank 1 failed: CheckpointError: no space left")], {}, "no space left"),
        ([replace(rung({4: 0.2}), save_errors=("full",))], {}, "1 of 3 saves were made: full"),
    ],
    ids=["no folder", "not shared", "hang", "full", "one node", "breaks", "fails"],
)  # fmt: skip
def test_what_could_not_be_saved_is_not_proven(
    run: Any, found: list[Any], where: dict[str, Any], says: str
) -> None:
    result = run(*found, **where)
    assert judged(result) == (None, Verdict.UNPROVEN)
    assert says in result.measurements[0].note
    assert not result.controls


@pytest.mark.parametrize("names", ["abc", "a"], ids=["three nodes", "the only node"])
def test_nothing_speaks_against_a_save_that_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    monkeypatch.setattr(scaling_saves, "find_blind_nodes", lambda *_: [])
    cluster: Any = SimpleNamespace(nodes=[{"name": name} for name in names])
    gang: Any = SimpleNamespace(busy=list, silent=list)
    plan = SavePlan(tmp_path, TRAINED, ClusterTerms())
    assert scaling_saves.no_save_reason(cluster, gang, len(names), plan) == ""


def test_a_control_that_breaks_says_why_and_leaves_the_gang_whole(run: Any, mended: Any) -> None:
    lost = WorkerLost("rank 3 died", ranks=[3], lost_at=0.0)
    (control,) = run(saved(0.2), lost).controls
    assert (control.caught, control.saw, mended) == (None, "rank 3 died", [[3]])
    run(lost)
    assert mended == [[3], [3]]
