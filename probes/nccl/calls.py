"""Finds calls of NCCL that failed where no other finding says why: findings NCCL-ERROR."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from probes.findings import join_names
from probes.nccl import evidence
from probes.nccl.job import MatchedMessage
from probes.nccl.log import Log
from probes.nccl.patterns import read_phrases
from probes.nccl.rows import Reported
from probes.nccl.torch_calls import compare_calls
from probes.toml_tables import ClosedTable, fill_shared, read_tables, validate
from reports.record import Finding

FILE = Path(__file__).with_name("remedies.toml")
ANY_TEXT = re.compile("")


class ErrorCause(ClosedTable):
    """Cause of an error by the `pattern` of its text; the default `remedy` is the catalogue's."""

    pattern: re.Pattern[str] = ANY_TEXT
    reason: str
    remedy: str = ""


def _check_last(causes: list[ErrorCause]) -> list[ErrorCause]:
    if not causes or causes[-1].pattern != ANY_TEXT:
        raise ValueError("expected a last cause without a pattern, for any text")
    return causes


ErrorCauses = Annotated[list[ErrorCause], AfterValidator(_check_last)]


class Causes(ClosedTable):
    """Causes of each event, in the order in which they are searched."""

    qp_setup: ErrorCauses
    qp_break: ErrorCauses
    connect: ErrorCauses


class Remedies(ClosedTable):
    """The file: `texts` by name, `errors` by the kind of their phrase, `phases` by that of a start.

    `results` has the meanings of ncclResult_t.
    """

    shared: dict[str, str]
    texts: dict[str, str]
    errors: dict[str, str]
    results: dict[str, str]
    phases: dict[str, str]
    causes: Causes


@cache
def read_remedies() -> Remedies:
    """Read the file, once.  Raises TableError."""
    tables = read_tables(FILE)
    shared = validate(Remedies, tables, str(FILE)).shared
    return validate(Remedies, fill_shared(tables, shared), str(FILE))


def find_cause(causes: list[ErrorCause], text: str) -> ErrorCause:
    """Find the first cause whose pattern is in the text; the last cause matches any text."""
    return next(cause for cause in causes if cause.pattern.search(text))


FOLLOW_UPS = ("peer-closed", "proxy-failed")
UNKNOWN = "NCCL reports an error that seatrial does not know"
LATE = re.compile(r"(?:enqueue|proxy)\.c")  # calls that fail in a job that has started
FREEING = re.compile(r"(?:src/)?(?:allocator|init)\.cc |include/alloc\.h ")
RESULT = re.compile(r" -> (\d)")
MAX_FRAMES = 100  # lines between two frames of one trace, of which other ranks write some
ENDLESS = "timeout", "work"  # roles of calls that did not end: these show no failed one


def uncertain_kinds() -> dict[str, str]:
    """Map kinds to their problem, if a call of NCCL failed after it: otherwise NCCL went on."""
    found = {one.kind: one.problem for one in read_phrases() if one.problem and not one.code}
    return found | {"unknown": UNKNOWN}


def other_errors(log: Log) -> list[Finding]:
    """Find errors whose text is not known here, or that only follow from another rank's.

    A warning of a rank that is done, in a job without a failed call, is none.  Nor is the failed
    call of a rank that is done, unless it is a collective, or the thread that sends.
    """
    traces = [m for m in log.hits["trace"] if log.joined(m.rank).stuck or LATE.search(m.detail)]
    raised = log.reported("report")
    if traces or raised or any(log.hits[kind] for kind in FOLLOW_UPS):
        for kind, problem in uncertain_kinds().items():
            if hits := log.hits[kind]:
                remedy = read_remedies().errors.get(kind, "")
                return evidence.message_findings(
                    "NCCL-ERROR", problem, hits, quote=True, remedy=remedy
                )
    if hits := log.hits["last-error"]:
        return evidence.message_findings("NCCL-ERROR", UNKNOWN, hits, quote=True)
    if hits := [m for kind in FOLLOW_UPS for m in log.hits[kind]]:
        return _follow_up(log, hits)
    if hits := _silent_connections(log):
        problem = "a TCP connection failed at the start of NCCL, and no line names its peer"
        return evidence.message_findings("INIT-BOOTSTRAP", problem, hits, quote=True)
    return _unexplained(log, traces)


def _follow_up(log: Log, hits: list[MatchedMessage]) -> list[Finding]:
    """Report an error that began at another rank, or on the way to it."""
    peers, hosts = evidence.named_peers(log, hits), evidence.hosts_of(hits)
    peer = join_names(peers) or "another rank"
    if log.hits["peer-closed"]:
        what = f"the connection to {peer} broke: the error began at this peer, or in the network"
    else:
        where = f"at {peer}" if peers else "earlier, on this host or at another rank"
        what = f"a thread of NCCL failed: the error began {where}"
    message = f"{join_names(hosts) or 'the job'}: {what} ({hits[0].detail})"
    reports = log.reported("report", *ENDLESS)
    message += f"; the job reports: {reports[0].text}" if reports else ""
    remedy = read_remedies().texts["follow_up"]
    return evidence.one_finding(
        "NCCL-ERROR", message, peers or hosts, evidence.first_lines(hits), remedy
    )


