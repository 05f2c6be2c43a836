"""Judges an NCCL log and reports the result: as text, as JSON, and as an exit code."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from probes.findings import join_names
from probes.nccl import calls, detect_init, detect_transport
from probes.nccl.calls import Names, first_of_each, first_rows, rank_names
from probes.nccl.job import MAX_RANKS, STAGES, MatchedMessage
from probes.nccl.log import NO_RANK, Log
from probes.nccl.parser import read_logs
from probes.nccl.patterns import read_kinds, say
from probes.nccl.rows import Reported
from reports.numbers import quantity
from reports.record import Finding
from reports.sanitize import one_line

MAX_NOTES = 3  # texts of one kind that are notes
MAX_UNREAD = 20  # files that are named, or quoted: more would hide the rest
SCHEMA = 1  # of to_json: increased when a key is renamed or removed
STARTS = ("INIT-", "NCCL-", "LAUNCH-")
# They follow from other findings, which come first.
SYMPTOMS = ("FAB-TCP", "FAB-MIXED", "INIT-SLOW")
# Reasons that only say that lines are missing: notes tell more.
VAGUE = ("the number of ranks ", "the log ", "this log ")
EXIT_ACCEPTED, EXIT_WRONG, EXIT_UNPROVEN = 0, 1, 20


@dataclass(frozen=True)
class NcclReport:
    """Result for one log.

    `transport` is rdma, tcp, mixed, intra-node, unknown or none. `edges` counts connections between
    pairs of ranks by kind. `gdr` is None if no RDMA edge was seen. `unproven` has a sentence for
    each thing that the log cannot show, and `notes` one for each fact that is no fault.
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
    notes: list[str]
    size_known: bool = True  # a line gives the number of ranks: otherwise `ranks` are the least
    stages_sends: bool = False  # some host receives with GPUDirect, and sends without

    @property
    def exit_code(self) -> int:
        """Exit code: 0 RDMA or one host, with nothing found; 1 something is wrong; 20 unproven."""
        # An unknown network is not wrong: it only proves nothing.
        if any(finding.code != "FAB-UNKNOWN-NET" for finding in self.findings):
            return EXIT_WRONG
        return EXIT_UNPROVEN if self.unproven else EXIT_ACCEPTED

    def to_json(self) -> dict[str, Any]:
        """Return plain data; the keys are stable within schema 1."""
        keys = {"code", "statement", "suspects", "remedy", "evidence"}
        findings = [finding.model_dump(include=keys) for finding in self.findings]
        return {"schema": SCHEMA, **vars(self), "findings": findings}

    def text(self, width: int = 80) -> str:
        """Format the findings with remedy and place, causes first; then the facts and the rest.

        Without a finding, the first reason why nothing is proven comes first.
        """
        known = self.ranks or self.findings or self.nccl or self.notes
        if not known:  # nothing of NCCL's: only that is certain
            return "\n".join(line for one in self.unproven for line in _wrap(one, width))
        lines: list[str] = []
        for finding in sorted(self.findings, key=lambda one: one.code in SYMPTOMS):
            suspects = f" [{', '.join(finding.suspects)}]" if finding.suspects else ""
            lines += _wrap(f"{finding.code}{suspects}: {finding.statement}", width)
            lines += _wrap(f"remedy: {finding.remedy}", width, "  ")
            lines += [*(f"  {one_line(line)}" for line in finding.evidence), ""]
        notes = [f"note: {one}" for one in self.notes]
        rest = [f"not proven: {one}" for one in self.unproven]
        if not self.findings:
            lead = notes if notes and self.unproven and self.unproven[0].startswith(VAGUE) else rest
            lines += [*_wrap(lead.pop(0) if lead else "no fault found", width), ""]
        ends = (line for one in (*notes, *rest) for line in ("", *_wrap(one, width)))
        return "\n".join([*lines, *self._list_facts(), *ends])

    def _list_facts(self) -> list[str]:
        """List what is certain of the job as a table."""
        least = "" if self.size_known else "at least "
        hosts = quantity(self.hosts, "hosts") if self.hosts else "host not named"
        shown = f"{least}{quantity(self.ranks, 'ranks')}, {hosts}" if self.ranks else "none named"
        edges = ", ".join(f"{number} {kind}" for kind, number in self.edges.items() if number)
        gdr = {True: ", GPUDirect RDMA", False: ", without GPUDirect RDMA", None: ""}[self.gdr]
        return [
            f"transport  {self.transport}{gdr}",
            f"networks   {one_line(', '.join(self.networks)) or 'none named'}",
            f"links      {edges.replace('intra', 'inside a host') or 'none'}",
            f"ranks      {shown}, NCCL {self.nccl or 'unknown'}",
            f"stage      {self.stage if self.stage != STAGES[0] else 'not shown'}",
        ]


