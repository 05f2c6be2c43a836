"""The payloads of very many ranks, without the ranks: their sums are exact and tell who is who."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from scaling.collectives.operations import OPERATIONS, PATTERN_PERIOD, Buffers
from scaling.collectives.sweep import ring_bytes_sent
from tests.scaling.collectives.test_sweep import ALL_REDUCE

RANKS = 10_000
CPU = torch.device("cpu")


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Buffers]:
    """Buffers of a collective as that rank of RANKS, or of fewer, has them."""

    def of(name: str, rank: int, ranks: int = RANKS) -> Buffers:
        monkeypatch.setattr(dist, "get_rank", lambda: rank)
        monkeypatch.setattr(dist, "get_world_size", lambda: ranks)
        found = OPERATIONS[name].buffers(CPU, PATTERN_PERIOD, False)
        found.reset()
        return found

    return of


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What ranks hand to a collective, which then does nothing."""
    tensors: list[torch.Tensor] = []

    def take(*arguments: Any) -> None:
        tensors.append(arguments[-1])

    for name in ("all_reduce", "reduce_scatter_tensor", "all_to_all_single"):
        monkeypatch.setattr(dist, name, take)
    return tensors


# What ranks give to a reduce-scatter grows with their number: fewer ranks, and the largest sum of
# RANKS is computed.
@pytest.mark.parametrize(("name", "ranks"), [("all_reduce", RANKS), ("reduce_scatter", RANKS // 8)])
def test_sums_over_very_many_ranks_are_exact(
    name: str,
    ranks: int,
    buffers: Callable[..., Buffers],
    given: list[torch.Tensor],
) -> None:
    total, largest = None, 0.0
    for rank in range(ranks):
        buffers(name, rank, ranks).run()
        payload = given.pop()
        assert payload.dtype == torch.float32
        assert payload.min() >= 0
        largest = max(largest, float(payload.max()))
        total = payload.clone() if total is None else total.add_(payload)
    assert total is not None
    assert largest * RANKS < 1 << 24  # so is each sum on the way, in whatever order
    assert total.max() <= largest * ranks
    for rank in (0, 1, 251, ranks // 2, ranks - 1):
        part = (
            total
            if name == "all_reduce"
            else total[rank * PATTERN_PERIOD : (rank + 1) * PATTERN_PERIOD]
        )
        assert torch.equal(part, buffers(name, rank, ranks).expected)


@pytest.mark.parametrize("other", [1, 8, 64, 128, 1024, 4096])
def test_what_another_rank_gives_is_seen(
    other: int, buffers: Callable[..., Buffers], given: list[torch.Tensor]
) -> None:
    for name in ("all_reduce", "reduce_scatter", "alltoall"):
        mine, theirs = buffers(name, 5), buffers(name, 5 + other)
        mine.run()
        theirs.run()
        theirs_given, mine_given = given.pop(), given.pop()
        assert not torch.any(mine_given == theirs_given)
        if name != "all_reduce":  # nor does another part look the same
            part = mine_given[other * PATTERN_PERIOD : (other + 1) * PATTERN_PERIOD]
            assert not torch.any(mine_given[:PATTERN_PERIOD] == part)
            assert not torch.any(mine.expected == theirs.expected)


def test_parts_of_very_many_ranks_arrive_as_they_are_expected(
    buffers: Callable[..., Buffers], given: list[torch.Tensor]
) -> None:
    for sender, receiver in ((0, RANKS - 1), (4097, 4099), (RANKS - 1, RANKS - 2)):
        buffers("alltoall", sender).run()
        sent = given.pop()[receiver * PATTERN_PERIOD : (receiver + 1) * PATTERN_PERIOD]
        assert torch.equal(sent.diff(), torch.ones(PATTERN_PERIOD - 1))  # no number is rounded
        wanted = buffers("alltoall", receiver).expected
        assert torch.equal(sent, wanted[sender * PATTERN_PERIOD : (sender + 1) * PATTERN_PERIOD])


def test_busbw_is_that_of_nccl_tests() -> None:
    # 8 GiB in 37.2 ms over 16 ranks: algbw 230.9, busbw x 2 x 15 / 16.
    size, seconds = 8 << 30, 0.0372
    algbw = size / seconds / 1e9
    assert ALL_REDUCE.busbw(size, seconds, 16) == pytest.approx(algbw * 1.875)
    assert OPERATIONS["all_gather"].busbw(size, seconds, 16) == pytest.approx(algbw * 15 / 16)
    assert OPERATIONS["alltoall"].busbw(size, seconds, 16) == pytest.approx(algbw * 15 / 16)
    assert OPERATIONS["broadcast"].busbw(size, seconds, 16) == pytest.approx(algbw)
    assert ALL_REDUCE.busbw(8, 1.0, 1) == 0
    assert ALL_REDUCE.count(64, 4) == 16
    assert OPERATIONS["all_gather"].count(64, 4) == 4
    assert ring_bytes_sent([{"size": 1000, "calls": 2}], ALL_REDUCE, 4) == 3000
