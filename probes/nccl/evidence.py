"""Words about what a log showed: which hosts, which places, which road a host took."""

from __future__ import annotations

from collections.abc import Iterable

from probes.findings import SHOWN, finding, listed
from probes.nccl.edges import RDMA_NETWORKS
from probes.nccl.job import Host, Rank, Sighting
from probes.nccl.log import Log
from reports.record import Finding

PLACES = 3  # places shown as evidence


def told(code: str, what: str, seen: list[Sighting]) -> list[Finding]:
    """One finding for all sightings: `hosts: what`, the hosts as suspects, the first places."""
    if not seen:
        return []
    hosts = hosts_of(seen)
    said = f"{listed(hosts) or 'the job'}: {what}"
    return [finding(code, said, hosts[:SHOWN], evidence=places(seen))]


def on_tcp(host: Host) -> bool:
    """Whether the host's edges between hosts, or else its network, are sockets."""
    return "tcp" in host.edges or ("Socket" in host.networks and not on_rdma(host))


def on_rdma(host: Host) -> bool:
    """Whether its edges between hosts, or else its network, are RDMA."""
    offered = any(RDMA_NETWORKS.fullmatch(name) for name in host.networks)
    return "rdma" in host.edges or (offered and "tcp" not in host.edges)


def undecided(log: Log, host: Host) -> bool:
    """Whether the line that names its network may be among those that are missing."""
    return log.partial and not host.networks and not host.edges


def hosts_of(seen: Iterable[Sighting]) -> list[str]:
    """The hosts that wrote them, each once."""
    return list(dict.fromkeys(s.rank.writer.host for s in seen if s.rank.writer.host))


def places(seen: list[Sighting]) -> list[str]:
    """`file:line` of the first ones."""
    return [s.at for s in seen[:PLACES]]


def names(ranks: list[Rank]) -> str:
    """Ranks with their hosts, in order."""
    return listed(rank.name for rank in sorted(ranks, key=lambda rank: rank.rank))
