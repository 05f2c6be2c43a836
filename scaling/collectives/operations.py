"""Defines six collectives: how each is called, its expected result, and its bus bandwidth.

Sizes and factors are those of nccl-tests (src/*.cu, doc/PERFORMANCE.md). Payloads are small
integers, exact in float32 also after summing over 10,000s of ranks. They differ by rank and offset,
so a wrong element shows its sender and its position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from reference_trainer.late import dist, torch

PATTERN_PERIOD = 7  # payloads repeat 0..6
# Sums grow with the number of ranks, and float32 is exact up to 2^24 only: so rank values repeat
# 0..250. A prime, because data of a wrong rank mostly come from a power of two away.
RANK_PERIOD = 251
ITEM_BYTES = 4  # bytes of a float32
PLACEMENTS = ("out_of_place", "in_place")
OUT_OF_PLACE, IN_PLACE = PLACEMENTS[:1], PLACEMENTS[1:]


@dataclass(frozen=True)
class Operation:
    """One collective.

    `rounds` is how often each rank sends (n - 1) / n of the data to others, as in a ring; 0 if it
    sends all of it once. `size` bytes are those of nccl-tests' size column: the complete buffer, n
    times larger than a part if ranks hold parts. `sharded` is whether a rank holds a part of
    size / n. `redop` and `root` are nccl-tests' columns.
    """

    name: str
    rounds: int
    sharded: bool
    allocate: Callable[[Any, int, int, bool], Buffers]  # of (ramp, rank, ranks, in_place)
    redop: str = "none"
    root: int = -1
    placements: tuple[str, ...] = PLACEMENTS

    def buffers(self, device: Any, count: int, in_place: bool) -> Buffers:
        """Build this rank's tensors of `count` elements for the process group that it is in."""
        ramp = make_ramp(device, count)
        return self.allocate(ramp, dist.get_rank(), dist.get_world_size(), in_place)

    def factor(self, ranks: int) -> float:
        """Return what turns algorithm bandwidth into bus bandwidth for so many ranks."""
        return self.rounds * ((ranks - 1) / ranks) if self.rounds else 1.0

    def busbw(self, size: int, seconds: float, ranks: int) -> float:
        """Return the bus bandwidth in GB/s (1e9 bytes); 0 for one rank, where nothing moves."""
        return size / seconds / 1e9 * self.factor(ranks) if ranks > 1 else 0.0

    def count(self, size: int, ranks: int) -> int:
        """Return the elements per rank: nccl-tests' count column."""
        return size // ITEM_BYTES // (ranks if self.sharded else 1)


@dataclass
class Buffers:
    """Tensors of one size on one rank.

    `run` calls the collective once; it is timed, so it looks up no late name. `out` must then
    equal `expected`, if `reset` was called before.
    """

    run: Callable[[], None]
    reset: Callable[[], None]
    out: Any
    expected: Any