def analyse_files(paths: Iterable[Path], skipped: Names = (), whole: bool = False) -> NcclReport:
    """Analyse the log files of one job; `skipped` has a sentence for each thing not read.

    `whole`: they hold all that every rank wrote, so that a line that is missing was never written.
    """
    log = read_logs(paths, skipped)
    log.every_rank = whole
    return judge_log(log)


def judge_log(log: Log) -> NcclReport:
    """Judge a log that has been read."""
    between = detect_transport.DETECTORS if log.crosses_hosts and not log.single_host else ()
    detectors = (*detect_init.DETECTORS, detect_transport.isolated_hosts, *between)
    ended = list(calls.reported_causes(log, ends=True))
    findings = [*ended, *(finding for detect in detectors for finding in detect(log))]
    codes = [finding.code for finding in findings if finding.code != "INIT-SLOW"]
    explained = bool(ended) or any(code.startswith((*STARTS, "FAB-MIXED")) for code in codes)
    if not explained:
        plugin = () if {"FAB-PLUGIN", "FAB-NO-EFA"} & {*codes} else (calls.plugin_errors,)
        # Where all ranks waited until the job gave up, no rank failed to join.
        waited = (detect_init.find_hang,) if detect_init.gave_up(log) else ()
        explain = (
            calls.reported_causes, calls.other_errors, *plugin, *waited, calls.torch_errors,
            calls.reported_follow_ups, detect_init.find_hang,
        )  # fmt: skip
        findings += next(filter(None, (list(detect(log)) for detect in explain)), [])
    counts = dict(log.host_edges.counts)
    if log.single_host:  # with P2P and shared memory off, one host's ranks connect over the network
        counts = {"rdma": 0, "tcp": 0, "intra": sum(counts.values()), "other": 0}
    seen_hosts = {writer.host for writer in log.seen} - {""}
    ranks = max(log.world_size or max(log.shown, len(log.job_ranks)), log.apart)
    unproven = list(_list_unproven(log, counts, findings))
    notes = list(_list_notes(log, findings, explained))
    return NcclReport(
        transport=_name_transport(counts, log),
        networks=sorted({name for host in log.hosts.values() for name in host.networks}),
        gdr=False not in log.gdr if log.gdr and counts["rdma"] else None,
        edges=counts,
        hosts=max(len(log.host_names), len(log.test_hosts), len(seen_hosts), log.nodes),
        ranks=ranks,
        size_known=ranks == log.world_size > 0,
        nccl=max(log.versions, key=lambda version: len(log.versions[version]), default="")
        or log.others.version,
        stage=log.stage,
        findings=findings,
        unproven=unproven,
        notes=[*notes, *_list_untold(log, findings, [*notes, *unproven])],
        stages_sends=any(host.staged_send for host in log.hosts.values()),
    )


