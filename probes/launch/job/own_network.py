"""Measures whether the bytes of the user's own job took the agreed fabric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from probes.cluster.byte_counters import Sent, counter_growth, join_fabric, read_counters
from probes.cluster.cluster import Cluster

# Each step gathers the weights for forward and for backward, and scatters the gradients.
COLLECTIVES_PER_STEP = 3
BYTES_PER_PARAMETER = 2  # bf16; in fp32 a job sends twice as many


@dataclass
class JobBytes:
    """Bytes that each node sent while a job ran, by device; by node name."""

    sent: dict[str, dict[str, int | None]] = field(default_factory=dict)

    @classmethod
    def around(cls, cluster: Cluster, fabric: str, run: Callable[[], Any]) -> tuple[Any, JobBytes]:
        """Call `run` and return its result, and the bytes that the nodes sent meanwhile."""
        before = cluster.on_each_node(read_counters)
        result = run()
        after = cluster.on_each_node(read_counters)
        names = cluster.node_names
        return result, cls(
            {
                names[id]: growth_on(before[id], after[id], fabric)
                for id in before.keys() & after.keys()
            }
        )


def growth_on(before: Sent, after: Sent, fabric: str) -> dict[str, int | None]:
    """Return the bytes sent by each device; the interfaces of the fabric count as one."""
    return counter_growth(join_fabric(before, fabric), join_fabric(after, fabric))


def expected_bytes(parameters: int, steps: int, nodes: int) -> float:
    """Return the fewest bytes that each node sends, for FSDP over all ranks.

    Each collective brings the other nodes' shards into a node, and as much leaves it: (n-1)/n of
    the model (as for a ring: nccl-tests, doc/PERFORMANCE.md).
    """
    if nodes < 2:
        return 0.0
    model = parameters * BYTES_PER_PARAMETER
    return COLLECTIVES_PER_STEP * steps * model * (nodes - 1) / nodes


def shares_on(fabric: str, job: JobBytes, expected: float) -> dict[str, float | None]:
    """Return, by node, what the fabric carried as a share of the expected bytes.

    It is at most 1.  None where the fabric's counter cannot be read, or there is none.
    """
    shares: dict[str, float | None] = {}
    for name, sent in job.sent.items():
        count = sent.get(fabric)
        shares[name] = None if count is None or expected <= 0 else min(1.0, count / expected)
    return shares


def busiest_other(fabric: str, sent: Mapping[str, int | None]) -> tuple[str, int]:
    """Return the device other than the fabric that carried most bytes; `none` if there is none."""
    others = {name: count or 0 for name, count in sent.items() if name != fabric}
    name = max(others, key=lambda one: others[one], default="none")
    return name, others.get(name, 0)
