"""Times collectives over a gang as nccl-tests does, and checks every value.

`sweep` runs on every rank with the usual rendezvous variables set, in our gang or under torchrun.
`summarise` works on what the ranks returned. Under torchrun:

    torchrun --nproc-per-node 2 -m scaling.collectives all_reduce --backend gloo
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from reference_trainer import process_group as rank_group
from reference_trainer.late import dist, torch
from reports.numbers import size_text
from scaling.collectives.operations import OPERATIONS, Buffers, Operation
from scaling.collectives.reachability import tcp_connections

MAX_BYTES = {"gloo": 64 << 20, "nccl": 16 << 30}
SIZES = tuple(1 << power for power in range(3, 35))  # 8 B to 16 GiB
SECONDS_PER_RANK = 0.1  # added to timeouts: more ranks need longer to join
CALL_SECONDS = 60  # for few ranks to begin and end a short call, on a busy cluster
# Seconds of a call, by backend: a sweep ends with the size that takes longer. gloo is at its full
# speed before; NCCL over many ranks is so only with larger messages.
LONGEST_CALL_S = {"gloo": 0.15, "nccl": 0.5}
PRECISION = 0.02  # wanted standard error of the median, as a ratio
BATCH_CALLS = 5  # calls between two checks of the precision
MAX_CALLS = 1000  # most calls of one size


@dataclass(frozen=True)
class Delay:
    """Fault of a control: these ranks start one call of each size late, or every call."""

    ranks: Collection[int]
    seconds: float
    every_call: bool = False


def call_seconds(ranks: int) -> float:
    """Compute the deadline (s) of a short call that joins no group: it grows with the ranks."""
    return CALL_SECONDS + SECONDS_PER_RANK * ranks


def read_nothing() -> Callable[[], None]:
    """Return a reader that reads no counters; the default of `make_reader`."""
    return lambda: None


LONGEST_WAIT_S = 600.0  # no caller waits as long for few ranks


def longest_wait(seconds: float = LONGEST_WAIT_S) -> float:
    """Return the timeout (s) of this rank's groups: longer for many ranks."""
    return seconds + SECONDS_PER_RANK * int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def process_group(
    backend: str | None = None, seconds: float = LONGEST_WAIT_S, kind: str = ""
) -> Iterator[Any]:
    """Join the process group that the environment names; yield the device to use.

    The backend is NCCL with a GPU and gloo without, unless `backend` or SEATRIAL_BACKEND names
    one. For the kind JOB, NCCL is joined as the trainer joins it. The timeout of joining and of
    each collective is `seconds` plus SECONDS_PER_RANK for each rank. That is longer than any caller
    waits: a rank that still hangs can be inspected, one that timed out cannot. Afterwards the group
    is destroyed, unless the gang keeps it for its next call. Raises RuntimeError for nccl without a
    GPU.
    """
    has_gpu = torch.cuda.is_available()
    backend = backend or os.environ.get("SEATRIAL_BACKEND") or ("nccl" if has_gpu else "gloo")
    if backend == "nccl" and not has_gpu:
        raise RuntimeError("NCCL needs a GPU, and torch sees none in this process")
    device, bound = torch.device("cpu"), None
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        if kind == rank_group.JOB:
            backend, bound = rank_group.GPU_BACKEND, device
    rank_group.join_group(backend, longest_wait(seconds), bound)
    try:
        yield device
    except BaseException:
        rank_group.drop_group()
        raise
    rank_group.leave_group()


def sweep(
    names: tuple[str, ...] = ("all_reduce",),
    max_call_s: float | None = None,
    budget: float = 0.25,
    only: int | None = None,
    corrupt: int | None = None,
    make_reader: Callable[[], Callable[[], Any]] = read_nothing,
    delay: Delay | None = None,
) -> dict[str, Any]:
    """Join, and time collectives at growing sizes (bytes), until one call takes `max_call_s`.

    The default is that of LONGEST_CALL_S. Each size and placement is checked for exact values. It
    is then timed until the standard error of the median is under 2 % or `budget` seconds are spent.
    `only` times one size. `corrupt` injects a fault: that rank's results get one wrong element,
    which must be found. `delay` injects another.

    Returns rank, ranks, backend, connections (the group's own, see `tcp_connections`), readings
    and sweeps. Readings are two, before and after, by the function that `make_reader` returned
    before the group was joined. Sweeps are by name: operation, note ("" or why large sizes were
    left out) and rows.
    """
    read = make_reader()
    with process_group() as device:
        readings = [read()]
        sizes = [only] if only else None
        longest_s = max_call_s or LONGEST_CALL_S[dist.get_backend()]
        own = delay if delay and dist.get_rank() in delay.ranks else None
        results = {
            name: sweep_operation(device, OPERATIONS[name], longest_s, budget, sizes, corrupt, own)
            for name in names
        }
        # Connections to the rendezvous store (MASTER_ADDR) are not the group's.
        others, store_port = rank_group.own_group().others, int(os.environ["MASTER_PORT"])
        opened = [ends for ends in tcp_connections(others) if store_port not in ends[2:]]
        dist.barrier()  # after it, lost packets have been sent again
        readings.append(read())
        dist.barrier()  # a rank that leaves first would close the others' connections
        common = {key: results[names[0]][key] for key in ("rank", "ranks", "backend")}
        return {**common, "connections": opened, "readings": readings, "sweeps": results}