def _list_notes(log: Log, findings: list[Finding], explained: bool) -> Iterator[str]:
    """List facts that are no fault, and what follows from the errors that were found."""
    for kind, phrase in read_kinds().items():
        for hit in first_of_each(log.hits[kind])[: MAX_NOTES if phrase.note else 0]:
            yield f"{hit.line}: {phrase.note.format(hit.detail)}"
    for one in first_rows(log.reported("note")):
        yield f"{one.line}: {one.sentence}"
    if is_foreign(log):
        yield from _shorten(log.unread_files)
    if log.ranks and not (findings or any(rank.stuck for rank in log.job_ranks)):
        yield from _list_exceptions(log)
    if log.others.listed_twice:
        number, *hosts = log.others.listed_twice
        yield say("two_jobs", number=number, hosts=join_names(hosts))
    yield from detect_transport.no_gdr_notes(log)
    yield from detect_transport.slow_path_notes(log)
    if "FAB-ENV-DISABLED" not in {finding.code for finding in findings}:
        yield from detect_transport.disabled_notes(log)
    others, quoted = calls.fatal(log, "cause", "follow-up"), _quoted(findings)
    hits: list[MatchedMessage | Reported] = [m for kind in calls.FOLLOW_UPS for m in log.hits[kind]]
    hits += [one for one in others if one.line not in quoted]
    if hits and explained:
        yield f"these errors follow from the finding above: {_first_of(hits)}"


def _list_exceptions(log: Log) -> Iterator[str]:
    """Quote exceptions of the program in files that have lines of NCCL, or tell of it."""
    names = dict.fromkeys(file.name for file in log.files if not file.is_foreign)
    yield from islice(filter(None, map(log.others.describe_exceptions, names)), MAX_UNREAD)


def _quoted(findings: list[Finding]) -> set[str]:
    """List the places that findings have."""
    return {line for finding in findings for line in finding.evidence}


def _first_of(hits: Sequence[MatchedMessage | Reported]) -> str:
    """Quote the first of some lines, and count the others."""
    more = f", and {len(hits) - 1} more" if len(hits) > 1 else ""
    return f"{hits[0].line}: {hits[0].detail}{more}"


def _list_untold(log: Log, findings: list[Finding], sentences: list[str]) -> Iterator[str]:
    """List the first warning of each kind that no finding and no sentence has."""
    quoted, text = _quoted(findings), "\n".join(sentences)
    for hits in log.hits.values():
        warned = [hit for hit in hits if hit.warned]
        if warned and not any(hit.line in quoted or f"{hit.line}: " in text for hit in hits):
            yield _first_of(warned)


def _name_transport(counts: dict[str, int], log: Log) -> str:
    if carried := [kind for kind in ("rdma", "tcp") if counts[kind]]:
        return carried[0] if len(carried) == 1 else "mixed"
    if max(len(log.host_names), log.nodes) > 1 and not log.single_host:
        return "unknown" if counts["other"] else "none"  # or what connects the hosts is not here
    intra = counts["intra"] or (log.single_host and log.stage == "complete" and log.world_size > 0)
    return "unknown" if counts["other"] else "intra-node" if intra else "none"


def _list_unproven(log: Log, counts: dict[str, int], findings: list[Finding]) -> Iterator[str]:
    """List the reasons why this log does not prove everything, one sentence each."""
    found = log.reported("doubt", "doubt" if log.ranks else "other")
    found += calls.fatal(log, "cause", "follow-up", passed=True)
    doubts = [f"{one.line}: {one.sentence}" for one in first_rows(found)]
    for one in first_rows(calls.perhaps_caught(log)):
        doubts.append(f"{one.line}: {one.sentence}, and no line says whether the job went on")
    if not is_foreign(log):
        yield from _shorten(log.unread_files)
    if not log.ranks:
        doubts += [] if findings else _list_exceptions(log)
        yield from doubts
        if not (log.unread_files or doubts or findings):
            yield say("only_calls" if any(file.count for file in log.files) else "no_line")
        return
    codes = {one.code for one in findings}
    yield from _incomplete(log, silent="INIT-HANG" not in codes)  # which tells of silent ranks
    explained = any(code.startswith(STARTS) for code in codes)  # why the job stopped
    stuck = any(rank.stuck for rank in log.job_ranks)
    ends = [*_list_exceptions(log)] if stuck and not explained else []
    yield from (*ends, *doubts)
    yield from _unknown(log, findings)
    yield from _missing(log)
    yield from detect_transport.staged_sends(log)
    why = detect_init.why_no_hang(log) or detect_init.ends_early(log)
    if why and stuck and not (log.partial or explained or ends):
        yield say("no_hang", why=why, collect=detect_init.what_to_collect(log))
    if not explained:
        yield from _unconnected(log, counts)