def _silent_connections(log: Log) -> list[MatchedMessage]:
    """List failed calls of TCP sockets that ended the start of their process.

    Result 3 is none: sockets end with it where NCCL aborts because of another error.
    """
    starts = {
        m.rank.writer[:2]
        for m in log.hits["trace"]
        if "bootstrap.c" in m.detail and log.joined(m.rank).stuck
    }
    return [m for m in log.hits["socket-trace"] if m.rank.writer[:2] in starts]


def _unexplained(log: Log, traces: list[MatchedMessage]) -> list[Finding]:
    """Report a failed call by its result, and by the innermost frame of its trace."""
    if not traces:
        return []
    first = _innermost(log, traces[0])
    result = RESULT.search(first.detail)
    kind = read_remedies().results.get(result[1] if result else "", "unknown result")
    hits = list(dict.fromkeys([first, *traces]))
    problem = f"a call of NCCL failed ({kind}), and no line says why"
    remedy = read_remedies().texts["trace"]
    return evidence.message_findings("NCCL-ERROR", problem, hits, quote=True, remedy=remedy)


def _innermost(log: Log, trace: MatchedMessage) -> MatchedMessage:
    """Find the first frame of a trace: the lines of one rank before it that have its result."""
    result = RESULT.search(trace.detail)
    inner = trace
    for hit in reversed(log.hits["inner-trace"]):
        near = 0 < _line_number(inner) - _line_number(hit) < MAX_FRAMES
        found = RESULT.search(hit.detail)
        if hit.rank is trace.rank and near and found and result and found[1] == result[1]:
            inner = hit
    return inner


def is_at_end(log: Log, hit: MatchedMessage) -> bool:
    """Return whether a call failed while NCCL freed a communicator, whose next line says so."""
    return bool(FREEING.match(hit.detail)) and any(
        one.rank.writer[:2] == hit.rank.writer[:2]
        and 0 < _line_number(one) - _line_number(hit) < MAX_FRAMES
        for one in log.hits["reclaim"]
    )


def _line_number(hit: MatchedMessage) -> int:
    return int(hit.line.rpartition(":")[2])


def plugin_errors(log: Log) -> list[Finding]:
    """Find errors of a network plugin that no finding about the network tells."""
    hits = [
        m for kind in ("plugin-failed", "efa") for m in log.hits[kind] if "Couldn't" in m.detail
    ]
    problem, remedy = "a network plugin failed", read_remedies().texts["plugin"]
    return evidence.message_findings("NCCL-ERROR", problem, hits, quote=True, remedy=remedy)


def torch_errors(log: Log) -> list[Finding]:
    """Report torch's errors about NCCL, what nccl-tests says of one, and the ranks they name."""
    reports = log.reported("report", *ENDLESS)
    if not reports:
        return []
    behind = [one for one in reports if one.groups.get("behind")]
    shown = [*behind, *reports]
    message = f"the job reports: {join_names(dict.fromkeys(one.text for one in shown))}"
    if hits := log.hits["last-error"]:
        message += f" (last error: {hits[0].detail})"
    numbers = re.findall(r"\d+", " ".join(one.groups["behind"] for one in behind))
    suspects = [f"rank {number}" for number in dict.fromkeys(numbers)]
    errors, texts = read_remedies().errors, read_remedies().texts
    advised = [one.row.advice or errors.get(one.row.kind, "") for one in reports]
    remedy = next(filter(None, advised), "")
    if compared := compare_calls(log.reported("work"), log.world_size):
        message = f"{compared.statement}; {message}"
        suspects = suspects or compared.suspects
        remedy = remedy or texts[compared.advice]
    if any(one.row.role in ENDLESS for one in reports):
        remedy = texts["desync"] if numbers else remedy or texts["timeout"]
    lines = [one.line for one in shown]
    return evidence.one_finding("NCCL-ERROR", message, suspects, lines, remedy)


def reported_causes(log: Log) -> list[Finding]:
    """Find what a line of another program explains by itself: one finding of each row."""
    return _reported_errors(log, "cause")


def reported_follow_ups(log: Log) -> list[Finding]:
    """Report an error that another program saw, and that began elsewhere."""
    return _reported_errors(log, "follow-up")[:1]


def _reported_errors(log: Log, role: str) -> list[Finding]:
    findings, found = [], fatal(log, role)
    for first in evidence.first_rows(found):
        alike = [one for one in found if one.row is first.row]
        ranks = dict.fromkeys(f"rank {one.rank}" for one in alike if one.rank)
        places = (one.groups.get("node" if role == "cause" else "peer") for one in alike)
        named = dict.fromkeys(filter(None, places))
        suspects = ranks or named if role == "cause" else named
        who = f"{join_names(ranks) or 'the job'}: " if role == "cause" else ""
        message = f"{who}{first.sentence} ({first.text})"
        remedy = first.fill(first.row.advice) or read_remedies().texts["follow_up"]
        lines = [one.line for one in alike]
        findings += evidence.one_finding(first.row.code, message, suspects, lines, remedy)
    return findings


def fatal(log: Log, *roles: str, passed: bool = False) -> list[Reported]:
    """List reports of these roles: without, or only, those of a store that the job passed since."""
    started = any(rank.initialised for rank in log.ranks.values())
    return [o for o in log.reported(*roles) if (started and o.row.source == "c10d") == passed]
