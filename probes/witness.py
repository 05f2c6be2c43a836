"""What the communication library itself says of the road: NCCL's log, or gloo's sockets."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from probes.facts import interfaces
from probes.nccl_log import Log, read
from probes.nccl_report import Report, judged
from probes.nccl_sightings import on_rdma, on_tcp
from reference_trainer.gang import Gang

Ends = tuple[str, str, int, int]  # own address, peer's address, own port, peer's port
LARGEST_LOG = 64 << 20  # bytes of one rank's log that are collected


@dataclass(frozen=True)
class Witness:
    """`roads`: node -> rdma, tcp or the interface.  Empty with the reason in `trouble`.

    `report` and `text` are what NCCL's log says, where there is one.
    """

    source: str = ""
    roads: dict[str, str] = field(default_factory=dict)
    trouble: str = ""
    report: Report | None = None
    text: str = ""


def nccl_debug(token: str) -> dict[str, str]:
    """Variables that make every rank write its own log; never the driver's stdout, where Ray
    leaves out what ranks repeat."""
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET,GRAPH",
        "NCCL_DEBUG_FILE": f"{tempfile.gettempdir()}/seatrial-nccl-{token}.%h.%p.log",
    }


def collect_log() -> bytes:
    """This rank's NCCL log (its end, where it is very long); the file is removed."""
    import os

    found = b""
    asked = os.environ.get("NCCL_DEBUG_FILE", "")
    pattern = Path(asked.replace("%h", "*").replace("%p", str(os.getpid())))
    for path in pattern.parent.glob(pattern.name) if asked else []:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LARGEST_LOG))
            found += file.read()
        path.unlink()
    return found


def nccl_says(gang: Gang, names: dict[str, str], _: Sequence[Sequence[Ends]]) -> Witness:
    """Read what every rank of the gang wrote."""
    texts = gang.run(collect_log, timeout=60)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"rank{rank}.log" for rank in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_bytes(text)
        log = read(paths)
    report = judged(log)
    hosts = {place.host.split(".")[0]: names[place.node] for place in gang.places}
    roads = _roads(log, hosts)
    trouble = "" if roads else "; ".join(report.unproven) or "no connection between hosts"
    whole = b"".join(texts).decode("utf-8", "backslashreplace")
    return Witness("NCCL's log", roads, trouble, report, whole)


def _roads(log: Log, hosts: dict[str, str]) -> dict[str, str]:
    """Per node, from the edges that its ranks wrote."""
    roads = {}
    for name, host in log.hosts.items():
        node = hosts.get(name.split(".")[0])
        if node and "tcp" in host.edges and on_tcp(host):
            ways = {interface for interface, _ in host.sockets}
            roads[node] = ways.pop() if len(ways) == 1 else "tcp"
        elif node and "rdma" in host.edges and on_rdma(host):
            roads[node] = "rdma"
    return roads


def sockets_say(
    gang: Gang, names: dict[str, str], connections: Sequence[Sequence[Ends]]
) -> Witness:
    """Which interface carries the connections that gloo opened to most of the other nodes."""
    ports = gang.run(interfaces, timeout=60)
    own = [
        {port["address"]: name for name, port in found.items() if port["address"]}
        for found in ports
    ]
    roads: dict[str, str] = {}
    for place, addresses, ends in zip(gang.places, own, connections, strict=True):
        peers = {(addresses.get(here), there) for here, there, *_ in ends if there not in addresses}
        reached = Counter(interface for interface, _ in peers if interface)
        if reached:
            roads[names[place.node]] = reached.most_common(1)[0][0]
    trouble = "" if roads else "no connection to another node is open"
    return Witness("gloo's sockets", roads, trouble)
