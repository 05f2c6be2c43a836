"""Words about what a log showed: which hosts, which places, which road a host took."""

from __future__ import annotations

from collections.abc import Iterable

from probes.findings import MAX_NAMES, finding, join_names
from probes.nccl.edges import RDMA_NETWORKS
from probes.nccl.job import Host, MatchedMessage, Rank
from probes.nccl.log import Log
from reports.record import Finding

MAX_LINES = 3  # places shown as evidence


def finding_for_messages(code: str, problem: str, hits: list[MatchedMessage]) -> list[Finding]:
    """One finding for all sightings: `hosts: what`, the hosts as suspects, the first places."""
    if not hits:
        return []
    hosts = hosts_of(hits)
    message = f"{join_names(hosts) or 'the job'}: {problem}"
    return [finding(code, message, hosts[:MAX_NAMES], evidence=first_lines(hits))]


def on_tcp(host: Host) -> bool:
    """Whether the host's edges between hosts, or else its network, are sockets."""
    return "tcp" in host.edges or ("Socket" in host.networks and not on_rdma(host))


def on_rdma(host: Host) -> bool:
    """Whether its edges between hosts, or else its network, are RDMA."""
    has_rdma = any(RDMA_NETWORKS.fullmatch(name) for name in host.networks)
    return "rdma" in host.edges or (has_rdma and "tcp" not in host.edges)


def undecided(log: Log, host: Host) -> bool:
    """Whether the line that names its network may be among those that are missing."""
    return log.partial and not host.networks and not host.edges


def hosts_of(hits: Iterable[MatchedMessage]) -> list[str]:
    """The hosts that wrote them, each once."""
    return list(dict.fromkeys(m.rank.writer.host for m in hits if m.rank.writer.host))


def first_lines(hits: list[MatchedMessage]) -> list[str]:
    """`file:line` of the first ones."""
    return [m.line for m in hits[:MAX_LINES]]


def rank_names(ranks: list[Rank]) -> str:
    """Ranks with their hosts, in order."""
    return join_names(rank.name for rank in sorted(ranks, key=lambda rank: rank.number))
