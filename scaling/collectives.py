"""Collectives over a gang, checked for exact values and timed as nccl-tests does.

`all_reduce_sweep` and `pair_sweep` run on every rank with the usual rendezvous variables set,
under our gang as under torchrun; `summarise` and `table` work on what the ranks returned.
Formulas: nccl-tests doc/PERFORMANCE.md; algbw = S / t, busbw = algbw x 2(n-1)/n for all-reduce.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

PATTERN = 7  # payload repeats 0..6: small integers, exact in float32 after summing over ranks
LARGEST = {"gloo": 64 << 20, "nccl": 8 << 30}
SIZES = tuple(1 << power for power in range(10, 34, 2))  # 1 KiB to 4 GiB, by 4


@contextmanager
def joined(seconds: float = 60) -> Iterator[Any]:
    """Join the process group that the environment names; yields the device to work on.

    NCCL where there is a GPU, gloo elsewhere.  `seconds` bounds joining and each collective.
    """
    import torch
    import torch.distributed as dist

    on_gpu = torch.cuda.is_available()
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        if on_gpu
        else torch.device("cpu")
    )
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(seconds=seconds))
    try:
        yield device
    finally:
        dist.destroy_process_group()


def busbw(size: int, seconds: float, ranks: int) -> float:
    """All-reduce bus bandwidth in GB/s (1e9 bytes) of `size` bytes per rank; 0 for one rank."""
    return size / seconds / 1e9 * 2 * (ranks - 1) / ranks


def moved(size: int, ranks: int) -> float:
    """Bytes that a ring all-reduce of `size` bytes makes each node send."""
    return size * 2 * (ranks - 1) / ranks


def all_reduce_sweep(
    longest: float = 0.3, budget: float = 0.6, largest: int | None = None, only: int | None = None
) -> dict[str, Any]:
    """Time all-reduce at growing sizes, until one call takes `longest` seconds.

    Each size is checked for exact values, then timed for about `budget` seconds.  `only` times
    that one size (bytes).  Returns rank, ranks, backend and rows of: size, times (s, each call),
    calls (all of them, for counting bytes), wrong (elements), first_wrong (offset or None).
    """
    import torch.distributed as dist

    with joined() as device:
        backend = dist.get_backend()
        cap = min(largest or LARGEST[backend], _least_memory(device))
        rows: list[dict[str, Any]] = []
        for size in [only] if only else [size for size in SIZES if size <= cap]:
            rows.append(_one_size(size, device, budget))
            if rows[-1]["slowest"] > longest:
                break
        return {
            "rank": dist.get_rank(),
            "ranks": dist.get_world_size(),
            "backend": backend,
            "rows": rows,
        }


def _least_memory(device: Any) -> int:
    """Largest message that fits four times into every rank's free device memory."""
    import torch
    import torch.distributed as dist

    if device.type != "cuda":
        return LARGEST["gloo"]
    free = torch.tensor([torch.cuda.mem_get_info(device)[0]], device=device)
    dist.all_reduce(free, op=dist.ReduceOp.MIN)  # ranks must agree on the sizes
    return int(free[0]) // 4


