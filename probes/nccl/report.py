"""What an NCCL log says, in one object: for a person, as JSON, and as an exit code."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.findings import listed
from probes.nccl import detect_init, detect_transport
from probes.nccl.edges import MOST_RANKS
from probes.nccl.evidence import names
from probes.nccl.log import Log
from probes.nccl.parser import read
from reports.record import Finding
from reports.sanitize import one_line

SCHEMA = 1
ACCEPTED, WRONG, UNPROVEN = 0, 1, 20
DETECT_INIT = (
    *(detect_init.plain, detect_init.queue_pairs, detect_init.broken_pairs, detect_init.slow),
    *(detect_init.bootstrap, detect_init.nvls, detect_init.versions),
    *(detect_init.missing_ranks, detect_init.corrupt, detect_init.broken, detect_transport.alone),
)
DETECT_TRANSPORT = (
    *(detect_transport.mixed, detect_transport.tcp, detect_transport.disabled),
    *(detect_transport.plain, detect_transport.efa, detect_transport.no_device),
    *(detect_transport.ipoib, detect_transport.loopback, detect_transport.plugin),
    *(detect_transport.no_gdr, detect_transport.partial_rails, detect_transport.unknown_network),
)


@dataclass(frozen=True)
class Report:
    """The answer of one log.

    `transport` is rdma, tcp, mixed, intra-node or none; `edges` counts connections between pairs
    of ranks by kind; `gdr` is None where no RDMA edge was seen; `unproven` holds a sentence for
    each thing that the log cannot show.
    """

    transport: str
    networks: list[str]
    gdr: bool | None
    edges: dict[str, int]
    hosts: int
    ranks: int
    nccl: str
    stage: str
    findings: list[Finding]
    unproven: list[str]

    @property
    def exit_code(self) -> int:
        """0 RDMA, or one host, with nothing found; 1 something is wrong; 20 it cannot be proven."""
        # An unknown network is no fault: it only proves nothing.
        if any(finding.code != "FAB-UNKNOWN-NET" for finding in self.findings):
            return WRONG
        return UNPROVEN if self.unproven else ACCEPTED

    def to_json(self) -> dict[str, Any]:
        """Plain data; the keys are stable within schema 1."""
        return {
            "schema": SCHEMA,
            **{key: getattr(self, key) for key in ("transport", "networks", "gdr", "edges")},
            **{key: getattr(self, key) for key in ("hosts", "ranks", "nccl", "stage")},
            "findings": [
                finding.model_dump(include={"code", "statement", "suspects", "remedy", "evidence"})
                for finding in self.findings
            ],
            "unproven": self.unproven,
        }

    def text(self, width: int = 80) -> str:
        """For a person: the road, the findings with remedy and place, what is not proven."""
        count = f"{self.ranks} ranks on {self.hosts} hosts, NCCL {self.nccl or 'unknown'}"
        roads = ", ".join(f"{number} {kind}" for kind, number in self.edges.items() if number)
        direct = {True: ", GPUDirect RDMA", False: ", without GPUDirect RDMA", None: ""}[self.gdr]
        lines = [
            f"transport  {self.transport}{direct}",
            f"networks   {one_line(', '.join(self.networks)) or 'none named'}",
            f"edges      {roads or 'none'}",
            f"ranks      {count}",
            f"stage      {self.stage}",
        ]
        for finding in self.findings:
            place = f" [{', '.join(finding.suspects)}]" if finding.suspects else ""
            lines += ["", *_wrap(f"{finding.code}{place}: {finding.statement}", width)]
            lines += _wrap(f"remedy: {finding.remedy}", width, "  ")
            lines += [f"  {one_line(where)}" for where in finding.evidence]
        for sentence in self.unproven:
            lines += ["", *_wrap(f"not proven: {sentence}", width)]
        if not self.findings and not self.unproven:
            lines += ["", "nothing found"]
        return "\n".join(lines)


def report(paths: Iterable[Path]) -> Report:
    """Read the log files of one job and say what happened."""
    return judged(read(paths))


def judged(log: Log) -> Report:
    """The report of a log that has been read."""
    findings = [one for detect in DETECT_INIT for one in detect(log)]
    if not log.single_host:
        findings += [one for detect in DETECT_TRANSPORT for one in detect(log)]
    stops = [one.code for one in findings if one.code != "INIT-SLOW"]
    if not any(code.startswith(("INIT-", "NCCL-", "FAB-MIXED")) for code in stops):
        findings += detect_init.hang(log)
    counts = {kind: log.edges[kind] for kind in ("rdma", "tcp", "intra")}
    if log.single_host:  # with P2P and shared memory off, ranks of one host meet by the network
        counts = {"rdma": 0, "tcp": 0, "intra": sum(counts.values())}
    return Report(
        transport=_transport(counts, log),
        networks=sorted({name for host in log.hosts.values() for name in host.networks}),
        gdr=False not in log.gdr if log.gdr and counts["rdma"] else None,
        edges=counts,
        hosts=max(len(log.host_names), log.nodes),
        ranks=max(log.size, len(log.members)),
        nccl=max(log.versions, key=lambda version: len(log.versions[version]), default=""),
        stage=log.stage,
        findings=findings,
        unproven=_unproven(log, counts),
    )


def _transport(counts: dict[str, int], log: Log) -> str:
    if counts["rdma"] and counts["tcp"]:
        return "mixed"
    if counts["rdma"] or counts["tcp"]:
        return "rdma" if counts["rdma"] else "tcp"
    within = counts["intra"] or (log.single_host and log.stage == "complete" and log.size > 0)
    return "intra-node" if within and not log.edges["other"] else "none"


def _unproven(log: Log, counts: dict[str, int]) -> list[str]:
    """What keeps this log from proving anything, one sentence each."""
    if not log.ranks:
        return list(log.unread) or ["no line of NCCL's is here"]
    return [*incomplete(log), *_missing(log), *_unknown(log), *_unconnected(log, counts)]


def incomplete(log: Log) -> list[str]:
    """Files of which all or a part is not here, one sentence each."""
    return [*log.unread, *_cut(log), *_left_out(log), *_silent(log)]


def _cut(log: Log) -> list[str]:
    """Files whose end is missing."""
    if not log.cut:
        return []
    one = len(log.cut) == 1
    return [
        f"{listed(log.cut)} {'is' if one else 'are'} cut off, in the middle of a line: whether the "
        f"job came further is not here; give the whole file{'' if one else 's'}"
    ]


def _left_out(log: Log) -> list[str]:
    """What was not kept."""
    if not log.room.full:
        return []
    return [
        "the log is larger than any job that is known: it names more ranks, hosts, communicators "
        f"and connections than a job of {MOST_RANKS} ranks has, and what came after is left out"
    ]


def _missing(log: Log) -> list[str]:
    """Ranks and hosts whose lines are not here, and processes that do not belong together."""
    parts = [group for group in log.communicators.values() if len(group.seats) < group.size]
    size = log.size
    seen = len({rank.rank for rank in log.members if rank.ranks == size})
    if parts or seen < size:
        worst = min(parts, key=lambda group: len(group.seats) / group.size, default=None)
        have, want = (len(worst.seats), worst.size) if worst else (seen, size)
        why = "Ray's driver left out repeated lines: set RAY_DEDUP_LOGS=0, or better "
        return [
            f"lines of {have} of {want} ranks are here: {why if log.repeated else ''}"
            "let each rank write its own file (NCCL_DEBUG_FILE=/some/folder/nccl.%h.%p.log), and "
            "give them all"
        ]
    if not size:
        return ["no line tells how many ranks there are: the log's beginning is missing"]
    if log.nodes > len(log.host_names) > 0:
        return [
            f"NCCL counts {log.nodes} nodes, lines of {len(log.host_names)} host names are here: "
            "give all logs; two nodes must not have one name"
        ]
    if len(log.jobs) > 1:
        return [f"the processes form {len(log.jobs)} groups that no communicator joins"]
    return []


def _silent(log: Log) -> list[str]:
    """Ranks whose lines about their connections are missing."""
    if not log.silent:
        return []
    return [
        f"others are connected to {names(log.silent)}, whose own lines end before that: the end "
        "of that log is missing"
    ]


def _unknown(log: Log) -> list[str]:
    """Networks and warnings that nobody here can vouch for."""
    said = []
    if log.edges["other"]:
        said.append(f"nobody here vouches for the network {listed(log.other_networks)}")
    if odd := log.seen["unknown"]:
        first = f"{odd[0].at}: {odd[0].detail}"
        said.append(f"{len(odd)} warnings of NCCL's are not known here, the first at {first}")
    return said


def _unconnected(log: Log, counts: dict[str, int]) -> list[str]:
    """Ranks that are not seen to be connected."""
    if log.single_host:
        if counts["intra"] or log.size <= 1 or log.stage == "complete":
            return []
        return ["no connection between ranks is shown: run one collective with NCCL_DEBUG=INFO"]
    if counts["rdma"] or counts["tcp"] or log.edges["other"]:
        return []
    return [
        "no connection between hosts is shown: since NCCL 2.22 ranks connect at their first "
        "collective, so run one, large enough to use the network"
    ]


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        one_line(text), width, initial_indent=indent, subsequent_indent="  ", break_long_words=False
    )