def connect() -> float:
    """Join the group and return the sum of ones over all ranks.

    If this hangs, the initialisation of the process group is the cause.
    """
    with process_group() as device:
        ones = torch.ones(1, device=device)
        dist.all_reduce(ones)
        return float(ones)  # float() waits for the GPU; nothing before does


@rank_group.joins_no_group
def warm_up() -> None:
    """Import torch and create the device's context.

    The import takes long on a cold network file system.
    """
    import torch
    import torch.distributed

    if torch.cuda.is_available():
        torch.cuda.synchronize()  # creates the device's context


def sweep_operation(
    device: Any,
    operation: Operation,
    max_call_s: float,
    budget: float,
    sizes: list[int] | None = None,
    corrupt: int | None = None,
    delay: Delay | None = None,
) -> dict[str, Any]:
    """Time one operation in a process group that this rank has joined; arguments as in `sweep`.

    `delay` is this rank's own.
    """
    backend, ranks = dist.get_backend(), dist.get_world_size()
    (max_bytes, reason), note = _max_message_bytes(device, backend), ""
    rows: list[dict[str, Any]] = []
    for size in sizes or SIZES:
        if operation.count(size, ranks) == 0:
            continue
        if size > max_bytes:
            note = f"messages above {size_text(max_bytes)} were skipped: {reason}"
            break
        new_rows = [
            _time_size(operation, size, placement, device, budget, corrupt, delay)
            for placement in operation.placements
        ]
        rows += new_rows
        slowest = max(row["slowest"] for row in new_rows)
        if slowest > max_call_s:
            max_bytes, reason = size, f"one call of that size takes {slowest:.2g} s"
    common = {"rank": dist.get_rank(), "ranks": ranks, "backend": backend}
    return {**common, "operation": operation.name, "note": note, "rows": rows}


