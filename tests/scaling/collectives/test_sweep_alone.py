"""A sweep by a rank that is alone: what it counts and times, on gloo and on a GPU that is none."""

from __future__ import annotations

import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from reference_trainer.process_group import GPU_BACKEND, JOB
from scaling.collectives.operations import IN_PLACE, OPERATIONS, Buffers, Operation
from scaling.collectives.sweep import (
    median_precision,
    process_group,
    sweep,
    sweep_operation,
    time_call,
)

CPU, GPU = torch.device("cpu"), SimpleNamespace(type="cuda")
ALL_REDUCE = OPERATIONS["all_reduce"]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank of a job of one, which has no GPU."""
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SEATRIAL_BACKEND", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


class Calls:
    """An operation that counts its calls, each of which takes so many seconds."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.number = seconds, 0
        self.operation = Operation("x", 0, False, self.allocate, placements=IN_PLACE)

    def allocate(self, ramp: Any, *_: Any) -> Buffers:
        return Buffers(self.run, lambda: None, ramp.clone(), ramp)

    def run(self) -> None:
        time.sleep(self.seconds)
        self.number += 1


@pytest.mark.parametrize(
    ("corrupt", "wrong", "first"), [(None, 0, None), (0, 2, 300), (1, 0, None)]
)
def test_the_rank_that_is_to_be_wrong_is_wrong_in_one_element_before_and_after_the_timing(
    corrupt: int | None, wrong: int, first: int | None
) -> None:
    found = sweep(only=3600, budget=0.01, corrupt=corrupt)
    (row,) = found["sweeps"]["all_reduce"]["rows"]
    assert (found["rank"], found["ranks"], found["backend"]) == (0, 1, "gloo")
    assert (row["size"], row["wrong"], row["first_wrong"]) == (3600, wrong, first)


def test_without_a_gpu_nccl_is_refused() -> None:
    with pytest.raises(RuntimeError, match="NCCL needs a GPU"), process_group("nccl"):
        pass


def test_the_third_rank_of_a_node_with_two_gpus_uses_the_first_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[Any] = []
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: used.append(backend))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    with process_group() as device:
        assert str(device) == "cuda:0"
    with process_group(kind=JOB):
        pass
    assert used == [device, "nccl", device, GPU_BACKEND], "a replay's group is the trainer's"


def test_the_more_ranks_the_longer_they_may_take_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[timedelta] = []
    monkeypatch.setattr(dist, "init_process_group", lambda _, timeout, **__: given.append(timeout))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    for ranks in (1, 1001):
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        with process_group(seconds=5):
            pass
    alone, many = given
    assert many - alone >= timedelta(seconds=100)


def test_counters_are_read_before_and_when_all_ranks_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And no rank leaves while another still reads: its connections would be closed."""
    events: list[str] = []

    def read() -> int:
        events.append("read")
        return len(events)

    monkeypatch.setattr(dist, "barrier", lambda: events.append("all are here"))
    found = sweep(only=8, budget=0.01, make_reader=lambda: read)
    assert events == ["read", "all are here", "read", "all are here"]
    assert found["readings"] == [1, 3]


def test_all_sizes_are_timed_until_a_call_takes_too_long() -> None:
    with process_group() as device:
        some = sweep_operation(device, Calls().operation, 1.0, 0.0, [8, 64])
        ended = sweep_operation(device, Calls(0.01).operation, 0.005, 0.0)
    assert [row["size"] for row in some["rows"]] == [8, 64]
    assert [row["size"] for row in ended["rows"]] == [8]
    assert ended["note"].startswith("messages above 8 bytes were skipped: one call of that size ")


def test_the_first_call_which_opens_connections_is_counted_but_not_timed() -> None:
    calls = Calls()
    with process_group() as device:
        (row,) = sweep_operation(device, calls.operation, 1.0, 0.0, [8])["rows"]
    assert (row["calls"], len(row["times"])) == (calls.number, calls.number - 3)


def test_where_the_first_calls_spend_the_time_no_more_than_three_are_timed() -> None:
    """One call of a large message may take seconds."""
    with process_group() as device:
        (row,) = sweep_operation(device, Calls().operation, 1.0, 0.0, [8])["rows"]
    assert len(row["times"]) == 3


def test_each_row_is_of_the_placement_that_it_names() -> None:
    set_up: list[bool] = []

    def allocate(ramp: Any, rank: int, ranks: int, in_place: bool) -> Buffers:
        set_up.append(in_place)
        return Calls().allocate(ramp)

    with process_group() as device:
        rows = sweep_operation(device, Operation("x", 0, False, allocate), 1.0, 0.0, [8])["rows"]
    assert [(row["placement"] == "in_place") for row in rows] == set_up == [False, True]


def test_sums_that_are_repeated_while_calls_are_timed_do_not_overflow() -> None:
    """One that is infinite may be as fast as none, and then is no message of a training."""
    largest = [0.0]

    def allocate(ramp: Any, *_: Any) -> Buffers:
        out = ramp + 1

        def run() -> None:
            largest.append(float(out.add_(out).max()))

        return Buffers(run, lambda: out.copy_(ramp), out, 2 * ramp)

    operation = Operation("sum", 2, False, allocate, placements=IN_PLACE)
    with process_group() as device:
        (row,) = sweep_operation(device, operation, 1.0, 0.5, [8])["rows"]
    assert (row["wrong"], max(largest)) == (0, 2.0)


def test_messages_are_as_large_as_fits_four_times_into_what_is_free_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the last collective left in torch's cache is free too."""
    free = [4096]
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: free.append(8192))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free[-1], 1 << 40))
    tensor = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda data, device: tensor(data))
    with process_group():
        monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
        found = sweep_operation(GPU, ALL_REDUCE, 1.0, 0.01, [4096])
    assert found["rows"] == []
    assert found["note"] == (
        "messages above 2 KiB were skipped: four such messages do not fit into the free memory of "
        "a GPU"
    )


def test_a_call_on_a_gpu_is_timed_by_the_gpus_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [5.0]  # milliseconds of the GPU

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at, self.ended = -1.0, False

        def record(self) -> None:
            self.at = clock[0]

        def synchronize(self) -> None:
            self.ended = True

        def elapsed_time(self, end: Event) -> float:
            assert end.ended, "the GPU still works"
            return end.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)

    def run() -> None:
        clock[0] += 250.0

    assert time_call(Buffers(run, lambda: None, None, None), GPU) == 0.25


def test_a_median_is_as_precise_as_the_spread_and_the_number_of_calls_allow() -> None:
    """For normal noise of sigma: 1.2533 sigma / sqrt(n) of the median."""
    assert median_precision([2.0, 2.0, 2.0]) == 0
    sigma = 1.4826  # of what lies 1 around the median
    few, many = [9.0, 10.0, 11.0] * 3, [9.0, 10.0, 11.0] * 12
    assert median_precision(few) == pytest.approx(1.2533 * sigma / 3 / 10)
    assert median_precision(many) == pytest.approx(median_precision(few) / 2)
