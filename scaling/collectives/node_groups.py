"""Some of a gang's ranks meet: two by two, each way apart, or in groups.  Run on every rank.

Like `collectives.sweep`, with the usual rendezvous variables set.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from scaling.collectives.operations import OPERATIONS
from scaling.collectives.sweep import joined

# Of one meeting of a pair: long against the latency of its fabric (4 MiB take 34 ms at 1 Gbit/s,
# 256 MiB 5 ms at 400), short against the whole scan.
MESSAGE = {"gloo": 4 << 20, "nccl": 256 << 20}
GROUP_SECONDS, LEAST = 0.5, 4  # of a group's calls, and how many at least
PATIENCE = 2.0  # seconds of one transfer, after which it is not repeated
VALUES = 61  # what is sent repeats after so many numbers: a prime, so it fits no packet's size


def group_sweep(groups: list[list[int]], size: int | None = None) -> tuple[float, int]:
    """All-reduce within disjoint groups of the job's ranks, all of them at the same time.

    (GB/s of busbw, wrong elements) of this rank's group; (0, 0) for a rank that is in none.  All
    groups begin together, and each goes on for GROUP_SECONDS, so that they share what they share.
    """
    import torch
    import torch.distributed as dist

    with joined() as device:
        made = [dist.new_group(ranks) for ranks in groups]  # all ranks make all groups, in order
        mine = next((at for at, ranks in enumerate(groups) if dist.get_rank() in ranks), None)
        if mine is None:
            dist.barrier()
            dist.barrier()
            return 0.0, 0
        group, ranks = made[mine], len(groups[mine])
        size = size or MESSAGE[dist.get_backend()]
        buffer = torch.zeros(size // 4, device=device)

        def call() -> float:
            begun = time.perf_counter()
            dist.all_reduce(buffer, group=group)
            if device.type == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter() - begun

        call()  # connects
        taken = torch.tensor([call()], dtype=torch.float64, device=device)
        dist.all_reduce(taken, op=dist.ReduceOp.MAX, group=group)
        calls = max(LEAST, int(GROUP_SECONDS / float(taken)))
        dist.barrier()
        seconds = statistics.median(call() for _ in range(calls))
        buffer.fill_(dist.get_rank(group) + 1)
        call()
        wrong = int((buffer != ranks * (ranks + 1) / 2).sum())
        dist.barrier()
        return OPERATIONS["all_reduce"].busbw(size, seconds, ranks), wrong


def pair_sweep(
    meetings: list[list[tuple[int, int]]], repeats: int = 6, size: int | None = None
) -> dict[int, tuple[float, int]]:
    """Send `size` bytes one way, then the other, in the given rounds.

    By sender, what was received: (GB/s, wrong elements).  A speed is that of the fastest of
    `repeats` tries: a fresh connection that lost a packet early, or a busy core, makes it slow for
    a while, and only what stays slow is a bad link.  Call it on every rank with the same rounds of
    disjoint pairs.
    """
    import torch
    import torch.distributed as dist

    found: dict[int, tuple[float, int]] = {}
    with joined() as device:
        rank, size = dist.get_rank(), size or MESSAGE[dist.get_backend()]
        sent = torch.arange(size // 4, device=device).remainder(VALUES).add(1).float()
        buffer = torch.empty_like(sent)
        for pairs in meetings:
            pair = next((pair for pair in pairs if rank in pair), None)
            for way in (0, 1):
                dist.barrier()
                if pair is None:
                    continue
                if pair[way] == rank:
                    _send(sent, pair[1 - way])
                else:
                    seconds, wrong = _receive(buffer, sent, pair[way], repeats)
                    found[pair[way]] = size / seconds / 1e9, wrong
        dist.barrier()
    return found


def _send(buffer: Any, peer: int) -> None:
    """Send as often as the peer asks."""
    import torch
    import torch.distributed as dist

    ready = torch.ones(1, device=buffer.device)
    while True:
        dist.recv(ready, peer)
        if not ready.item():
            return
        dist.send(buffer, peer)


def _receive(buffer: Any, wanted: Any, peer: int, repeats: int) -> tuple[float, int]:
    """Least seconds from asking to the last byte, and the elements that are not as they were sent.

    A link that takes PATIENCE is asked once.
    """
    import torch
    import torch.distributed as dist

    ready, least, wrong = torch.ones(1, device=buffer.device), float("inf"), 0
    for _ in range(repeats):
        buffer.zero_()
        start = time.perf_counter()
        dist.send(ready, peer)
        dist.recv(buffer, peer)
        if buffer.is_cuda:
            torch.cuda.synchronize()
        least = min(least, time.perf_counter() - start)
        wrong += int((buffer != wanted).sum())
        if least > PATIENCE:
            break
    dist.send(torch.zeros_like(ready), peer)
    return least, wrong
