"""A sweep with witnesses: collectives over a gang, and which road their bytes took.

Two witnesses see every sweep: the byte counters of each node's devices, and what the library
itself says (NCCL's log; for gloo the sockets that it holds).  Neither knows of the other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from probes.cluster.byte_counters import growth, main_road, read_counters
from probes.cluster.cluster import Cluster
from probes.fabric.library_report import RankLogs, Witness, sockets_say
from probes.fabric.rails import growth as rail_growth
from probes.fabric.rails import read_rails
from probes.fabric.stack_dump import RECORDED
from reference_trainer.launch.gang import Gang
from scaling.collectives.operations import OPERATIONS
from scaling.collectives.sweep import MORE_SECONDS, moved, plateau, summarise, sweep

START_SECONDS = 90.0  # NCCL tries for 60 s to connect, and then says what failed
SWEEP_SECONDS = 60.0  # a sweep takes some 10 s, and ends a size after one call takes 0.5 s
CHECKED = 1 << 20  # bytes: the size at which the other collectives and the control run
# Bytes are counted against what a ring must move; a tree over two nodes moves less per port, and
# over two nodes shows more than the line rate.
PINNED = {"NCCL_ALGO": "Ring"}
OTHERS = tuple(name for name in OPERATIONS if name != "all_reduce")


def pinned(cluster: Cluster, logs: RankLogs) -> dict[str, str]:
    """What the gang's ranks run with: a ring, logs of their own, and NCCL where GPUs are real."""
    backend = {"SEATRIAL_BACKEND": "nccl"} if cluster.on_gpu else {}
    return {**PINNED, **RECORDED, **logs.environment, **backend}


def init_seconds(ranks: int) -> float:
    """Our own deadline for so many ranks to come together: the more, the longer they may take."""
    return START_SECONDS + MORE_SECONDS * ranks


def sweep_seconds(ranks: int) -> float:
    """That for a sweep, in which the ranks come together once more."""
    return init_seconds(ranks) + SWEEP_SECONDS


@dataclass(frozen=True)
class Journey:
    """What a sweep showed: rows per size, per node the bytes sent on each road, and the word of
    the library."""

    ranks: int
    backend: str
    rows: list[dict[str, Any]]
    sent: dict[str, dict[str, int]]
    word: Witness = field(default_factory=Witness)
    rails: dict[str, dict[str, int]] = field(default_factory=dict)  # node -> port -> bytes sent
    rates: dict[str, float] = field(default_factory=dict)  # node -> Gbit/s of one of its rails
    note: str = ""

    @property
    def expected(self) -> float:
        """Bytes that each node had to send: 2(n-1)/n x S, over all calls."""
        return moved(self.rows, OPERATIONS["all_reduce"], self.ranks)

    @property
    def peak(self) -> dict[str, Any]:
        """The judged row: a large message's."""
        return plateau(self.rows)

    @property
    def road(self) -> str:
        """The road that most nodes' bytes took."""
        return Counter(main_road(sent) for sent in self.sent.values()).most_common(1)[0][0]

    def at(self, size: int) -> dict[str, Any] | None:
        """The row of this size (bytes)."""
        return next((row for row in self.rows if row["size"] == size), None)

    def share(self, node: str, road: str) -> float:
        """Bytes a node sent on a road, as a ratio of those it had to send."""
        return self.sent[node].get(road, 0) / self.expected if self.expected else 0.0

    def elsewhere(self, node: str, road: str) -> float:
        """The same for all other roads together."""
        return sum(self.share(node, other) for other in self.sent[node] if other != road)

    def dispute(self) -> str:
        """Where the witnesses do not say the same, or one says nothing; "" when they agree."""
        counted = {node: main_road(sent) for node, sent in self.sent.items()}
        if not self.word.roads:
            return f"{self.word.source or 'the library'} says nothing: {self.word.trouble}"
        for node, road in counted.items():
            said = self.word.roads.get(node)
            if said != road and not (said == "tcp" and road not in ("rdma", "none")):
                return (
                    f"on {node} the byte counters saw {road}, {self.word.source} "
                    f"{'says ' + said if said else 'says nothing'}"
                )
        return ""


def travel(
    gang: Gang,
    names: dict[str, str],
    logs: RankLogs,
    environment: dict[str, str | None] | None = None,
    only: int | None = None,
) -> Journey:
    """Sweep all-reduce over the gang and count the bytes; `only` limits it to one size."""
    before, ports = gang.run(read_counters, timeout=60), gang.run(read_rails, timeout=60)
    wait = sweep_seconds(gang.size)
    found = gang.run(sweep, ("all_reduce",), 0.5, 0.25, only, timeout=wait, environment=environment)
    after, ports_after = gang.run(read_counters, timeout=60), gang.run(read_rails, timeout=60)
    nodes = [names[place.node] for place in gang.places]
    ends = [one["connections"] for one in found]
    by_nccl = found[0]["backend"] == "nccl"
    sweeps = [one["sweeps"]["all_reduce"] for one in found]
    return Journey(
        found[0]["ranks"],
        found[0]["backend"],
        summarise(sweeps),
        {node: growth(b, a) for node, b, a in zip(nodes, before, after, strict=True)},
        word=logs.says(gang, names) if by_nccl else sockets_say(gang, names, ends),
        rails={
            node: rail_growth(b, a) for node, b, a in zip(nodes, ports, ports_after, strict=True)
        },
        rates={
            node: max((port["gbps"] for port in found.values()), default=0.0)
            for node, found in zip(nodes, ports_after, strict=True)
        },
        note=sweeps[0]["note"],
    )


def others(gang: Gang, size: int, corrupt: int | None = None) -> dict[str, list[dict[str, Any]]]:
    """Rows of the other five collectives at one size (bytes), by name: their values are checked."""
    wait = sweep_seconds(gang.size)
    found = gang.run(sweep, OTHERS, 0.3, 0.1, size, corrupt, timeout=wait)
    return {name: summarise([one["sweeps"][name] for one in found]) for name in OTHERS}
