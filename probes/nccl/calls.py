"""Finds calls of NCCL that failed where no other finding says why: findings NCCL-ERROR."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from probes.findings import join_names
from probes.nccl import evidence
from probes.nccl.evidence import message_findings, one_finding
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


def other_errors(log: Log) -> Iterator[Finding]:
    """Find errors whose text is not known here, or that only follow from another rank's.

    A warning of a rank that is done, in a job without a failed call, is none.  Nor is the failed
    call of a rank that is done, unless it is a collective, or the thread that sends.
    """
    traces = [m for m in log.hits["trace"] if log.joined(m.rank).stuck or LATE.search(m.detail)]
    follow_ups = [m for kind in FOLLOW_UPS for m in log.hits[kind]]
    if traces or log.reported("report") or follow_ups:
        for kind, problem in uncertain_kinds().items():
            if hits := log.hits[kind]:
                remedy = read_remedies().errors.get(kind, "")
                return message_findings("NCCL-ERROR", problem, hits, remedy)
    if hits := log.hits["last-error"]:
        return message_findings("NCCL-ERROR", UNKNOWN, hits)
    if follow_ups:
        return _follow_up(log, follow_ups)
    if hits := _silent_connections(log):
        problem = "a TCP connection failed at the start of NCCL, and no line names its peer"
        return message_findings("INIT-BOOTSTRAP", problem, hits)
    return _unexplained(log, traces)


def _follow_up(log: Log, hits: list[MatchedMessage]) -> Iterator[Finding]:
    """Report an error that began at another rank, or on the way to it."""
    peers, hosts = evidence.named_peers(log, hits), evidence.hosts_of(hits)
    peer = join_names(peers)
    if log.hits["peer-closed"]:
        where = f"the connection to {peer or 'another rank'} broke: the error began at this peer, "
        what = f"{where}or in the network"
    else:
        where = f"at {peer}" if peers else "earlier, on this host or at another rank"
        what = f"a thread of NCCL failed: the error began {where}"
    message = evidence.name_hosts(hosts, f"{what} ({hits[0].detail})")
    for one in log.reported("report", *ENDLESS)[:1]:
        message += f"; the job reports: {one.text}"
    remedy = read_remedies().texts["follow_up"]
    lines = evidence.first_lines(hits)
    yield one_finding("NCCL-ERROR", message, peers or hosts, lines, remedy)


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


def _unexplained(log: Log, traces: list[MatchedMessage]) -> Iterator[Finding]:
    """Report a failed call by its result, and by the innermost frame of its trace."""
    first = [_innermost(log, trace) for trace in traces[:1]]
    results = [found[1] for one in first if (found := RESULT.search(one.detail))]
    kind = read_remedies().results.get("".join(results), "unknown result")
    hits = list(dict.fromkeys([*first, *traces]))
    problem = f"a call of NCCL failed ({kind}), and no line says why"
    return message_findings("NCCL-ERROR", problem, hits, read_remedies().texts["trace"])


def _innermost(log: Log, trace: MatchedMessage) -> MatchedMessage:
    """Find the first frame of a trace: the lines of one rank before it that have its result."""
    result, inner = RESULT.findall(trace.detail)[:1], trace
    for hit in reversed(log.hits["inner-trace"]):
        same = hit.rank is trace.rank and RESULT.findall(hit.detail)[:1] == result != []
        if same and _is_near(hit, inner):
            inner = hit
    return inner


def is_at_end(log: Log, hit: MatchedMessage) -> bool:
    """Return whether a call failed while NCCL freed a communicator, whose next line says so."""
    return bool(FREEING.match(hit.detail)) and any(
        one.rank.writer[:2] == hit.rank.writer[:2] and _is_near(hit, one)
        for one in log.hits["reclaim"]
    )


def _is_near(hit: MatchedMessage, later: MatchedMessage) -> bool:
    first, last = (int(one.line.rpartition(":")[2]) for one in (hit, later))
    return first < last < first + MAX_FRAMES


def plugin_errors(log: Log) -> Iterator[Finding]:
    """Find errors of a network plugin that no finding about the network tells."""
    found = [*log.hits["plugin-failed"], *log.hits["efa"]]
    hits = [hit for hit in found if "Couldn't" in hit.detail]
    remedy = read_remedies().texts["plugin"]
    return message_findings("NCCL-ERROR", "a network plugin failed", hits, remedy)


def torch_errors(log: Log) -> Iterator[Finding]:
    """Report torch's errors about NCCL, what nccl-tests says of one, and the ranks they name."""
    reports = log.reported("report", *ENDLESS)
    if not reports:
        return
    behind = [one for one in reports if one.groups.get("behind")]
    shown = [*behind, *reports]
    message = f"the job reports: {join_names(dict.fromkeys(one.text for one in shown))}"
    for hit in log.hits["last-error"][:1]:
        message += f" (last error: {hit.detail})"
    numbers = re.findall(r"\d+", " ".join(one.groups["behind"] for one in behind))
    suspects = [f"rank {number}" for number in dict.fromkeys(numbers)]
    errors, texts = read_remedies().errors, read_remedies().texts
    advised = (one.row.advice or errors.get(one.row.kind, "") for one in reports)
    remedy = next(filter(None, advised), "")
    if compared := compare_calls(log.reported("work"), log.world_size):
        message = f"{compared.statement}; {message}"
        suspects = suspects or compared.suspects
        remedy = remedy or texts[compared.advice]
    if any(one.row.role in ENDLESS for one in reports):
        remedy = texts["desync"] if numbers else remedy or texts["timeout"]
    yield one_finding("NCCL-ERROR", message, suspects, (one.line for one in shown), remedy)


def reported_causes(log: Log) -> Iterator[Finding]:
    """Find what a line of another program explains by itself: one finding of each row."""
    found = fatal(log, "cause")
    for first in evidence.first_rows(found):
        alike = [one for one in found if one.row is first.row]
        ranks = dict.fromkeys(f"rank {one.rank}" for one in alike if one.rank)
        places = dict.fromkeys(node for one in alike if (node := one.groups.get("node")))
        message = evidence.name_hosts(ranks, f"{first.sentence} ({first.text})")
        yield _row_finding(alike, message, ranks or places)


def reported_follow_ups(log: Log) -> Iterator[Finding]:
    """Report an error that another program saw, and that began elsewhere."""
    found = fatal(log, "follow-up")
    for first in found[:1]:
        alike = [one for one in found if one.row is first.row]
        peers = dict.fromkeys(peer for one in alike if (peer := one.groups.get("peer")))
        yield _row_finding(alike, f"{first.sentence} ({first.text})", peers)


def _row_finding(alike: list[Reported], message: str, suspects: Iterable[str]) -> Finding:
    row = alike[0].row
    remedy = alike[0].fill(row.advice) or read_remedies().texts["follow_up"]
    return one_finding(row.code, message, suspects, (one.line for one in alike), remedy)


def fatal(log: Log, *roles: str, passed: bool = False) -> list[Reported]:
    """List reports of these roles: without, or only, those of a store that the job passed since."""
    started = any(rank.initialised for rank in log.ranks.values())
    return [o for o in log.reported(*roles) if (started and o.row.source == "c10d") == passed]