def _max_message_bytes(device: Any, backend: str) -> tuple[int, str]:
    """Return (bytes of the largest message, reason of this limit).

    On a GPU, four messages must fit into each rank's free memory. All ranks get the same limit.
    """
    if device.type != "cuda":
        return MAX_BYTES[backend], f"the limit of this test for {backend}"
    torch.cuda.empty_cache()  # memory that the last collective left in torch's cache is free too
    free = torch.tensor([torch.cuda.mem_get_info(device)[0]], device=device)
    dist.all_reduce(free, op=dist.ReduceOp.MIN)  # ranks must agree on the sizes
    reason = "four such messages do not fit into the free memory of a GPU"
    return min(MAX_BYTES[backend], int(free[0]) // 4), reason


def _time_size(
    operation: Operation,
    size: int,
    placement: str,
    device: Any,
    budget: float,
    corrupt: int | None,
    delay: Delay | None,
) -> dict[str, Any]:
    """Check values, time calls, and check values again on links that are now warm and loaded."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = operation.count(size, ranks)
    buffers = operation.buffers(device, count, placement == "in_place")
    corrupted = corrupt == rank
    before, first = _count_wrong(buffers, corrupted)
    times, slowest = _time_calls(buffers, device, budget, delay)
    after, second = _count_wrong(buffers, corrupted)
    return {
        "size": size,
        "count": count,
        "elements": len(buffers.out),
        "placement": placement,
        "times": times,
        "calls": len(times) + 3,  # one warm-up call and two checked calls
        "slowest": slowest,
        "wrong": before + after,
        "first_wrong": first if before else second,
    }


def _count_wrong(buffers: Buffers, corrupt: bool) -> tuple[int, int | None]:
    """Count the elements that are not as expected; return the count and the first one's offset."""
    buffers.reset()
    buffers.run()
    if corrupt:
        buffers.out[len(buffers.out) // 3] += 1
    differs = buffers.out != buffers.expected
    count = int(differs.sum())
    return count, int(differs.to(torch.uint8).argmax()) if count else None


def _time_calls(
    buffers: Buffers, device: Any, budget: float, delay: Delay | None = None
) -> tuple[list[float], float]:
    """Time calls, in batches, until all ranks agree to stop.

    Returns (seconds of each call on this rank, largest median over ranks). `delay` delays this
    rank's second call, or every call.
    """
    times: list[float] = []
    buffers.out.zero_()  # repeated sums of zeros stay zero
    time_call(buffers, device)  # warm-up
    start, done = time.perf_counter(), False
    while not done and len(times) < MAX_CALLS:
        for _ in range(3 if not times else BATCH_CALLS):
            if delay and (delay.every_call or len(times) == 1):
                time.sleep(delay.seconds)  # a control's fault: the others wait for this rank
            times.append(time_call(buffers, device))
        over_budget = time.perf_counter() - start + BATCH_CALLS * times[-1] > budget
        own = [float(over_budget), median_precision(times), statistics.median(times)]
        over, precision, slowest = largest_of_ranks(own, device)
        done = bool(over) or (len(times) > BATCH_CALLS and precision < PRECISION)
    return times, slowest


def largest_of_ranks(own: list[float], device: Any) -> list[float]:
    """Return the largest of each value over all ranks, so that all ranks decide alike."""
    values = torch.tensor(own, dtype=torch.float64, device=device)
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return [float(value) for value in values.tolist()]


def median_precision(times: list[float]) -> float:
    """Estimate the relative standard error of the median from the median absolute deviation.

    For normal noise, 1.4826 x MAD estimates sigma, and the standard error of a median is 1.2533
    sigma / sqrt(n).
    """
    median = statistics.median(times)
    mad = statistics.median(abs(seconds - median) for seconds in times)
    return 1.2533 * 1.4826 * mad / float(len(times)) ** 0.5 / median


def time_call(buffers: Buffers, device: Any) -> float:
    """Time one call, in seconds: by CUDA events on a GPU, else by the host's clock."""
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
    """Summarise all ranks in one row per size and placement.

    Keys: size (B), count, elements (of a rank's result), placement, calls, seconds (mean over
    ranks of each rank's median call), algbw and busbw (GB/s), low and high (busbw of the
    slowest and fastest tenth of all calls), spread (half their distance), samples, rank_seconds
    (each rank's median), rank_worst (each rank's longest call), rank_cv (standard deviation of
    the medians / their mean), wrong (elements), first_wrong ((rank, offset) pairs).
    """
    rows = range(len(sweeps[0]["rows"]))
    return [_summarise_row(sweeps, [sweep["rows"][index] for sweep in sweeps]) for index in rows]


def _summarise_row(sweeps: list[dict[str, Any]], rank_rows: list[dict[str, Any]]) -> dict[str, Any]:
    ranks, operation = sweeps[0]["ranks"], OPERATIONS[sweeps[0]["operation"]]
    first, size = rank_rows[0], rank_rows[0]["size"]
    medians = [statistics.median(row["times"]) for row in rank_rows]
    seconds = statistics.fmean(medians)
    call_times = sorted(t for row in rank_rows for t in row["times"])
    high, low = (
        operation.busbw(size, call_times[int(q * (len(call_times) - 1))], ranks) for q in (0.1, 0.9)
    )
    return {
        **{key: first[key] for key in ("size", "count", "elements", "placement", "calls")},
        "seconds": seconds,
        "algbw": size / seconds / 1e9,
        "busbw": operation.busbw(size, seconds, ranks),
        "low": low,
        "high": high,
        "spread": (high - low) / 2,
        "samples": len(call_times),
        "rank_seconds": medians,
        "rank_worst": [max(row["times"]) for row in rank_rows],
        "rank_cv": statistics.pstdev(medians) / seconds,
        "wrong": sum(row["wrong"] for row in rank_rows),
        "first_wrong": [
            (sweep["rank"], row["first_wrong"])
            for sweep, row in zip(sweeps, rank_rows, strict=True)
            if row["wrong"]
        ],
    }


def plateau_row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the row to judge: a typical one of large messages, never an average over sizes.

    Among the plateau's rows it is the one with the (lower) median busbw.
    One size that a busy core slowed down does not decide the result.
    """
    large = plateau_rows(rows)
    return sorted(large, key=lambda row: float(row["busbw"]))[(len(large) - 1) // 2]


# A ring's calls have a latency for each rank (NVIDIA/nccl#1712). On 256 GPUs of AWS p5 it takes
# 23 % of the bandwidth at 2 GiB, 14 % at 4 GiB and 10 % at 8 GiB. Below so many bytes for each rank
# it would be judged in place of the links. gloo's sweeps end far below LARGE_SWEEP.
LEAST_PER_RANK, LARGE_SWEEP = 32 << 20, 1 << 30


def plateau_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of large messages: sizes down to an eighth of the largest.

    Of many ranks only those that latency does not bound, or else the largest alone.
    """
    largest = max(row["size"] for row in rows)
    least = -(-largest // 8)
    if largest >= LARGE_SWEEP:
        least = max(least, min(largest, LEAST_PER_RANK * len(rows[0]["rank_seconds"])))
    return [row for row in rows if row["size"] >= least]


def ring_bytes_sent(rows: list[dict[str, Any]], operation: Operation, ranks: int) -> float:
    """Sum the bytes that each rank sends around a ring in the calls of these rows."""
    return sum(row["size"] * operation.factor(ranks) * row["calls"] for row in rows)