def incomplete_files(log: Log) -> list[str]:
    """List files that are missing, completely or in part, one sentence each."""
    return [*_shorten(log.unread_files), *_incomplete(log)]


def is_foreign(log: Log) -> bool:
    """Return whether the files that were not read are no logs: the others have the whole job."""
    return log.is_complete and not log.read_failed


def _incomplete(log: Log, *, silent: bool = True) -> Iterator[str]:
    if overlong := join_names(file.name for file in log.files if file.overlong):
        yield say("overlong", files=overlong)
    if truncated := [file.name for file in log.files if file.truncated and file.count]:
        verb, files = ("is", "file") if len(truncated) == 1 else ("are", "files")
        yield say("truncated", names=join_names(truncated), verb=verb, files=files)
    if log.full:
        yield say("full", size=MAX_RANKS)
    if silent and log.host_edges.silent_ranks:
        yield say("silent", ranks=rank_names(log.host_edges.silent_ranks))


def _shorten(sentences: list[str]) -> list[str]:
    """Return the first sentences, and how many more there are."""
    more = len(sentences) - MAX_UNREAD
    last = f"{quantity(more, 'more files')} not read, or without a line of NCCL"
    return [*sentences[:MAX_UNREAD], *([last] if more > 0 else [])]


def _missing(log: Log) -> Iterator[str]:
    """Say which ranks or hosts have no lines, or that processes do not belong together."""
    partial = [comm for comm in log.communicators.values() if len(comm.members) < comm.size]
    have, want = len(log.numbers), log.world_size
    have = have or len({rank.writer for rank in log.ranks.values() if rank.writer.host})
    if partial or have < want:
        if partial:
            worst = min(partial, key=lambda comm: len(comm.members) / comm.size)
            have, want = len(worst.members), worst.size
        what = f"has lines of {max(have, log.shown)}"
        if have < log.shown >= want or not (have or log.shown):
            what = "does not show the rank number of each"
        dedup = say("dedup") if log.repeated else ""
        apart = say("other_files" if detect_init.has_file_each(log) else "apart")
        yield f"the log {what} of {want} ranks: {dedup}{apart}"
    elif not want:
        begins = any(rank.has_beginning for rank in log.ranks.values())
        why = "no line gives it" if begins else "the beginning of the log is missing. Give it too"
        yield f"the number of ranks is unknown: {why}"
    elif log.nodes > len(log.host_names) > 0:
        yield say("nodes", nodes=log.nodes, names=len(log.host_names))
    elif len(log.jobs) > 1:
        yield say("groups", count=len(log.jobs))


def _unknown(log: Log, findings: list[Finding]) -> Iterator[str]:
    """List networks and warnings that are not known here, and that no finding quotes."""
    if log.host_edges.counts["other"]:
        yield say("unknown_network", names=join_names(log.other_networks))
    quoted = _quoted(findings)
    for kind, problem in calls.uncertain_kinds().items():
        if hits := [hit for hit in log.hits[kind] if hit.line not in quoted]:
            yield f"{problem}, and no line says whether NCCL went on: {_first_of(hits)}"


def _unconnected(log: Log, counts: dict[str, int]) -> Iterator[str]:
    """Report ranks without a visible connection."""
    one_host = log.single_host or not log.crosses_hosts
    done = log.single_host and (log.world_size <= 1 or log.stage == "complete")
    if log.external_edges or done or (one_host and counts["intra"]):
        return
    none, later = "the log shows no connection between", ""
    started = any(rank.initialised for rank in log.ranks.values())
    warned = any(map(log.hits.get, calls.uncertain_kinds()))
    if started and log.connects_at_runtime(NO_RANK) and not warned:
        later = say("at_runtime")
    one = ": run one collective" if log.single_host else ""
    yield f"{none} ranks{one}" if one_host else f"{none} hosts{later}"


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    wrapper = textwrap.TextWrapper(width, indent, "  ", break_long_words=False)
    wrapper.break_on_hyphens = False
    return wrapper.wrap(one_line(text))
