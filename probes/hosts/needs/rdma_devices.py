"""Judges that a worker can open the RDMA devices of its node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from probes.acceptance.measure import Recorder
from probes.findings import finding, join_names

Facts = Mapping[str, Any]
SHOWN = 3  # devices in a sentence


def judge_rdma_devices(facts: Sequence[Facts], rails: int | None, measure: Recorder) -> None:
    """Judge how many devices each node lacks for its rails, or for one where no number is agreed.

    A pod may list the devices of the whole machine, and be given a part of them.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for fact in facts:
        access = fact.get("rdma_access") or {}
        closed = {device: problem for device, problem in access.items() if problem}
        opened = len(access) - len(closed)
        lacking = max(0, (rails or 1) - opened) if access else None
        measure("rdma_closed", lacking, on=fact["name"], note="no RDMA device is listed")
        if lacking:
            texts = [f"{device}: {problem}" for device, problem in closed.items()]
            groups[f"{opened} RDMA devices can be opened; {join_names(texts, SHOWN)}"].append(
                fact["name"]
            )
    expected = f"{rails} devices, one a rail" if rails else "at least one"
    for text, nodes in groups.items():
        statement = f"{join_names(nodes)}: {text}. Expected: {expected}"
        measure.explain(finding("HOST-RDMA-CLOSED", statement, nodes))


def note_peer_memory(facts: Sequence[Facts], measure: Recorder) -> None:
    """Note by what the NICs reach the memory of GPUs; FABRIC judges whether NCCL does."""
    groups: dict[str, list[str]] = defaultdict(list)
    for fact in facts:
        groups[fact.get("peer_memory") or "neither nvidia_peermem nor DMA-BUF"].append(fact["name"])
    for text, nodes in groups.items():
        measure.note("gpu_peer_memory", text, on=join_names(nodes))
