"""What three ranks have after each collective: what they expect, and nothing if it did nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from scaling.collectives.operations import OPERATIONS, PATTERN_PERIOD, Buffers, make_ramp

RANKS, COUNT = 3, 2 * PATTERN_PERIOD + 1  # a part that ends within the pattern
CPU = torch.device("cpu")
CALLS = (
    *("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"),
    "broadcast",
)
FORMS = [
    *(("all_reduce", True), ("all_gather", False), ("all_gather", True), ("alltoall", False)),
    *(("reduce_scatter", False), ("reduce_scatter", True), ("broadcast", True)),
    ("sendrecv", False),
]


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """What each rank hands to its collective, in order of rank."""
    calls: list[list[Any]] = []

    def take(*tensors: Any, **_: Any) -> None:
        calls.append([*tensors])

    def post(ops: list[Any]) -> list[Any]:
        calls.append(ops)
        return []

    for name in CALLS:
        monkeypatch.setattr(dist, name, take)
    monkeypatch.setattr(dist, "P2POp", lambda way, tensor, peer: (way is dist.isend, tensor, peer))
    monkeypatch.setattr(dist, "batch_isend_irecv", post)
    return calls


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch, handed: Any) -> Callable[[str, bool], list[Buffers]]:
    """The buffers of every rank, as they are before the call."""

    def build(name: str, in_place: bool) -> list[Buffers]:
        monkeypatch.setattr(dist, "get_world_size", lambda: RANKS)
        found = []
        for rank in range(RANKS):
            monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
            found.append(OPERATIONS[name].buffers(CPU, COUNT, in_place))
        for buffers in found:
            buffers.out.copy_(buffers.expected)  # the last call was right
            buffers.reset()
        return found

    return build


def exchange(name: str, calls: list[list[Any]]) -> None:
    """Do what the collective does with what the ranks handed to it."""
    if name == "sendrecv":
        posted = {
            (rank, op[2]): op[1].clone() for rank, ops in enumerate(calls) for op in ops if op[0]
        }
        for rank, ops in enumerate(calls):
            for sends, tensor, peer in ops:
                if not sends:
                    tensor.copy_(posted[peer, rank])
        return
    given = [call[-1].clone() for call in calls]
    total = torch.stack(given).sum(0)
    for rank, (out, *_) in enumerate(calls):
        arrived = {
            "all_reduce": [total],
            "broadcast": [given[0]],
            "all_gather": given,
            "reduce_scatter": total.chunk(RANKS)[rank : rank + 1],
            "alltoall": [one.chunk(RANKS)[rank] for one in given],
        }
        out.copy_(torch.cat([*arrived[name]]))


def test_each_collective_is_run_in_the_forms_that_torch_has() -> None:
    forms = [(one.name, place) for one in OPERATIONS.values() for place in one.placements]
    assert sorted(forms) == sorted((n, "in_place" if i else "out_of_place") for n, i in FORMS)


@pytest.mark.parametrize(("name", "in_place"), FORMS)
def test_every_rank_has_what_it_expects(
    ranks: Callable[..., list[Buffers]], handed: list[list[Any]], name: str, in_place: bool
) -> None:
    everyone = ranks(name, in_place)
    for buffers in everyone:
        buffers.run()
    exchange(name, handed)
    for rank, buffers in enumerate(everyone):
        assert torch.equal(buffers.out, buffers.expected), f"rank {rank}"
    assert len(everyone[0].out) == COUNT * (RANKS if name in ("all_gather", "alltoall") else 1)


@pytest.mark.parametrize(("name", "in_place"), FORMS)
def test_a_collective_that_does_nothing_leaves_no_expected_element(
    ranks: Callable[..., list[Buffers]], name: str, in_place: bool
) -> None:
    """A rank's own part of a gather in place, and what the root of a broadcast has, are there."""
    for rank, buffers in enumerate(ranks(name, in_place)):
        kept = (buffers.out == buffers.expected).nonzero().flatten().tolist()
        own = {"all_gather": range(rank * COUNT, (rank + 1) * COUNT) if in_place else []}
        own["broadcast"] = range(COUNT) if rank == 0 else []
        assert kept == [*own.get(name, [])]


def test_the_pattern_takes_no_more_memory_than_the_message() -> None:
    """A message of a quarter of a GPU's memory must leave room for the other three."""
    ramp = make_ramp(CPU, 100 * PATTERN_PERIOD)
    assert ramp.untyped_storage().nbytes() < 1.1 * ramp.nbytes
