"""Copies between the GPUs of each node, in pairs: they only inform.

It follows torch's documentation: it has not run on a GPU yet.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster

COPY_BYTES = 256 * 2**20  # over NVLink about a millisecond
COPIES = 5  # of a pair: their mean counts, after one that opens the path


def measure_peer_copies() -> dict[str, Any]:
    """Copy between all GPUs of this worker: {"gbs": rows by source, "direct": same shape}.

    `direct` is whether the GPUs reach each other's memory without the host.
    """
    import torch

    count = torch.cuda.device_count()
    buffers = [
        torch.ones(COPY_BYTES, dtype=torch.uint8, device=torch.device("cuda", gpu))
        for gpu in range(count)
    ]
    rates: list[list[float | None]] = [[None] * count for _ in range(count)]
    direct: list[list[bool | None]] = [[None] * count for _ in range(count)]
    for source in range(count):
        for target in set(range(count)) - {source}:
            direct[source][target] = torch.cuda.can_device_access_peer(source, target)
            rates[source][target] = _copy_rate(torch, buffers, source, target)
    return {"gbs": rates, "direct": direct}


def _copy_rate(torch: Any, buffers: list[Any], source: int, target: int) -> float:
    """Measure the copies from one GPU to another, in GB/s."""
    arrived = torch.empty_like(buffers[target])

    def wait() -> None:
        for gpu in (source, target):
            torch.cuda.synchronize(gpu)

    arrived.copy_(buffers[source])
    wait()
    began = time.perf_counter()
    for _ in range(COPIES):
        arrived.copy_(buffers[source], non_blocking=True)
    wait()
    return float(COPIES * COPY_BYTES / (time.perf_counter() - began) / 1e9)


def note_peer_copies(cluster: Cluster, measure: Recorder) -> None:
    """Note the slowest pair of GPUs of each node, and keep all pairs as evidence."""
    sizes = defaultdict[int, list[dict[str, Any]]](list)
    for node in cluster.nodes:
        sizes[int(node["resources"].get("GPU", 0))].append(node)
    names, answers = cluster.node_names, dict[str, Any]()
    for gpus, nodes in sizes.items():
        if gpus > 1:
            answers |= cluster.on_each_node(measure_peer_copies, nodes=nodes, gpus=gpus)
    if not answers:
        return
    by_name = {names[id]: answer for id, answer in answers.items()}
    measure.keep("peer_copies.json", by_name, caption="GB/s between the GPUs of each node")
    for name, answer in by_name.items():
        rates = [rate for row in answer["gbs"] for rate in row if rate is not None]
        if rates:
            measure.note("slowest_peer_copy", min(rates), "GB/s", on=name)
