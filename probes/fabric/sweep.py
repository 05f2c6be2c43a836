"""Runs collectives over a gang, and records which path their bytes took.

Two independent sources record every sweep.  They are the byte counters of each node's devices, and
the library's own report (NCCL's log; for gloo its open sockets).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from probes.check.recorder import Recorder
from probes.cluster import network_facts
from probes.cluster.network_facts import UNKNOWN, main_device, read_counters
from probes.fabric.link_counters import LinkReader, lost_packets
from probes.fabric.rails import bytes_by_interface, rail_growth, read_rails
from probes.fabric.stack_dump import RECORDER_ENV
from probes.fabric.transport import RankLogs, TransportReport, gloo_report
from reference_trainer.launch.gang import Gang
from reports.groups import group_pairs
from scaling.collectives import sweep as collectives
from scaling.collectives.operations import OPERATIONS

START_SECONDS = 90.0  # NCCL tries for 60 s to connect, and then reports what failed
SWEEP_SECONDS = 60.0  # a sweep takes some 10 s
CHECK_SIZE = 1 << 20  # bytes: the size at which the other collectives and the control run
# The bytes of one ring through all ranks are known, and counters are compared with them.  A tree
# over two nodes moves less per port, and shows more than the line rate.  NVLink between hosts
# (GB200) is off: otherwise no byte of the ring would cross the fabric under test.
RING_ENV = {"NCCL_ALGO": "Ring", "NCCL_MNNVL_ENABLE": "0"}
LEAST_COUNTED = 0.05  # of the bytes that were sent: if less is counted, they went elsewhere
ACCOUNTED = 0.9  # of the expected bytes on the fabric: then no other device carried part of them
Rows = list[dict[str, Any]]  # as `summarise` returns them: one row for each size and placement
OTHER_OPS = tuple(name for name in OPERATIONS if name != "all_reduce")


def gang_env(logs: RankLogs) -> dict[str, str]:
    """Return the environment of the gang's ranks: a ring, own logs, and NCCL if GPUs are real."""
    backend = {"SEATRIAL_BACKEND": "nccl"} if logs.cluster.on_gpu else {}
    return {**RING_ENV, **RECORDER_ENV, **logs.environment, **backend}


def rail_envs(fabric: str | None, on_gpu: bool) -> list[dict[str, str]]:
    """Return the variables of each local rank: gloo's binds one interface of several, in turn.

    NCCL finds the port of each GPU by itself, and spreads TCP over all interfaces.
    """
    names = network_facts.interfaces_of(fabric)
    return [] if on_gpu or len(names) < 2 else [{"GLOO_SOCKET_IFNAME": name} for name in names]


def init_seconds(ranks: int) -> float:
    """Compute our deadline (s) for so many ranks to connect: it grows with their number."""
    return START_SECONDS + collectives.SECONDS_PER_RANK * ranks


def sweep_seconds(ranks: int) -> float:
    """Compute our deadline (s) for a sweep, in which the ranks connect once more."""
    return init_seconds(ranks) + SWEEP_SECONDS


@dataclass(frozen=True)
class Stall:
    """The call that exceeded twice the median of its size and rank by most: by `seconds`."""

    seconds: float
    call_s: float
    median_s: float
    size: int  # bytes
    rank: int


