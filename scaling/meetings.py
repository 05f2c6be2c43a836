"""Some of a gang's ranks meet: two by two, each way apart, or in groups.  Run on every rank.

Like `collectives.sweep`, with the usual rendezvous variables set.
"""

from __future__ import annotations

import time
from typing import Any

from scaling.collectives import joined, swept
from scaling.operations import OPERATIONS

# Of one meeting of a pair: long against the latency of its fabric (4 MiB take 34 ms at 1 Gbit/s,
# 256 MiB 5 ms at 400), short against the whole scan.
MESSAGE = {"gloo": 4 << 20, "nccl": 256 << 20}
GROUP_SECONDS = 0.5  # of a group's calls: all groups work at once, so none may end much earlier
PATIENCE = 2.0  # seconds of one transfer, after which it is not repeated
VALUES = 61  # what is sent repeats after so many numbers: a prime, so it fits no packet's size


def group_sweep() -> dict[str, Any]:
    """All-reduce at one large size within a group, as `collectives.swept` returns it."""
    import torch.distributed as dist

    with joined(seconds=180) as device:
        size = [MESSAGE[dist.get_backend()]]
        found = swept(device, OPERATIONS["all_reduce"], float("inf"), GROUP_SECONDS, size)
        dist.barrier()
        return found


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
    with joined(seconds=180) as device:
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