def make_ramp(device: Any, count: int) -> Any:
    """Build the payload's pattern: so many elements that repeat 0..6."""
    # torch.arange in float32 is not exact beyond 2^24, so a short ramp is repeated.
    ramp = torch.arange(PATTERN_PERIOD, device=device, dtype=torch.float32)
    return ramp.repeat(count // PATTERN_PERIOD + 1)[:count]


def _repeat_with_offsets(ramp: Any, offsets: Any, out: Any = None) -> Any:
    """Build one copy of the ramp for each offset, with the offset added, one after the other.

    The result has len(offsets) x len(ramp) elements. It is written into `out` if given.
    """
    rows = None if out is None else out.view(len(offsets), len(ramp))
    return torch.add(ramp, offsets[:, None].to(ramp), out=rows).view(-1)


def _rank_values(ranks: int) -> Any:
    """Return the number that stands for each rank or part in sums: (ranks,) integers."""
    return torch.arange(ranks) % RANK_PERIOD


def _all_reduce(ramp: Any, rank: int, ranks: int, in_place: bool) -> Buffers:
    """Set up a sum over ranks; torch only has the in-place form."""
    out = ramp + (rank % RANK_PERIOD + 1)
    expected = ramp * ranks + (int(_rank_values(ranks).sum()) + ranks)

    def reset() -> None:
        out.copy_(ramp).add_(rank % RANK_PERIOD + 1)

    return Buffers(partial(dist.all_reduce, out), reset, out, expected)


def _all_gather(ramp: Any, rank: int, ranks: int, in_place: bool) -> Buffers:
    """Set up a gather of every rank's part, in order, on every rank."""
    count = len(ramp)
    out = ramp.new_zeros(count * ranks)
    part = out[rank * count : (rank + 1) * count] if in_place else torch.empty_like(ramp)
    expected = _repeat_with_offsets(ramp, torch.arange(ranks) + 1)

    def reset() -> None:
        out.fill_(-1)
        part.copy_(ramp).add_(rank + 1)

    return Buffers(partial(dist.all_gather_into_tensor, out, part), reset, out, expected)


def _reduce_scatter(ramp: Any, rank: int, ranks: int, in_place: bool) -> Buffers:
    """Set up a sum over ranks; each rank gets its part of it."""
    count, rank_values = len(ramp), _rank_values(ranks)
    source = ramp.new_empty(count * ranks)
    out = source[rank * count : (rank + 1) * count] if in_place else torch.empty_like(ramp)
    expected = ramp * ranks + (int(rank_values.sum()) + ranks + ranks * (rank % RANK_PERIOD))

    def reset() -> None:
        if not in_place:
            out.fill_(-1)
        _repeat_with_offsets(ramp, rank_values + (rank % RANK_PERIOD + 1), source)

    return Buffers(partial(dist.reduce_scatter_tensor, out, source), reset, out, expected)


def _all_to_all(ramp: Any, rank: int, ranks: int, in_place: bool) -> Buffers:
    """Set up an exchange: part d of rank s becomes part s of rank d.

    torch only has the out-of-place form.
    """
    rank_values = _rank_values(ranks)
    source = _repeat_with_offsets(ramp, rank % RANK_PERIOD * RANK_PERIOD + rank_values)
    out = torch.empty_like(source)
    wanted = _repeat_with_offsets(ramp, rank_values * RANK_PERIOD + rank % RANK_PERIOD)
    return Buffers(partial(dist.all_to_all_single, out, source), lambda: out.fill_(-1), out, wanted)


def _broadcast(ramp: Any, rank: int, ranks: int, in_place: bool) -> Buffers:
    """Set up a copy of rank 0's buffer to every rank; torch only has the in-place form."""
    out = ramp.clone()

    def reset() -> None:
        out.copy_(ramp).add_(3) if rank == 0 else out.fill_(-1)

    return Buffers(partial(dist.broadcast, out, src=0), reset, out, ramp + 3)


def _send_recv(ramp: Any, rank: int, ranks: int, in_place: bool) -> Buffers:
    """Set up a ring: all ranks at once send to the next rank and receive from the previous."""
    source, out = ramp + (rank + 1), torch.empty_like(ramp)
    before, after = (rank - 1) % ranks, (rank + 1) % ranks

    both = [dist.P2POp(dist.isend, source, after), dist.P2POp(dist.irecv, out, before)]
    begin = dist.batch_isend_irecv

    def run() -> None:
        for work in begin(both):
            work.wait()

    return Buffers(run, lambda: out.fill_(-1), out, ramp + (before + 1))


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("all_reduce", 2, False, _all_reduce, "sum", -1, IN_PLACE),
        Operation("all_gather", 1, True, _all_gather),
        Operation("reduce_scatter", 1, True, _reduce_scatter, "sum"),
        Operation("alltoall", 1, True, _all_to_all, placements=OUT_OF_PLACE),
        Operation("broadcast", 0, False, _broadcast, root=0, placements=IN_PLACE),
        Operation("sendrecv", 0, False, _send_recv, placements=OUT_OF_PLACE),
    )
}