@dataclass(frozen=True)
class SweepResult:
    """Results of a sweep: rows per size, bytes sent per node and device, the library's report."""

    ranks: int
    backend: str
    rows: Rows
    sent: dict[str, dict[str, int | None]]
    library: TransportReport = field(default_factory=TransportReport)
    rails: dict[str, dict[str, int | None]] = field(default_factory=dict)  # node -> port -> bytes
    rail_gbps: dict[str, float] = field(default_factory=dict)  # node -> Gbit/s of one of its rails
    rank_nodes: list[str] = field(default_factory=list)  # each rank's node
    readings: list[list[Any]] = field(default_factory=list)  # of each rank, before and after
    note: str = ""

    @property
    def expected_bytes(self) -> float:
        """Bytes that each node had to send: 2(n-1)/n x S, over all calls."""
        return collectives.ring_bytes_sent(self.rows, OPERATIONS["all_reduce"], self.ranks)

    @property
    def plateau(self) -> dict[str, Any]:
        """Judged row: that of a typical large message."""
        return collectives.plateau_row(self.rows)

    @property
    def main_devices(self) -> dict[str, str]:
        """Device or transport that carried most bytes, by node."""
        return {
            node: main_device(sent, self.expected_bytes) if self.is_counted(node) else UNKNOWN
            for node, sent in self.sent.items()
        }

    def is_counted(self, node: str) -> bool:
        """Return whether the counters show at least LEAST_COUNTED of this node's bytes."""
        known = [count for count in self.sent[node].values() if count is not None]
        return sum(known) >= LEAST_COUNTED * self.expected_bytes

    @property
    def main_device(self) -> str:
        """Device that carried most bytes on most nodes."""
        return Counter(self.main_devices.values()).most_common(1)[0][0]

    @property
    def longest_stall(self) -> Stall:
        """Call that was late by most, over all sizes."""
        stalls = [
            Stall(max(0.0, worst - 2 * median), worst, median, row["size"], rank)
            for row in self.rows
            for rank, (worst, median) in enumerate(
                zip(row["rank_worst"], row["rank_seconds"], strict=True)
            )
        ]
        return max(stalls, key=lambda stall: stall.seconds)

    @property
    def lost_shares(self) -> dict[str, float | None]:
        """Share of the sent packets that were lost, by node; None if no counter shows it."""
        both = zip(self.rank_nodes, self.readings, strict=True)
        counts = group_pairs((node, lost_packets(*readings)) for node, readings in both)
        known = {node: [*filter(None, found)] for node, found in counts.items()}
        return {
            node: sum(lost for _, lost in rows) / sum(sent for sent, _ in rows) if rows else None
            for node, rows in known.items()
        }

    def share(self, node: str, device: str) -> float | None:
        """Compute the bytes a node sent on a device, as a ratio of those it had to send.

        None if they cannot be read, or if no counter shows what the node sent.
        """
        sent = self.sent[node].get(device, 0)
        if sent is None or not self.is_counted(node):
            return None
        return sent / self.expected_bytes if self.expected_bytes else 0.0

    def share_on_other_interfaces(self, node: str, device: str) -> float | None:
        """Compute the same for all other devices together.

        None if one of them cannot be read, unless the device itself accounts for all bytes.
        """
        shares = [self.share(node, name) for name in self.sent[node] if name != device]
        known = [share for share in shares if share is not None]
        is_accounted = (self.share(node, device) or 0.0) >= ACCOUNTED
        return sum(known) if len(known) == len(shares) or is_accounted else None

    @property
    def unread(self) -> str:
        """Counters that cannot be read, as a sentence; "" if all can.

        If all can be read, the sentence names nodes that count next to nothing of what they sent.
        """
        found = [
            f"{name} on {node}"
            for node, sent in self.sent.items()
            for name, count in sent.items()
            if count is None
        ]
        if found:
            return f"the byte counters of {', '.join(found)} cannot be read"
        elsewhere = [node for node in self.sent if not self.is_counted(node)]
        names = ", ".join(elsewhere)
        return f"no network port of {names} counted the bytes that were sent" * bool(elsewhere)

    def witness_disagreement(self) -> str:
        """Describe where the two sources differ, or one reports nothing; "" if they agree."""
        if not self.library.transports:
            source = self.library.source or "the library"
            return f"{source} did not show which network carried the data: {self.library.problem}"
        for node in sorted({*self.sent, *self.library.transports, *self.rank_nodes}):
            device, reported = self.main_devices.get(node), self.library.transports.get(node)
            if device is None:
                return f"the byte counters of {node} are unknown"
            if device == UNKNOWN:
                return self.unread
            if reported != device and not (reported == "tcp" and device not in ("rdma", "none")):
                found = f"on {node} the byte counters show {device}, but {self.library.source}"
                return f"{found} reported {reported or 'nothing'}"
        return ""


