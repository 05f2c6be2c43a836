"""What follows the ladder: a delay that is planted, steps that send nothing, the same work."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest

from probes.check.recorder import Recorder
from probes.scaling import judge
from probes.scaling.judge import (
    compare_compute,
    compute_seconds,
    control_planted_delay,
    locate_delay,
    planted_delay,
    proven_efficiency,
    time_same_work,
    time_unsent_step,
)
from probes.scaling.run_ladder import LadderRig
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang, GangError
from reports.measurement import Limit, Verdict
from scaling.ladder.ladder import Rung
from scaling.ladder.step_breakdown import LOCAL_SEGMENTS, Step
from scaling.loss.ladder_result import Ladder
from tests.support.controls import recorder
from tests.support.simulated_ladder import ladder


@pytest.fixture
def measure() -> Recorder:
    return recorder("SCALING")


def rig(measure: Recorder) -> LadderRig:
    return LadderRig(cast(Gang, None), {}, measure)


def rung(count: int, *seconds: float) -> Rung:
    """Steps of so many seconds on each of so many nodes."""
    steps = [Step(each, {"forward": each / 3, "backward": each * 2 / 3}) for each in seconds]
    return Rung(count, [f"node{at}" for at in range(count)], [steps] * count, 800, 0)


def test_on_one_node_no_delay_is_planted_and_the_control_says_why(measure: Recorder) -> None:
    alone = Ladder(rungs=[rung(1, 1.0)], calls=[], fits={}, base_repeats=[])
    control_planted_delay(rig(measure), TrainConfig(), alone, lambda _: None)
    (control,) = measure.finish("finished", 1.0).controls
    assert (control.name, control.caught, control.saw) == (
        "planted delay",
        None,
        "the test ran on only one node",
    )


def ranks_of_one(waits: float, count: int = 4) -> Rung:
    """The ranks of one node, of which the middle one waits so many seconds for its data."""

    def step(own: float) -> Step:
        quick = dict.fromkeys(("optimizer", "checkpoint", "other", "clip"), 0.0)
        sent = {"forward": 0.3 + waits - own, "backward": 0.7}
        return Step(1.0 + waits, {"data": own, **quick, **sent}, wall=1.0 + waits)

    ranks = [[step(waits if rank == count // 2 else 0.0)] * 3 for rank in range(count)]
    return Rung(1, ["node0"] * count, ranks, 800, 0)


@pytest.mark.parametrize(("waits", "caught"), [(0.4, True), (0.0, False)])
def test_on_one_ordered_node_the_delayed_rank_is_found(
    monkeypatch: pytest.MonkeyPatch, measure: Recorder, waits: float, caught: bool
) -> None:
    monkeypatch.setattr(judge, "run_rung", lambda *_: ranks_of_one(waits))
    alone = Ladder(rungs=[ranks_of_one(0.0)], calls=[], fits={}, base_repeats=[])
    limits = partial(measure.contract.limit, "SCALING")
    control_planted_delay(rig(measure), TrainConfig(), alone, limits, alone=True)
    (control,) = measure.finish("finished", 1.0).controls
    assert (control.caught, [one.name for one in control.observed]) == (caught, ["straggler"])


def test_one_rank_of_an_ordered_node_delays_no_other(measure: Recorder) -> None:
    alone = Ladder(rungs=[rung(1, 1.0)], calls=[], fits={}, base_repeats=[])
    control_planted_delay(rig(measure), TrainConfig(), alone, lambda _: None, alone=True)
    (control,) = measure.finish("finished", 1.0).controls
    assert (control.caught, control.saw) == (None, "the job has only one rank")


@pytest.mark.parametrize("alone", [True, False])
def test_only_an_ordered_node_owes_no_efficiency(measure: Recorder, alone: bool) -> None:
    one = Ladder(rungs=[ranks_of_one(0.0)], calls=[], fits={}, base_repeats=[])
    judge.judge_ladder(one, partial(measure.contract.limit, "SCALING"), measure, alone)
    found = {one.name: one.verdict for one in measure.finish("finished", 1.0).measurements}
    assert found.get("efficiency") is (None if alone else Verdict.UNPROVEN)
    assert found["straggler"] is Verdict.PASS


@pytest.mark.parametrize(
    ("limit", "delay"),
    [
        (None, 0.04),  # nothing is agreed: a part of a step of 0.1 s
        (Limit(high=2.0, because="as agreed"), 0.04),
        (Limit(low=0.8, because="as agreed"), 0.04),
        (Limit(low=0.25, because="as agreed"), 0.092),  # up to 0.16 s are allowed
    ],
)
def test_the_delay_is_a_part_of_a_step_or_what_breaks_the_limit(
    limit: Limit | None, delay: float
) -> None:
    found = Ladder(rungs=[rung(1, 0.04), rung(4, 0.1)], calls=[], fits={}, base_repeats=[])
    assert planted_delay(found, limit) == pytest.approx(delay)


def waiting(*seconds: float) -> list[list[Step]]:
    """Ranks that wait so long in collectives; rank 1 waits 1 s for its data."""
    local = dict.fromkeys(LOCAL_SEGMENTS, 0.0)
    return [
        [Step(2.0, {**local, "forward": each, "backward": 0.0, "clip": 0.0, "data": rank == 1})]
        for rank, each in enumerate(seconds)
    ]


@pytest.mark.parametrize(
    ("waits", "located"),
    [
        ((1.0, 0.0, 1.0, 1.0), True),
        ((0.6, 0.0, 1.0, 1.0), True),
        ((0.0, 0.0, 1.0, 1.0), False),  # one did not wait
        ((0.5, 0.0, 1.0, 1.0), False),  # one waited for no more than half of the delay
        ((0.4, 0.0, 0.4, 0.4), False),
        ((1.4, 1.0, 1.4, 1.4), False),  # for something else, the culprit as long as the others
    ],
)
def test_a_delay_is_located_if_all_others_waited_for_it(
    waits: tuple[float, ...], located: bool
) -> None:
    assert locate_delay(waiting(*waits), 1, 1.0)[0] is located
    assert not locate_delay(waiting(*waits), 2, 1.0)[0]


def test_the_step_without_sends_is_sharded_as_on_the_largest_rung(
    monkeypatch: pytest.MonkeyPatch, measure: Recorder
) -> None:
    counts = []

    def skip(gang: Any, names: Any, count: int, config: TrainConfig) -> Rung:
        counts.append((count, config.steps))
        return rung(1, 1.0, 1.0, 1.0, 1.0)

    monkeypatch.setattr(judge, "skip_collectives", skip)
    time_unsent_step(rig(measure), ladder().rungs, TrainConfig())
    (note,) = measure.finish("finished", 1.0).measurements
    assert (counts, note.value, note.subject) == ([(4, 4)], 1.0, "4 nodes")


def test_the_step_without_sends_is_compared_with_one_nodes_and_no_larger_rungs(
    monkeypatch: pytest.MonkeyPatch, measure: Recorder
) -> None:
    """On four nodes a step takes longer: it waits for what this one does not send."""
    said: list[str] = []
    monkeypatch.setattr(measure, "covered", said.append)
    monkeypatch.setattr(judge, "skip_collectives", lambda *_: rung(1, *[1.0] * 4))
    time_unsent_step(rig(measure), [rung(1, *[1.0] * 4), rung(4, *[2.0] * 4)], TrainConfig())
    (text,) = said
    assert "a step computes for 1.000 s, a step on one node for 1.000 s: the same within" in text


def test_compute_that_is_equal_to_the_last_digit_is_the_same() -> None:
    steady = rung(1, *[1.0] * 4).steps
    assert "the same within the noise" in compare_compute(steady, steady)


def test_the_noise_of_few_steps_is_as_uncertain_as_few_steps_are() -> None:
    """The 24 steps of one node do not make the four others any surer."""
    alone = rung(1, *[1.0] * 24).steps
    assert "the same within" in compare_compute(rung(1, 1.02, 1.03, 1.02, 1.05).steps, alone)
    many = rung(1, *[1.02, 1.03, 1.02, 1.05] * 6).steps
    assert "are unexplained" in compare_compute(many, alone)


def test_ranks_of_one_job_have_equally_many_steps() -> None:
    (steps,) = rung(1, 1.0, 1.0).steps
    with pytest.raises(ValueError, match="is shorter than"):
        compute_seconds([steps, steps[:1]])


@pytest.mark.parametrize(("base_s", "proven"), [(1.1, 1.1), (1.11, None)])
def test_more_than_110_percent_shows_that_one_node_was_disturbed(
    base_s: float, proven: float | None
) -> None:
    base, both = rung(1, base_s), rung(2, 1.0)
    found = Ladder(rungs=[base, both], calls=[], fits={}, base_repeats=[base])
    assert proven_efficiency(found, both, None)[0] == proven


def test_the_middle_rank_is_delayed_in_three_steps(
    monkeypatch: pytest.MonkeyPatch, measure: Recorder
) -> None:
    planted: list[TrainConfig] = []

    def run(_: Any, __: Any, count: int, config: TrainConfig) -> Rung:
        planted.append(config)
        raise GangError(f"{count} nodes do not answer")

    monkeypatch.setattr(judge, "run_rung", run)
    found = Ladder(rungs=[rung(1, 0.04), rung(4, 0.1)], calls=[], fits={}, base_repeats=[])
    control_planted_delay(rig(measure), TrainConfig(), found, lambda _: None)
    ((config,), (control,)) = planted, measure.finish("finished", 1.0).controls
    assert (config.steps, config.stall) == (3, f"data:rank=2:seconds={0.4 * 0.1}")
    assert (control.caught, control.saw) == (None, "4 nodes do not answer")


def test_no_node_does_more_than_eight_times_its_usual_work(
    monkeypatch: pytest.MonkeyPatch, measure: Recorder
) -> None:
    monkeypatch.setattr(judge, "run_rung", lambda _, __, count, ___: rung(count, 16 / count))
    nodes = [1, 2, 4, 8, 16]
    found = time_same_work(rig(measure), nodes, replace(TrainConfig(), batch=2))
    assert found["nodes"] == [2, 4, 8, 16]
    assert found["efficiency"] == [1.0] * 4
