"""What an NCCL log says, in one object: for a person, as JSON, and as an exit code."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.findings import join_names
from probes.nccl import detect_init, detect_transport
from probes.nccl.edges import MAX_RANKS
from probes.nccl.evidence import rank_names
from probes.nccl.log import Log
from probes.nccl.parser import read_logs
from reports.record import Finding
from reports.sanitize import one_line

SCHEMA = 1
EXIT_ACCEPTED, EXIT_WRONG, EXIT_UNPROVEN = 0, 1, 20
INIT_DETECTORS = (
    *(detect_init.init_errors, detect_init.qp_errors, detect_init.qp_breaks, detect_init.slow_init),
    *(detect_init.bootstrap_errors, detect_init.nvls_errors, detect_init.mixed_versions),
    *(
        detect_init.missing_ranks,
        detect_init.corrupt_results,
        detect_init.torch_errors,
        detect_transport.isolated_hosts,
    ),
)
TRANSPORT_DETECTORS = (
    *(detect_transport.mixed_hosts, detect_transport.tcp_edges, detect_transport.rdma_disabled),
    *(detect_transport.rdma_errors, detect_transport.missing_efa, detect_transport.no_device),
    *(detect_transport.tcp_over_ib, detect_transport.loopback_used, detect_transport.plugin_errors),
    *(detect_transport.no_gdr, detect_transport.partial_rails, detect_transport.unknown_network),
)


@dataclass(frozen=True)
class NcclReport:
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
            return EXIT_WRONG
        return EXIT_UNPROVEN if self.unproven else EXIT_ACCEPTED

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
        edges = ", ".join(f"{number} {kind}" for kind, number in self.edges.items() if number)
        gdr = {True: ", GPUDirect RDMA", False: ", without GPUDirect RDMA", None: ""}[self.gdr]
        lines = [
            f"transport  {self.transport}{gdr}",
            f"networks   {one_line(', '.join(self.networks)) or 'none named'}",
            f"edges      {edges or 'none'}",
            f"ranks      {count}",
            f"stage      {self.stage}",
        ]
        for finding in self.findings:
            suspects = f" [{', '.join(finding.suspects)}]" if finding.suspects else ""
            lines += ["", *_wrap(f"{finding.code}{suspects}: {finding.statement}", width)]
            lines += _wrap(f"remedy: {finding.remedy}", width, "  ")
            lines += [f"  {one_line(line)}" for line in finding.evidence]
        for sentence in self.unproven:
            lines += ["", *_wrap(f"not proven: {sentence}", width)]
        if not self.findings and not self.unproven:
            lines += ["", "nothing found"]
        return "\n".join(lines)


def analyse_files(paths: Iterable[Path]) -> NcclReport:
    """Read the log files of one job and say what happened."""
    return judge_log(read_logs(paths))


def judge_log(log: Log) -> NcclReport:
    """The report of a log that has been read."""
    findings = [finding for detect in INIT_DETECTORS for finding in detect(log)]
    if not log.single_host:
        findings += [finding for detect in TRANSPORT_DETECTORS for finding in detect(log)]
    codes = [finding.code for finding in findings if finding.code != "INIT-SLOW"]
    if not any(code.startswith(("INIT-", "NCCL-", "FAB-MIXED")) for code in codes):
        findings += detect_init.find_hang(log)
    counts = {kind: log.edge_counts[kind] for kind in ("rdma", "tcp", "intra")}
    if log.single_host:  # with P2P and shared memory off, ranks of one host meet by the network
        counts = {"rdma": 0, "tcp": 0, "intra": sum(counts.values())}
    return NcclReport(
        transport=_name_transport(counts, log),
        networks=sorted({name for host in log.hosts.values() for name in host.networks}),
        gdr=False not in log.gdr if log.gdr and counts["rdma"] else None,
        edges=counts,
        hosts=max(len(log.host_names), log.nodes),
        ranks=max(log.world_size, len(log.job_ranks)),
        nccl=max(log.versions, key=lambda version: len(log.versions[version]), default=""),
        stage=log.stage,
        findings=findings,
        unproven=_list_unproven(log, counts),
    )


def _name_transport(counts: dict[str, int], log: Log) -> str:
    if counts["rdma"] and counts["tcp"]:
        return "mixed"
    if counts["rdma"] or counts["tcp"]:
        return "rdma" if counts["rdma"] else "tcp"
    intra = counts["intra"] or (log.single_host and log.stage == "complete" and log.world_size > 0)
    return "intra-node" if intra and not log.edge_counts["other"] else "none"


def _list_unproven(log: Log, counts: dict[str, int]) -> list[str]:
    """What keeps this log from proving anything, one sentence each."""
    if not log.ranks:
        return list(log.unread_files) or ["no line of NCCL's is here"]
    return [*incomplete_files(log), *_missing(log), *_unknown(log), *_unconnected(log, counts)]


def incomplete_files(log: Log) -> list[str]:
    """Files of which all or a part is not here, one sentence each."""
    return [*log.unread_files, *_truncated_files(log), *_over_budget(log), *_silent_ranks(log)]


def _truncated_files(log: Log) -> list[str]:
    """Files whose end is missing."""
    if not log.truncated:
        return []
    verb, plural = ("is", "") if len(log.truncated) == 1 else ("are", "s")
    return [
        f"{join_names(log.truncated)} {verb} cut off, in the middle of a line: whether the "
        f"job came further is not here; give the whole file{plural}"
    ]


def _over_budget(log: Log) -> list[str]:
    """What was not kept."""
    if not log.budget.full:
        return []
    return [
        "the log is larger than any job that is known: it names more ranks, hosts, communicators "
        f"and connections than a job of {MAX_RANKS} ranks has, and what came after is left out"
    ]


def _missing(log: Log) -> list[str]:
    """Ranks and hosts whose lines are not here, and processes that do not belong together."""
    partial = [comm for comm in log.communicators.values() if len(comm.members) < comm.size]
    size = log.world_size
    present = len({rank.number for rank in log.job_ranks if rank.size == size})
    if partial or present < size:
        worst = min(partial, key=lambda comm: len(comm.members) / comm.size, default=None)
        have, want = (len(worst.members), worst.size) if worst else (present, size)
        dedup = "Ray's driver left out repeated lines: set RAY_DEDUP_LOGS=0, or better "
        return [
            f"lines of {have} of {want} ranks are here: {dedup if log.repeated else ''}"
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


def _silent_ranks(log: Log) -> list[str]:
    """Ranks whose lines about their connections are missing."""
    if not log.silent_ranks:
        return []
    return [
        f"others are connected to {rank_names(log.silent_ranks)}, whose own lines end before that: "
        "the end of that log is missing"
    ]


def _unknown(log: Log) -> list[str]:
    """Networks and warnings that nobody here can vouch for."""
    messages = []
    if log.edge_counts["other"]:
        messages.append(f"nobody here vouches for the network {join_names(log.other_networks)}")
    if hits := log.hits["unknown"]:
        first = f"{hits[0].line}: {hits[0].detail}"
        messages.append(f"{len(hits)} warnings of NCCL's are not known here, the first at {first}")
    return messages


def _unconnected(log: Log, counts: dict[str, int]) -> list[str]:
    """Ranks that are not seen to be connected."""
    if log.single_host:
        if counts["intra"] or log.world_size <= 1 or log.stage == "complete":
            return []
        return ["no connection between ranks is shown: run one collective with NCCL_DEBUG=INFO"]
    if counts["rdma"] or counts["tcp"] or log.edge_counts["other"]:
        return []
    return [
        "no connection between hosts is shown: since NCCL 2.22 ranks connect at their first "
        "collective, so run one, large enough to use the network"
    ]


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        one_line(text), width, initial_indent=indent, subsequent_indent="  ", break_long_words=False
    )
