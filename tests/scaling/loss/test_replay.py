"""What communication should cost: the calls that are played are those that FSDP2 makes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang
from scaling.collectives.line_rate import Fit
from scaling.ladder.ladder import run_on_fake_group
from scaling.loss import predict
from scaling.loss.predict import (
    REPLAY_STEPS,
    CollectiveCall,
    count_calls,
    min_bytes_sent,
    modelled_seconds,
    replay_on_rank,
    saved_at_agreed_rate,
    step_collectives,
    time_collectives,
)
from tests.support.single_rank import only_rank

NAMES = {
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "allreduce_": "all_reduce",
}


class Overheard(TorchDispatchMode):
    """Notes each collective of c10d, with the larger side's bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        space, name, *_ = str(function).split(".")
        if space == "c10d" and name in NAMES:
            tensors = [one for one in tree_leaves(args) if isinstance(one, torch.Tensor)]
            most = max(one.numel() * one.element_size() for one in tensors)
            self.calls.append((NAMES[name], most))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("layers", "accumulate"), [(1, 1), (2, 1), (4, 1), (2, 2), (3, 3)])
def test_the_order_is_that_of_fsdp2(layers: int, accumulate: int) -> None:
    config = TrainConfig(
        steps=2, dim=32, seq=16, layers=layers, batch=4, accumulate=accumulate, digest=False,
        device="cpu",
    )  # fmt: skip
    with only_rank(), Overheard() as seen:
        run_on_fake_group(4, config)
    numbers = ("all_reduce", 3 * 4)  # of 4 bytes: timed as a few more, which take as long
    calls = [
        numbers if one[0] == "all_reduce" else one for one in step_collectives(config, 4) if one
    ]
    assert seen.calls == calls * 2


def test_each_block_computes_forward_and_backward_in_each_part() -> None:
    config = TrainConfig(layers=3, batch=4, accumulate=2)
    assert step_collectives(config, 4).count(None) == 2 * 3 * 2


def test_calls_are_counted_by_kind_and_size() -> None:
    order = [("all_gather", 8), None, ("all_gather", 8), ("reduce_scatter", 8), ("all_gather", 4)]
    assert count_calls(order) == [
        CollectiveCall("all_gather", 8, 2),
        CollectiveCall("reduce_scatter", 8, 1),
        CollectiveCall("all_gather", 4, 1),
    ]


def fits(gather: float, reduce: float) -> dict[str, Fit]:
    """Of these bandwidths, in GB/s."""
    return {
        "all_gather": Fit(latency_us=100, bandwidth=gather, residual=0, points=2),
        "reduce_scatter": Fit(latency_us=100, bandwidth=reduce, residual=0, points=2),
        "all_reduce": Fit(latency_us=0, bandwidth=1e-5, residual=0, points=2),
    }


ORDER = [("all_gather", 1_000_000), None, ("reduce_scatter", 1_000_000), ("all_reduce", 64)]


def test_links_of_the_agreed_rate_shorten_what_moves_the_model() -> None:
    moved = 1e6 * 3 / 4  # bytes over each rank's link, among four
    seconds = saved_at_agreed_rate(ORDER, fits(0.02, 0.01), ranks=4, busbw=0.1)
    assert seconds == pytest.approx(0.8 * (moved / 0.02e9 + moved / 0.01e9))


def test_links_are_as_fast_as_the_fastest_collective_shows() -> None:
    """A reduce-scatter that is slow by itself, as gloo's is, accuses no link."""
    assert saved_at_agreed_rate(ORDER, fits(0.1, 0.01), ranks=4, busbw=0.1) == 0
    assert saved_at_agreed_rate(ORDER, fits(math.inf, 0.01), ranks=4, busbw=0.1) == 0


def test_the_alpha_beta_time_and_the_bytes_of_a_step_are_those_of_its_calls() -> None:
    order, found = ORDER[:3], fits(0.02, 0.01)
    seconds = 2e-4 + 0.75e6 / 0.02e9 + 0.75e6 / 0.01e9
    assert modelled_seconds(order, found, ranks=4) == pytest.approx(seconds)
    assert min_bytes_sent(order, ranks=4, steps=12) == 12 * 2 * 0.75e6


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
def test_a_step_is_played_with_its_rests_and_the_cores_work() -> None:
    order = step_collectives(TrainConfig(layers=1, dim=32), 4)
    with only_rank():
        seconds, calls = replay_on_rank(order, sleep_s=0.02, busy_s=0.01, steps=4)
    assert set(calls) >= {one for one in order if one}
    assert len(seconds) == 3  # the fourth is of smaller calls, for the fits alone
    assert min(seconds) > 2 * (0.02 + 0.01)  # forward and backward of one block
    assert sum(calls.values()) < max(seconds)


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
@pytest.mark.parametrize(("errors", "played"), [([0.019], 9), ([0.02], 12)])
def test_a_replay_ends_when_its_median_step_is_known_to_two_percent(
    monkeypatch: pytest.MonkeyPatch, errors: list[float], played: int
) -> None:
    """Of the steps that are played, every fourth is of smaller calls."""
    left = [*errors]
    monkeypatch.setattr(predict, "median_precision", lambda steps: left.pop(0))
    with only_rank():
        steps, _ = replay_on_rank([("all_reduce", 1024)], sleep_s=0, busy_s=0, steps=16)
    assert (len(steps), left) == (played, [])


def test_what_is_expected_is_the_median_groups_step() -> None:
    """Of three groups of two ranks; the fits are the first one's."""
    calls = {("all_gather", 1_000_000): 0.010, ("all_gather", 62_500): 0.001}
    times = [1.0, 1.2, 5.0, 5.2, 2.0, 2.2]

    def run(function: Any, *arguments: Any, **_: Any) -> Any:
        assert (function, arguments[1:]) == (replay_on_rank, (0.1, 0.2, REPLAY_STEPS))
        return [([seconds, seconds + 0.2], calls) for seconds in times]

    gang = cast(Gang, SimpleNamespace(run=run))
    seconds, fits = time_collectives(gang, [[0, 1], [2, 3], [4, 5]], [("all_gather", 1)], 0.1, 0.2)
    assert seconds == pytest.approx([2.1, 2.3])
    assert fits["all_gather"].points == 2
    alone, none = time_collectives(
        gang, [[rank] for rank in range(6)], [("all_gather", 1)], 0.1, 0.2
    )
    assert (alone, none) == (pytest.approx([2.0, 2.2]), {})
    unequal, largest = time_collectives(
        gang, [[0], [1, 2, 3], [4, 5]], [("all_gather", 1)], 0.1, 0.2
    )
    assert unequal == pytest.approx([2.1, 2.3]), "of 1.0, of 1.2, 5.0 and 5.2, of 2.0 and 2.2"
    assert largest["all_gather"].points == 2
