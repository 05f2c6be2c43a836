"""A start that stopped without an error: how far it came, who lags behind, what it looks like."""

from __future__ import annotations

from collections import defaultdict

from probes.findings import SHOWN, finding, listed
from probes.nccl.evidence import names
from probes.nccl.job import STAGES, Rank
from probes.nccl.log import Log
from probes.nccl.remedies import FAMILIES, FIRST_COLLECTIVE, MESH
from reports.record import Finding


def hang(log: Log) -> list[Finding]:
    """Stopped without an error: the stage, and the ranks that lag behind.

    A rank that never had to connect holds nobody up, unless others are seen connecting.
    """
    members = log.members
    if log.partial or not any(rank.stuck for rank in members):
        return []  # the end of the file is no end of the job
    said, suspects, remedy = _families(log) or _before_the_network(log) or _behind(log, members)
    return [finding("INIT-HANG", said, suspects[:SHOWN], remedy=remedy)]


def two_families(log: Log) -> tuple[str, list[str]] | None:
    """Hosts that start over IPv4 beside hosts that start over IPv6; the minority."""
    hosts: dict[str, list[str]] = defaultdict(list)
    for name, host in log.hosts.items():
        if host.bootstrap:
            hosts["IPv6" if ":" in host.bootstrap[1] else "IPv4"].append(name)
    if len(hosts) < 2:
        return None
    few, many = sorted(hosts, key=lambda family: len(hosts[family]))
    uses = "uses" if len(hosts[few]) == 1 else "use"
    others = "uses" if len(hosts[many]) == 1 else "use"
    said = f"{listed(hosts[few])} {uses} {few}, {listed(hosts[many])} {others} {many}"
    return said, hosts[few]


def _families(log: Log) -> tuple[str, list[str], str] | None:
    found = two_families(log)
    if found is None or STAGES.index(log.stage) > STAGES.index("topology"):
        return None  # or they have met all the same
    said, suspects = found
    return f"the log stops at {log.stage} without an error, and {said}", suspects, FAMILIES


def _before_the_network(log: Log) -> tuple[str, list[str], str] | None:
    """Every process stops before NCCL looks at the network."""
    if log.networked or {rank.stage for rank in log.members} != {STAGES.index("bootstrap")}:
        return None
    said = f"all {len(log.members)} processes stop before any line about the network"
    return said, log.host_names, MESH


def _behind(log: Log, members: list[Rank]) -> tuple[str, list[str], str]:
    remedy = FIRST_COLLECTIVE if log.stage in ("connect", "first-collective") else ""
    least = min(rank.stage for rank in members)
    idle = [rank for rank in members if rank.stage == least and not rank.connecting]
    behind = idle or [rank for rank in members if rank.stuck]
    if len(behind) == len(members):
        said = f"the log of all {len(members)} ranks stops at {log.stage} without an error"
        return said, [], remedy
    others = STAGES[max(rank.stage for rank in members)]
    said = f"the log stops without an error: {names(behind)} at {log.stage}, others at {others}"
    return said, [rank.name for rank in behind], remedy