def run_sweep(
    gang: Gang,
    node_names: dict[str, str],
    logs: RankLogs,
    fabric: str | None = None,
    environment: dict[str, str | None] | None = None,
    only: int | None = None,
    ranks: Sequence[int] | None = None,
) -> SweepResult:
    """Sweep all-reduce over the gang and count the bytes; `only` limits it to one size (bytes).

    The interfaces of `fabric` are counted as one device.  With `ranks`, these alone sweep, as a job
    of their own, and the library is not asked.
    """
    own = [*(ranks or range(gang.size))]
    part: dict[str, Any] = {"groups": [own]} if ranks else {}
    within: dict[str, Any] = {"timeout": collectives.call_seconds(len(own)), **part}
    before, ports = gang.run(read_counters, **within), gang.run(read_rails, **within)
    wait = sweep_seconds(len(own))
    call = ("all_reduce",), None, 0.25, only, None, LinkReader
    data = gang.run(collectives.sweep, *call, timeout=wait, environment=environment, **part)
    after, ports_after = gang.run(read_counters, **within), gang.run(read_rails, **within)
    nodes = [node_names[gang.places[rank].node] for rank in own]
    backend, sweeps = data[0]["backend"], [item["sweeps"]["all_reduce"] for item in data]
    if ranks:
        library = TransportReport()
    elif backend == "nccl":
        library = logs.report(gang, node_names, fabric)
    else:
        library = gloo_report(gang, node_names, [item["connections"] for item in data], fabric)
    grown = [network_facts.counter_growth(*both) for both in zip(before, after, strict=True)]
    rails = [
        bytes_by_interface(by_device, fabric) or rail_growth(port, port_after)
        for by_device, port, port_after in zip(grown, ports, ports_after, strict=True)
    ]
    sent = [network_facts.join_fabric(by_device, fabric) for by_device in grown]
    rates = [max((port["gbps"] for port in rails.values()), default=0.0) for rails in ports_after]
    return SweepResult(
        data[0]["ranks"],
        backend,
        collectives.summarise(sweeps),
        sent=dict(zip(nodes, sent, strict=True)),
        library=library,
        rails=dict(zip(nodes, rails, strict=True)),
        rail_gbps=dict(zip(nodes, rates, strict=True)),
        rank_nodes=nodes,
        readings=[item["readings"] for item in data],
        note=sweeps[0]["note"],
    )


def check_ops(
    gang: Gang,
    size: int,
    corrupt: int | None = None,
    names: Sequence[str] = OTHER_OPS,
    budget_s: float = 0.1,
    delay: collectives.Delay | None = None,
) -> dict[str, Rows]:
    """Run collectives at one size (bytes), by default the other five: rows by name.

    Their values are checked.  Each placement is timed for `budget_s`.  `corrupt`, a rank whose
    results are changed, and `delay` are for controls.
    """
    call = tuple(names), 0.3, budget_s, size, corrupt, collectives.read_nothing, delay
    data = gang.run(collectives.sweep, *call, timeout=sweep_seconds(gang.size))
    return {name: collectives.summarise([item["sweeps"][name] for item in data]) for name in names}


def lowest(measure: Recorder, name: str) -> float:
    """Return the least value that the limit of a measure allows; 0 without such a limit."""
    limit = measure.contract.limit(measure.criterion, name)
    return limit.low or 0.0 if limit else 0.0


def highest(measure: Recorder, name: str, unlimited: float = math.inf) -> float:
    """Return the largest value that the limit of a measure allows, else `unlimited`."""
    limit = measure.contract.limit(measure.criterion, name)
    return limit.high if limit and limit.high is not None else unlimited