def _one_size(size: int, device: Any, budget: float) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    payload = torch.arange(size // 4, device=device, dtype=torch.float32) % PATTERN
    expected = payload * ranks + ranks * (ranks + 1) // 2
    tensor = payload + (rank + 1)
    _timed(tensor, device)
    wrong = (tensor != expected).nonzero()
    tensor.zero_()  # sums of zero stay zero however often they are taken
    estimate = torch.tensor([_timed(tensor, device)], dtype=torch.float64, device=device)
    dist.all_reduce(estimate, op=dist.ReduceOp.MAX)  # all ranks must agree how often to call
    slowest = float(estimate[0])
    count = max(3, min(50, int(budget / max(slowest, 1e-9))))
    times = [_timed(tensor, device) for _ in range(count)]
    tensor.copy_(payload).add_(rank + 1)
    _timed(tensor, device)  # once more with data, now that the links are warm and loaded
    wrong = torch.cat([wrong, (tensor != expected).nonzero()])
    return {
        "size": size,
        "times": times,
        "calls": count + 3,
        "slowest": slowest,
        "wrong": len(wrong),
        "first_wrong": int(wrong[0]) if len(wrong) else None,
    }


def _timed(tensor: Any, device: Any) -> float:
    """Seconds of one all-reduce: CUDA events on a GPU, the host's clock elsewhere."""
    import torch
    import torch.distributed as dist

    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        dist.all_reduce(tensor)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
    start = time.perf_counter()
    dist.all_reduce(tensor)
    return time.perf_counter() - start


def pair_sweep(
    meetings: list[list[tuple[int, int]]], size: int = 4 << 20, repeats: int = 3
) -> dict[int, float]:
    """Send and receive `size` bytes in the given rounds of meetings; best GB/s per peer.

    GB/s counts one direction while both run, as nccl-tests' sendrecv does.  Call it on every
    rank with the same rounds (see `rounds`).
    """
    import torch
    import torch.distributed as dist

    best: dict[int, float] = {}
    with joined() as device:
        rank = dist.get_rank()
        out, back = torch.ones(size // 4, device=device), torch.empty(size // 4, device=device)
        for pairs in meetings:
            peer = next((a if rank == b else b for a, b in pairs if rank in (a, b)), None)
            for _ in range(repeats):
                dist.barrier()
                if peer is not None:
                    best[peer] = max(best.get(peer, 0.0), size / _exchange(out, back, peer) / 1e9)
    return best


def _exchange(out: Any, back: Any, peer: int) -> float:
    """Seconds of one simultaneous send and receive with `peer`."""
    import torch
    import torch.distributed as dist

    start = time.perf_counter()
    operations = [dist.P2POp(dist.isend, out, peer), dist.P2POp(dist.irecv, back, peer)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    if out.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def rounds(players: list[int]) -> list[list[tuple[int, int]]]:
    """Every pair once, in rounds in which nobody meets twice (the circle method)."""
    seats: list[int | None] = [*players, *([None] if len(players) % 2 else [])]
    table = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        table.append([(a, b) for a, b in pairs if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return table


def summarise(sweeps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per size over all ranks: seconds, algbw, busbw (GB/s), spread, wrong elements.

    Seconds are the mean over ranks of each rank's median call; `low` and `high` are the busbw
    of the slowest and fastest tenth of all calls; `spread` is half their distance.
    """
    ranks, rows = sweeps[0]["ranks"], []
    for at, row in enumerate(sweeps[0]["rows"]):
        mine = [sweep["rows"][at] for sweep in sweeps]
        seconds = statistics.fmean(statistics.median(r["times"]) for r in mine)
        calls = sorted(t for r in mine for t in r["times"])
        high, low = (
            busbw(row["size"], calls[int(q * (len(calls) - 1))], ranks) for q in (0.1, 0.9)
        )
        rows.append(
            {
                "size": row["size"],
                "seconds": seconds,
                "algbw": row["size"] / seconds / 1e9,
                "busbw": busbw(row["size"], seconds, ranks),
                "low": low,
                "high": high,
                "spread": (high - low) / 2,
                "samples": len(calls),
                "calls": row["calls"],
                "wrong": sum(r["wrong"] for r in mine),
                "first_wrong": [
                    (s["rank"], r["first_wrong"])
                    for s, r in zip(sweeps, mine, strict=True)
                    if r["wrong"]
                ],
            }
        )
    return rows


def plateau(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The row that is judged: the largest message, never an average over sizes."""
    return max(rows, key=lambda row: row["size"])


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as nccl-tests prints them (out-of-place columns; its average line is left out)."""
    lines = [
        "#       size         count      type   redop    root     time   algbw   busbw #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)",
    ]
    for row in rows:
        lines.append(
            f"{row['size']:12d}  {row['size'] // 4:12d}     float     sum      -1"
            f"  {row['seconds'] * 1e6:7.0f}  {row['algbw']:6.3f}  {row['busbw']:6.3f}"
            f" {row['wrong']:6d}"
        )
    return "\n".join(lines) + "\n"
