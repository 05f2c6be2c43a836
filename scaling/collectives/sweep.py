"""Collectives over a gang, checked for exact values and timed as nccl-tests does.

`sweep` runs on every rank with the usual rendezvous variables set, under our gang
as under torchrun; `summarise` works on what the ranks returned.  Under torchrun:
`torchrun --nproc-per-node 2 -m scaling.collectives all_reduce --backend gloo`.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from scaling.collectives.operations import OPERATIONS, Buffers, Operation
from scaling.collectives.reachability import connections

LARGEST = {"gloo": 64 << 20, "nccl": 16 << 30}
SIZES = tuple(1 << power for power in range(3, 35))  # 8 B to 16 GiB
MORE_SECONDS = 0.1  # for each rank: the more there are, the longer they may take to come together
PRECISION = 0.02  # wanted standard error of the median, as a ratio
BATCH = 5  # calls between two looks at the precision
MOST = 1000  # calls of one size


@contextmanager
def joined(backend: str | None = None, seconds: float = 600) -> Iterator[Any]:
    """Join the process group that the environment names; yields the device to work on.

    NCCL where there is a GPU, gloo elsewhere, unless `backend` or SEATRIAL_BACKEND says which.
    `seconds`, and MORE_SECONDS for each rank, bound joining and each collective: more than any
    caller waits, for a rank that hangs can still be asked where, and one that gave up cannot.
    Raises RuntimeError for nccl without a GPU.
    """
    import torch
    import torch.distributed as dist

    seen = torch.cuda.is_available()
    backend = backend or os.environ.get("SEATRIAL_BACKEND") or ("nccl" if seen else "gloo")
    if backend == "nccl" and not seen:
        raise RuntimeError("NCCL needs a GPU, and torch sees none in this process")
    device = torch.device("cpu")
    if backend == "nccl":
        local = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    seconds += MORE_SECONDS * int(os.environ.get("WORLD_SIZE", "1"))
    dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
    try:
        yield device
    finally:
        dist.destroy_process_group()


def sweep(
    names: tuple[str, ...] = ("all_reduce",),
    longest: float = 0.3,
    budget: float = 0.25,
    only: int | None = None,
    corrupt: int | None = None,
) -> dict[str, Any]:
    """Join, and time collectives at growing sizes (bytes), until one call takes `longest` s.

    Each size and placement is checked for exact values, then timed until the standard error of
    the median is under 2 % or `budget` seconds are gone.  `only` times that one size; `corrupt`
    is a fault: that rank's results get one wrong element, which must be found.  Returns rank,
    ranks, backend, connections (the group's own TCP connections, see `reach.connections`), and
    by name: operation, note ("" or why large sizes were left out) and rows.
    """
    import torch.distributed as dist

    before = connections()
    with joined() as device:
        found = {
            name: swept(
                device, OPERATIONS[name], longest, budget, [only] if only else None, corrupt
            )
            for name in names
        }
        # Those of the rendezvous store go wherever MASTER_ADDR is: they are not the group's.
        store = int(os.environ["MASTER_PORT"])
        opened = [ends for ends in connections() - before if store not in ends[2:]]
        dist.barrier()  # who leaves first closes the others' connections
        first = found[names[0]]
        told = {key: first[key] for key in ("rank", "ranks", "backend")}
        return {**told, "connections": opened, "sweeps": found}


def connect() -> float:
    """Join, and add up ones over all ranks: what hangs here is init.  The sum."""
    import torch
    import torch.distributed as dist

    with joined() as device:
        one = torch.ones(1, device=device)
        dist.all_reduce(one)
        return float(one)  # on a GPU nothing waited before


def warm() -> None:
    """Import torch, which takes long on a cold network file system, and wake the device."""
    import torch
    import torch.distributed

    if torch.cuda.is_available():
        torch.cuda.synchronize()  # makes the device's context


def swept(
    device: Any,
    operation: Operation,
    longest: float,
    budget: float,
    sizes: list[int] | None = None,
    corrupt: int | None = None,
) -> dict[str, Any]:
    """`sweep` within a process group that has been joined."""
    import torch.distributed as dist

    backend, ranks = dist.get_backend(), dist.get_world_size()
    fits, note = _fitting(device, backend), ""
    rows: list[dict[str, Any]] = []
    wanted = sizes or SIZES
    for size in wanted:
        if operation.count(size, ranks) == 0:
            continue
        if size > fits:
            note = f"sizes over {fits} bytes are left out: {_why(device, backend)}"
            break
        found = [
            _one_size(operation, size, placement, device, budget, corrupt)
            for placement in operation.placements
        ]
        rows += found
        slowest = max(row["slowest"] for row in found)
        if slowest > longest and size != wanted[-1]:
            note = f"sizes over {size} bytes are left out: a call of it takes {slowest:.2g} s"
            break
    return {
        "rank": dist.get_rank(),
        "ranks": ranks,
        "backend": backend,
        "operation": operation.name,
        "note": note,
        "rows": rows,
    }


def _fitting(device: Any, backend: str) -> int:
    """Largest message that fits four times into every rank's free device memory."""
    import torch
    import torch.distributed as dist

    if device.type != "cuda":
        return LARGEST[backend]
    free = torch.tensor([torch.cuda.mem_get_info(device)[0]], device=device)
    dist.all_reduce(free, op=dist.ReduceOp.MIN)  # ranks must agree on the sizes
    return min(LARGEST[backend], int(free[0]) // 4)


def _why(device: Any, backend: str) -> str:
    return "device memory holds no four of them" if device.type == "cuda" else f"{backend}'s range"


def _one_size(
    operation: Operation, size: int, placement: str, device: Any, budget: float, corrupt: int | None
) -> dict[str, Any]:
    """Sanity first, then speed, then sanity again now that the links are warm and loaded."""
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = operation.count(size, ranks)
    buffers = operation.buffers(device, count, placement == "in_place")
    bad = corrupt == rank
    before, first = _wrong(buffers, bad)
    times = _times(buffers, device, budget)
    after, second = _wrong(buffers, bad)
    return {
        "size": size,
        "count": count,
        "elements": len(buffers.out),
        "placement": placement,
        "times": times["timed"],
        "calls": times["calls"] + 2,
        "slowest": times["slowest"],
        "wrong": before + after,
        "first_wrong": first if before else second,
    }


def _wrong(buffers: Buffers, corrupt: bool) -> tuple[int, int | None]:
    """How many elements are not what they must be, and the offset of the first."""
    import torch

    buffers.reset()
    buffers.run()
    if corrupt:
        buffers.out[len(buffers.out) // 3] += 1
    differs = buffers.out != buffers.expected
    count = int(differs.sum())
    return count, int(differs.to(torch.uint8).argmax()) if count else None


def _times(buffers: Buffers, device: Any, budget: float) -> dict[str, Any]:
    """Seconds of each call, in batches, until all ranks agree that it is enough."""
    import torch
    import torch.distributed as dist

    timed: list[float] = []
    buffers.out.zero_()  # sums of zero stay zero however often they are taken
    call_seconds(buffers, device)  # warm-up
    begun, enough = time.perf_counter(), False
    while not enough and len(timed) < MOST:
        timed += [call_seconds(buffers, device) for _ in range(3 if not timed else BATCH)]
        late = time.perf_counter() - begun + BATCH * timed[-1] > budget
        state = torch.tensor(
            [float(late), _precision(timed), statistics.median(timed)],
            dtype=torch.float64,
            device=device,
        )
        dist.all_reduce(state, op=dist.ReduceOp.MAX)
        enough = bool(state[0]) or (len(timed) > BATCH and float(state[1]) < PRECISION)
    return {"timed": timed, "calls": len(timed) + 1, "slowest": float(state[2])}


def _precision(timed: list[float]) -> float:
    """Standard error of the median as a ratio, from the median absolute deviation.

    1.4826 x MAD estimates sigma, and a median's standard error is 1.2533 sigma / sqrt(n), both
    for normal noise.
    """
    middle = statistics.median(timed)
    mad = statistics.median(abs(seconds - middle) for seconds in timed)
    return 1.2533 * 1.4826 * mad / float(len(timed)) ** 0.5 / middle


def call_seconds(buffers: Buffers, device: Any) -> float:
    """Seconds of one call: CUDA events on a GPU, the host's clock elsewhere."""
    import torch

    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        buffers.run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
    start = time.perf_counter()
    buffers.run()
    return time.perf_counter() - start


def summarise(sweeps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per size and placement over all ranks.

    Keys: size (B), count, elements (of a rank's result), placement, seconds (mean over ranks of
    each rank's median call), algbw and busbw (GB/s), low and high (busbw of the slowest and
    fastest tenth of all calls), spread (half their distance), samples, calls, rank_seconds (each
    rank's median), rank_cv (their standard deviation over their mean), wrong (elements),
    first_wrong ((rank, offset) pairs).
    """
    ranks, operation = sweeps[0]["ranks"], OPERATIONS[sweeps[0]["operation"]]
    rows = []
    for at, row in enumerate(sweeps[0]["rows"]):
        mine = [found["rows"][at] for found in sweeps]
        by_rank = [statistics.median(r["times"]) for r in mine]
        seconds = statistics.fmean(by_rank)
        calls = sorted(t for r in mine for t in r["times"])
        high, low = (
            operation.busbw(row["size"], calls[int(q * (len(calls) - 1))], ranks)
            for q in (0.1, 0.9)
        )
        rows.append(
            {
                **{key: row[key] for key in ("size", "count", "elements", "placement", "calls")},
                "seconds": seconds,
                "algbw": row["size"] / seconds / 1e9,
                "busbw": operation.busbw(row["size"], seconds, ranks),
                "low": low,
                "high": high,
                "spread": (high - low) / 2,
                "samples": len(calls),
                "rank_seconds": by_rank,
                "rank_cv": statistics.pstdev(by_rank) / seconds,
                "wrong": sum(r["wrong"] for r in mine),
                "first_wrong": [
                    (found["rank"], r["first_wrong"])
                    for found, r in zip(sweeps, mine, strict=True)
                    if r["wrong"]
                ],
            }
        )
    return rows


def plateau(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The row that is judged: the typical one of large messages, never an average over sizes.

    Of the sizes down to an eighth of the largest, the one whose busbw is the (lower) median: one
    size that a busy core spoilt does not decide, two do.
    """
    largest = max(row["size"] for row in rows)
    large = [row for row in rows if row["size"] * 8 >= largest]
    return sorted(large, key=lambda row: float(row["busbw"]))[(len(large) - 1) // 2]


def moved(rows: list[dict[str, Any]], operation: Operation, ranks: int) -> float:
    """Bytes that the calls of these rows make each rank send around a ring."""
    return sum(row["size"] * operation.factor(ranks) * row["calls"] for row in rows)
