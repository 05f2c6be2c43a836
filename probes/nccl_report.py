"""What an NCCL log says, in one object: for a person, as JSON, and as an exit code."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes import nccl_roads, nccl_starts
from probes.nccl_log import Log, read
from reports.record import Finding
from reports.untrusted import one_line

SCHEMA = 1
ACCEPTED, WRONG, UNPROVEN = 0, 1, 20
STARTS = (
    *(nccl_starts.plain, nccl_starts.bootstrap, nccl_starts.nvls, nccl_starts.versions),
    *(nccl_starts.missing_ranks, nccl_starts.corrupt, nccl_roads.alone),
)
ROADS = (
    *(nccl_roads.mixed, nccl_roads.tcp, nccl_roads.disabled, nccl_roads.plain),
    *(nccl_roads.no_device, nccl_roads.ipoib, nccl_roads.loopback, nccl_roads.plugin),
    *(nccl_roads.no_gdr, nccl_roads.partial_rails, nccl_roads.unknown_network),
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
    findings = [one for detect in STARTS for one in detect(log)]
    if not log.single_host:
        findings += [one for detect in ROADS for one in detect(log)]
    if not any(one.code.startswith(("INIT-", "NCCL-", "FAB-MIXED")) for one in findings):
        findings += nccl_starts.hang(log)
    counts = {kind: len(log.edges[kind]) for kind in ("rdma", "tcp", "intra")}
    if log.single_host:  # with P2P and shared memory off, ranks of one host meet by the network
        counts = {"rdma": 0, "tcp": 0, "intra": sum(counts.values())}
    return Report(
        transport=_transport(counts, log),
        networks=sorted({name for host in log.hosts.values() for name in host.networks}),
        gdr=False not in log.gdr if log.gdr else None,
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
    return "intra-node" if counts["intra"] and not log.edges["other"] else "none"


def _unproven(log: Log, counts: dict[str, int]) -> list[str]:
    """What keeps this log from proving anything, one sentence each."""
    said = list(log.unread)
    size = log.size
    seen = len({rank.rank for rank in log.members if rank.ranks == size})
    crossing = counts["rdma"] or counts["tcp"] or log.edges["other"]
    if not log.ranks:
        said += [] if said else ["no file was given"]
    elif seen < size:
        why = "Ray's driver left out repeated lines: set RAY_DEDUP_LOGS=0, or better "
        said.append(
            f"lines of {seen} of {size} ranks are here: {why if log.repeated else ''}"
            "let each rank write its own file (NCCL_DEBUG_FILE=/some/folder/nccl.%h.%p.log) and "
            "give them all"
        )
    elif log.single_host and not counts["intra"] and size > 1:
        said.append("no connection between ranks is shown: run one collective with NCCL_DEBUG=INFO")
    elif not log.single_host and not crossing:
        said.append(
            "no connection between hosts is shown: since NCCL 2.22 ranks connect at their first "
            "collective, so run one, large enough to use the network"
        )
    if log.edges["other"]:
        said.append(f"nobody here vouches for the network {', '.join(log.other_networks)}")
    return said


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        one_line(text), width, initial_indent=indent, subsequent_indent="  ", break_long_words=False
    )
