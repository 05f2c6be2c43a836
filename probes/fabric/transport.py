"""Reports which network carried the data: by the log of NCCL, or by gloo's connections."""

from __future__ import annotations

import gzip
import os
import re
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from probes.check.recorder import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.network_facts import RDMA, interfaces_of
from probes.cluster.node_facts import read_interfaces
from probes.nccl.job import STAGES
from probes.nccl.log import Log
from probes.nccl.log_files import filter_log
from probes.nccl.parser import read_logs
from probes.nccl.report import NcclReport, incomplete_files, judge_log
from reference_trainer.launch.gang import Gang
from reports.groups import group_pairs
from reports.record import Finding
from scaling.collectives.sweep import call_seconds

Connection = tuple[str, str, int, int]  # own address, peer's address, own port, peer's port
# Google's plugins send from GPU memory through Ethernet interfaces, as fast as RDMA.
TCPX = re.compile(r"FasTrak|GPUDirectTCPX\w*", re.IGNORECASE)
FOLDER = "/tmp"  # on each node; the driver's own TMPDIR may not exist there
# Bytes of relevant lines: the limit of all logs together, and the least limit of each rank.  They
# are sent and stored zipped, to under a tenth.
MAX_TOTAL_BYTES, MIN_RANK_BYTES = 64 << 20, 256 << 10
STALE_SECONDS = 86400  # a run lasts for hours


@dataclass(frozen=True)
class TransportReport:
    """Transport that the library reports: node -> rdma, tcp or the interface.

    If `transports` is empty, `problem` is the reason.  `report` is the judged NCCL log, if there is
    one, and `missing` what is not in it.  `logs` are its files by name, zipped.  `stages` is how
    far each rank came.  `interface` is the interface by which all ranks connect, None if they
    differ.
    """

    source: str = ""
    transports: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    report: NcclReport | None = None
    missing: Sequence[str] = ()
    logs: dict[str, bytes] = field(default_factory=dict)
    stages: dict[str, str] = field(default_factory=dict)
    interface: str | None = None


