"""The four runs by all ranks and by one rank less, over a gang that only counts samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.restart.other_ranks import (
    WorldSizeRuns,
    judge_world_sizes,
    run_world_sizes,
    samples_differ,
)
from reference_trainer.config import TrainConfig
from reports.measurement import Verdict
from tests.support.controls import recorder


class CountingGang:
    """Trains nothing: its ranks write and read checkpoints that hold no more than their step."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __enter__(self) -> CountingGang:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(
        self, _: Any, config: TrainConfig, *, timeout: float, groups: Sequence[range] = ()
    ) -> list[dict[str, Any]]:
        ranks = [*groups[0]] if groups else [*range(self.size)]
        folder = Path(str(config.checkpoints))
        start = max([0, *(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))])
        numbers = range(start + 1, config.steps + 1)
        for number in numbers:
            if config.save_every and number % config.save_every == 0:
                (folder / f"step-{number}").mkdir(parents=True)
        late = int(config.forget == "data")
        rounding = 2**-10 * (len(ranks) < self.size)

        def step(number: int, rank: int) -> dict[str, Any]:
            first = ((number - 1) * len(ranks) + rank) * config.batch + late
            samples = [*range(first, first + config.batch)]
            return {"step": number, "loss": 4 - number / 8 + late + rounding, "ids": samples}

        return [
            {"start_step": start, "steps": [step(number, rank) for number in numbers]}
            for rank in ranks
        ]


def run_on(size: int, folder: Path) -> WorldSizeRuns:
    cluster: Any = SimpleNamespace(size=size, gang=CountingGang)
    return run_world_sizes(cluster, folder)


@pytest.mark.parametrize(("size", "ranks"), [(2, 2), (3, 3), (4, 4), (16, 4)])
def test_at_most_four_ranks_run_and_then_one_less(size: int, ranks: int, tmp_path: Path) -> None:
    runs = run_on(size, tmp_path)
    fewer = [len(each) for each in (runs.fewer, runs.resumed, runs.late)]
    assert (len(runs.full), fewer) == (ranks, [ranks - 1] * 3)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_one_rank_less_takes_the_same_samples_and_only_a_mistake_takes_others(
    size: int, tmp_path: Path
) -> None:
    runs = run_on(size, tmp_path)
    assert samples_differ(runs.full, runs.fewer) == []
    assert samples_differ(runs.full, runs.resumed) == []
    assert samples_differ(runs.full, runs.late) == [5, 6, 7, 8, 9, 10]


def test_runs_that_do_what_they_should_pass_and_the_mistake_is_caught(tmp_path: Path) -> None:
    """Of the two checkpoints the older one is given, so that most steps are compared."""
    measure = recorder("RESTART")
    judge_world_sizes(run_on(4, tmp_path), measure)
    result = measure.result("finished", 1.0)
    assert {one.verdict for one in result.measurements if one.judged} == {Verdict.PASS}
    assert [one.value for one in result.measurements if one.name == "resumed_from"] == [4]
    assert [one.caught for one in result.controls] == [True]