class RankLogs:
    """NCCL logs of all ranks, a file per rank on its node; removed when the context ends.

    The driver's stdout is not used: Ray leaves out lines there that ranks repeat.  With gloo the
    settings have no effect.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.token = cluster, secrets.token_hex(6)

    def __enter__(self) -> RankLogs:
        self.cluster.on_each_node(clear_logs, self.token)  # removes logs that a killed driver left
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.on_each_node(clear_logs, self.token)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for the gang."""
        return {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET,GRAPH",
            "NCCL_DEBUG_FILE": f"{FOLDER}/seatrial-nccl-{self.token}.%h.%p.log",
        }

    def collect(self, gang: Gang) -> dict[str, bytes]:
        """Collect what this gang's ranks have written so far, by file, zipped; also of dead ranks.

        The files stay, because NCCL goes on writing into an open file.
        """
        pids = group_pairs((place.node, place.pid) for place in gang.places)
        max_size = max(MIN_RANK_BYTES, MAX_TOTAL_BYTES // max(len(gang.places), 1))
        by_node = self.cluster.on_each_node(take_logs, self.token, max_size, each=pids)
        return {name: text for files in by_node.values() for name, text in sorted(files.items())}

    def report(
        self, gang: Gang, node_names: dict[str, str], fabric: str | None = None
    ) -> TransportReport:
        """Report the transport by what the ranks of this gang wrote since they began.

        TCP over interfaces of `fabric` alone is reported by its name.
        """
        logs = self.collect(gang)
        with tempfile.TemporaryDirectory() as folder:
            for name, text in logs.items():
                (Path(folder) / name).write_bytes(text)
            log = read_logs(sorted(Path(folder).iterdir()))
        log.every_rank = len(logs) == len(gang.places)
        hosts = {place.host.split(".")[0]: node_names[place.node] for place in gang.places}
        gpus = {one["name"]: [gpu["name"] for gpu in one["gpus"]] for one in self.cluster.facts}
        for name, host in log.hosts.items():
            host.gpus = gpus.get(hosts.get(name.split(".")[0], ""), ())
        report = judge_log(log)
        # If a log is incomplete, its rank may be the rank that used another transport.
        missing = incomplete_files(log)
        if len(logs) < len(gang.places):
            missing = [f"only {len(logs)} of {len(gang.places)} ranks have a log of NCCL", *missing]
        transports = {} if missing else _transports_by_node(log, hosts, fabric)
        reason = "; ".join(missing or report.unproven) or "no connection between hosts"
        ifnames = {host.bootstrap[0] for host in log.hosts.values() if host.bootstrap}
        return TransportReport(
            source="NCCL's log",
            transports=transports,
            problem="" if transports else reason,
            report=report,
            missing=missing,
            logs=logs,
            stages={rank.name: STAGES[rank.stage] for rank in log.ranks.values()},
            interface=ifnames.pop() if len(ifnames) == 1 else None,
        )


def keep_logs(
    transport: TransportReport, measure: Recorder, *, only_cited: bool = False
) -> list[Finding]:
    """Keep NCCL's logs as evidence; return their findings, which name lines of the kept files.

    With `only_cited`, logs that no finding names are left out: a sweep may have kept them all.
    """
    findings = transport.report.findings if transport.report else []
    cited = {place.rpartition(":")[0] for item in findings for place in item.evidence}
    kept = dict[str, str]()
    for name, packed in transport.logs.items():
        if name in cited or not only_cited:
            text = gzip.decompress(packed).decode("utf-8", "backslashreplace")
            kept[name] = measure.keep(name, text, kind="log", caption="NCCL's log of one rank")
    return [
        item.model_copy(update={"evidence": [_cite(place, kept) for place in item.evidence]})
        for item in findings
    ]


def _cite(place: str, kept: Mapping[str, str]) -> str:
    """Turn `log:line` into `path:line`; the place stays as it is if the log was not kept."""
    name, _, line = place.rpartition(":")
    return f"{kept[name]}:{line}" if kept.get(name) else place


def take_logs(token: str, max_size: int, pids: list[int], folder: str = FOLDER) -> dict[str, bytes]:
    """Read the log files of these processes of this node, zipped, by name.

    Only the relevant lines are kept, at most `max_size` bytes of each file.
    """
    logs = {}
    for pid in pids:
        for path in Path(folder).glob(f"seatrial-nccl-{token}.*.{pid}.log"):
            name = path.name.replace(f"seatrial-nccl-{token}", "nccl")
            with path.open("rb") as file:
                logs[name] = gzip.compress(filter_log(file, max_size))
    return logs


def clear_logs(token: str, folder: str = FOLDER) -> None:
    """Remove this node's files of the token, and our own files that are older than a day."""
    for path in Path(folder).glob("seatrial-nccl-*.log"):
        with suppress(FileNotFoundError):
            info = path.lstat()
            old = info.st_uid == os.getuid() and time.time() - info.st_mtime > STALE_SECONDS
            if old or path.name.startswith(f"seatrial-nccl-{token}."):
                path.unlink()


def _transports_by_node(log: Log, hosts: dict[str, str], fabric: str | None) -> dict[str, str]:
    """Map each node to its transport, from the edges that its ranks wrote."""
    transports = {}
    for name, host in log.hosts.items():
        node = hosts.get(name.split(".")[0])
        if node and "tcp" in host.edges:
            ifnames = {name_of_fabric(interface, fabric) for interface, _ in host.sockets}
            transports[node] = ifnames.pop() if len(ifnames) == 1 else "tcp"
        elif node and "rdma" in host.edges:
            is_tcpx = interfaces_of(fabric) and any(map(TCPX.fullmatch, host.networks))
            transports[node] = fabric if fabric and is_tcpx else RDMA
    return transports


def name_of_fabric(interface: str, fabric: str | None) -> str:
    """Return the name of the fabric for one of its interfaces, else the interface."""
    return fabric if fabric and interface in interfaces_of(fabric) else interface


def gloo_report(
    gang: Gang,
    node_names: dict[str, str],
    connections: Sequence[Sequence[Connection]],
    fabric: str | None = None,
) -> TransportReport:
    """Report the interface of the connections that gloo opened to most other nodes, by node.

    An interface of `fabric` is reported by its name.
    """
    interfaces = gang.run(read_interfaces, timeout=call_seconds(gang.size))
    transports: dict[str, str] = {}
    for place, devices, ends in zip(gang.places, interfaces, connections, strict=True):
        addresses = {port["address"]: name for name, port in devices.items() if port["address"]}
        peers = {(addresses.get(local), peer) for local, peer, *_ in ends if peer not in addresses}
        counts = Counter(name_of_fabric(interface, fabric) for interface, _ in peers if interface)
        if counts:
            transports[node_names[place.node]] = counts.most_common(1)[0][0]
    problem = "" if transports else "no connection to another node is open"
    return TransportReport("gloo's sockets", transports, problem)
