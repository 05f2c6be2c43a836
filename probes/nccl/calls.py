"""Finds calls of NCCL that failed where no other finding says why: findings NCCL-ERROR.

Of a torch job it compares the calls in which the ranks waited: who is behind, who called what. A
watchdog's line has the rank within its process group. Newer versions name the group in the next
line, and torch's logger puts the rank of the job before both. Calls are numbered per process group,
and sends and receives apart from collectives.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from probes.findings import MAX_NAMES, finding, join_names
from probes.nccl.job import MatchedMessage, Rank
from probes.nccl.log import Log
from probes.nccl.patterns import TEXT, ErrorCause, read_kinds, read_phrases, read_remedies, say
from probes.nccl.rows import Reported
from reports.groups import group_pairs
from reports.record import Finding


def advise(kind: str) -> str:
    """Return the remedy of a kind of phrase; empty where that of its code fits."""
    return read_kinds()[kind].advice if kind in read_kinds() else ""


def find_cause(causes: list[ErrorCause], text: str) -> ErrorCause:
    """Find the first cause whose pattern is in the text; the last cause matches any text."""
    return next(cause for cause in causes if cause.pattern.search(text))


Names = Iterable[str]
MAX_LINES = 3  # places shown as evidence


def one_finding(
    code: str, text: str, suspects: Names = (), lines: Names = (), remedy: str = "", **names: str
) -> Finding:
    """Make a finding with the first suspects and places; `names` are those of placeholders."""
    first, places = [*suspects][:MAX_NAMES], [*lines][:MAX_LINES]
    return finding(code, text, first, evidence=places, remedy=remedy, names=names)


def name_hosts(hosts: Iterable[str], problem: str) -> str:
    """Return `hosts: problem`; hosts without a name are the job."""
    return f"{join_names(hosts) or 'the job'}: {problem}"


def message_findings(
    code: str, problem: str, hits: list[MatchedMessage], remedy: str = "", *, quote: bool = True
) -> Iterator[Finding]:
    """Make one finding of all messages, if any: `hosts: problem`, with `quote` the first text."""
    if hits:
        message = name_hits(hits, f"{problem} ({hits[0].detail})" if quote else problem)
        yield one_finding(code, message, hosts_of(hits), places_of(hits), remedy)


def hosts_of(hits: Iterable[MatchedMessage]) -> list[str]:
    """List the hosts that wrote the messages, each once; where none is named, rank or process."""
    return list(dict.fromkeys(name for m in hits if (name := m.host.name or m.place.name)))


def name_hits(hits: Sequence[MatchedMessage], problem: str) -> str:
    """Return `hosts (ranks): problem`, with the ranks that launchers name before the lines."""
    ranks = join_names(dict.fromkeys(m.place.who for m in hits if m.host.name and m.place.who))
    names = join_names(hosts_of(hits)) + (f" ({ranks})" if ranks else "")
    return name_hosts(filter(None, [names]), problem)


def first_of_each(hits: Iterable[MatchedMessage]) -> list[MatchedMessage]:
    """List the first message of each text."""
    return list({hit.detail: hit for hit in reversed([*hits])}.values())[::-1]


def first_rows(reports: Iterable[Reported]) -> list[Reported]:
    """List the first report of each row."""
    return list({one.row.example: one for one in reversed([*reports])}.values())[::-1]


def places_of(hits: Iterable[MatchedMessage | Reported]) -> list[str]:
    """List `file:line` of the messages."""
    return [one.line for one in hits]


def rank_names(ranks: list[Rank]) -> str:
    """Name ranks with their hosts, in order of rank."""
    return join_names(rank.name for rank in sorted(ranks, key=lambda rank: rank.number))


def number_ranks(numbers: Collection[int]) -> str:
    """Name ranks by their numbers: `rank 3`, `ranks 2, 3`."""
    return f"rank{'s' if len(numbers) > 1 else ''} {join_names(map(str, numbers))}"


def named_peers(log: Log, hits: Iterable[MatchedMessage]) -> list[str]:
    """List the peers that the messages name, each once."""
    return [peer for peer in dict.fromkeys(_peer_host(log, m.detail) for m in hits) if peer]


def _peer_host(log: Log, text: str) -> str:
    """Find the host of the address that the text names; otherwise return the address or name."""
    match = TEXT["peer"].search(text)
    own = (name for name, host in log.hosts.items() if match and match[1] in host.addresses)
    return next(own, match[1]) if match else ""


FOLLOW_UPS = ("peer-closed", "proxy-failed")
SET_LEVEL = " (NCCL_DEBUG=WARN writes it)"  # in the advice of rows.toml
UNKNOWN = "NCCL reports an error that seatrial does not know"
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
    traces = [
        m for m in log.hits["trace"] if log.joined(m.rank).stuck or TEXT["late"].search(m.detail)
    ]
    follow_ups = [m for kind in FOLLOW_UPS for m in log.hits[kind]]
    if traces or log.reported("report") or follow_ups:
        for kind, problem in uncertain_kinds().items():
            if hits := log.hits[kind]:
                return message_findings("NCCL-ERROR", problem, hits, advise(kind))
    if hits := log.hits["last-error"]:
        return message_findings("NCCL-ERROR", UNKNOWN, hits)
    if follow_ups:
        return _follow_up(log, follow_ups)
    if hits := _silent_connections(log):
        return message_findings("INIT-BOOTSTRAP", say("silent_connection"), hits)
    return _unexplained(log, traces)


def _follow_up(log: Log, hits: list[MatchedMessage]) -> Iterator[Finding]:
    """Report an error that began at another rank, or on the way to it."""
    failed = {one.rank.process for one in log.hits["proxy-failed"]}
    if any(hit.rank.process in failed and _is_own_host(log, hit) for hit in hits):
        hits = log.hits["proxy-failed"]  # the peer may be a thread of the process itself
    peers, hosts = named_peers(log, hits), hosts_of(hits)
    texts = ("thread_failed", "thread_failed_at")
    if hits[0] in log.hits["peer-closed"]:
        texts = ("peer_broke", "peer_broke_at")
    what = say(texts[bool(peers)], peers=join_names(peers))
    message = name_hits(hits, f"{what} ({hits[0].detail})")
    for one in log.reported("report", *ENDLESS)[:1]:
        message += f"; the job reports: {one.detail}"
    yield one_finding("NCCL-ERROR", message, peers or hosts, places_of(hits), say("follow_up"))


def _is_own_host(log: Log, hit: MatchedMessage) -> bool:
    """Return whether the peer that a message names is on the host that wrote it."""
    peer, host = (text.partition(".")[0] for text in (_peer_host(log, hit.detail), hit.host.name))
    return peer == host != ""


def _silent_connections(log: Log) -> list[MatchedMessage]:
    """List failed calls of TCP sockets that ended the start of their process.

    Result 3 is none: sockets end with it where NCCL aborts because of another error.
    """
    failed = [hit for hit in log.hits["trace"] if "bootstrap.c" in hit.detail]
    starts = {hit.rank.process for hit in failed if log.joined(hit.rank).stuck}
    return [m for m in log.hits["socket-trace"] if m.rank.process in starts]


def _unexplained(log: Log, traces: list[MatchedMessage]) -> Iterator[Finding]:
    """Report a failed call by its result, and by the innermost frame of its trace."""
    first = [_innermost(log, trace) for trace in traces[:1]]
    results = [found[1] for one in first if (found := TEXT["result"].search(one.detail))]
    kind = read_remedies().results.get("".join(results), "unknown result")
    hits = list(dict.fromkeys([*first, *traces]))
    problem = f"a call of NCCL failed ({kind}), and no line says why"
    return message_findings("NCCL-ERROR", problem, hits, say("trace"))


def _innermost(log: Log, trace: MatchedMessage) -> MatchedMessage:
    """Find the first frame of a trace: the lines of one rank before it that have its result."""
    result, inner = TEXT["result"].findall(trace.detail)[:1], trace
    for hit in reversed(log.hits["inner-trace"]):
        same = hit.rank is trace.rank and TEXT["result"].findall(hit.detail)[:1] == result != []
        if same and _is_near(hit, inner):
            inner = hit
    return inner


def is_at_end(log: Log, hit: MatchedMessage) -> bool:
    """Return whether a call failed while NCCL freed a communicator, whose next line says so."""
    ends = [one for one in log.hits["reclaim"] if one.rank.process == hit.rank.process]
    return bool(TEXT["freeing"].match(hit.detail)) and any(_is_near(hit, one) for one in ends)


def _is_near(hit: MatchedMessage, later: MatchedMessage) -> bool:
    first, last = (int(one.line.rpartition(":")[2]) for one in (hit, later))
    return first < last < first + MAX_FRAMES


def plugin_errors(log: Log) -> Iterator[Finding]:
    """Find errors of a network plugin that no finding about the network tells."""
    found = [*log.hits["plugin-failed"], *log.hits["efa"]]
    hits = [hit for hit in found if "Couldn't" in hit.detail]
    return message_findings("NCCL-ERROR", "a network plugin failed", hits, say("plugin"))


def torch_errors(log: Log) -> Iterator[Finding]:
    """Report torch's errors about NCCL, what nccl-tests says of one, and the ranks they name."""
    reports = log.reported("report", *ENDLESS)
    if not reports:
        return
    behind = [one for one in reports if one.groups.get("behind")]
    shown = [*behind, *reports]
    message = f"the job reports: {join_names(_texts_with_ranks(shown))}"
    numbers = re.findall(r"\d+", " ".join(one.groups["behind"] for one in behind))
    suspects = [f"rank {number}" for number in dict.fromkeys(numbers)]
    endless = [one.row for one in reports if one.row.role in ENDLESS]
    failed = [one.row for one in reports if one.row.role not in ENDLESS]
    remedies = [say("desync")] if numbers else [row.advice or advise(row.kind) for row in failed]
    if compared := compare_calls(log.reported("work"), log.world_size):
        statement, named, advice = compared
        message, suspects = f"{statement}; {message}", suspects or named
        remedies.append(say(advice))
    remedies += [*(row.advice for row in endless), say("timeout") if endless else ""]
    remedy = next(filter(None, remedies), "")
    remedy = remedy.replace(SET_LEVEL, "") if log.ranks else remedy  # NCCL writes warnings already
    yield one_finding("NCCL-ERROR", message, suspects, places_of(shown), remedy)


def _texts_with_ranks(reports: Iterable[Reported]) -> list[str]:
    """List each text once, with the ranks that wrote it; a comparison names those of calls."""
    ranks: dict[str, set[int]] = defaultdict(set)
    others: dict[str, str] = {}  # where no rank is named: the first process that wrote the text
    for one in reports:
        ranks[one.detail] |= {int(one.rank)} if one.rank and one.row.role != "work" else set()
        others.setdefault(one.detail, "" if one.rank else one.where)
    names = [number_ranks(sorted(own)) if own else others[text] for text, own in ranks.items()]
    return [f"{text} ({name})" if name else text for text, name in zip(ranks, names, strict=True)]


def perhaps_caught(log: Log) -> list[Reported]:
    """List errors that a program may catch, if all ranks started: the job may have gone on."""
    return [one for one in fatal(log, "cause") if one.row.caught] if log.is_complete else []


def reported_causes(log: Log, ends: bool = False) -> Iterator[Finding]:
    """Find what a line of another program explains by itself: one finding of each row.

    `ends`: only what ended a process of the job; otherwise only the rest.
    """
    started = log.is_complete
    found = [one for one in fatal(log, "cause") if one.row.ends == ends]
    found = [one for one in found if not (one.row.caught and started)]
    for first in first_rows(found):
        alike = [one for one in found if one.row is first.row]
        ranks = dict.fromkeys(one.where for one in alike if one.where)
        places = dict.fromkeys(node for one in alike if (node := one.groups.get("node")))
        message = name_hosts(ranks, f"{first.sentence} ({first.detail})")
        yield _row_finding(alike, message, ranks or places)


def reported_follow_ups(log: Log) -> Iterator[Finding]:
    """Report an error that another program saw, and that began elsewhere."""
    found = fatal(log, "follow-up")
    for first in found[:1]:
        alike = [one for one in found if one.row is first.row]
        peers = dict.fromkeys(peer for one in alike if (peer := one.groups.get("peer")))
        yield _row_finding(alike, f"{first.sentence} ({first.detail})", peers)


def _row_finding(alike: list[Reported], message: str, suspects: Iterable[str]) -> Finding:
    row = alike[0].row
    remedy = alike[0].fill(row.advice) or say("follow_up")
    return one_finding(row.code, message, suspects, places_of(alike), remedy)


def fatal(log: Log, *roles: str, passed: bool = False) -> list[Reported]:
    """List reports of these roles: without, or only, those of a store that the job passed since."""
    started = any(rank.initialised for rank in log.ranks.values())
    return [o for o in log.reported(*roles) if (started and o.row.source == "c10d") == passed]


# Operations in which the sizes of all ranks are alike, and those between two ranks.
ALIKE = {"ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"}
# Operations that multiply the elements by the ranks, or divide them.
SHARED_OUT = {"ALLGATHER", "_ALLGATHER_BASE", "REDUCE_SCATTER", "_REDUCE_SCATTER_BASE"}
PAIRED = {"SEND", "RECV", "COALESCED", "P2P"}
SAYS = "timeout", "waiting", "desync"  # advice, by how much a comparison says


class Call(NamedTuple):
    """A call that a rank waits in: its number in the process group, operation and elements."""

    number: int
    operation: str = ""
    size: str = ""

    def __str__(self) -> str:
        elements = f" ({self.size} elements)" if self.size else ""
        return f"{self.operation or 'collective'} #{self.number}{elements}"


# What the calls of one process group show: statement, suspects, and a text of remedies.toml.
CallComparison = tuple[str, list[str], str]


def compare_calls(reports: list[Reported], size: int) -> CallComparison | None:
    """Compare the calls of each process group of a job of `size` ranks; None without a number."""
    found = [_compare_group(name, ranks, size) for name, ranks in _by_group(reports).items()]
    return max(filter(None, found), key=lambda one: SAYS.index(one[2]), default=None)


# What the lines about one process group show, by rank.
GroupLines = dict[int, list[Mapping[str, str]]]


def _by_group(reports: Iterable[Reported]) -> dict[str, GroupLines]:
    """Sort what the lines show by process group (empty: not named) and rank."""
    numbered = [(int(one.rank), one) for one in reports if one.rank]
    # A line without the name of its group has that of the next line about the same call.
    names = {
        (rank, one.groups.get("seq")): name for rank, one in numbered if (name := _name_group(one))
    }
    found: dict[str, GroupLines] = defaultdict(lambda: defaultdict(list))
    for rank, one in numbered:
        name = _name_group(one) or names.get((rank, one.groups.get("seq")), "")
        found[name][rank].append(one.groups)
    return _join_unnamed(found)


def _join_unnamed(found: dict[str, GroupLines]) -> dict[str, GroupLines]:
    """Give a line without a group to the one group that has its call, if any, and not its rank."""
    members = {name: {*ranks} for name, ranks in found.items() if name}
    calls = {name: {*chain(*map(_list_calls, found[name].values()))} for name in members}
    for rank, lines in found.pop("", {}).items():
        for line in lines:
            own = {call for call in _list_calls([line]) if call.operation}
            homes = [name for name in calls if rank not in members[name] and own & calls[name]]
            found[homes[0] if len(homes) == 1 else ""][rank].append(line)
    return found


def _name_group(one: Reported) -> str:
    text = one.groups.get("pg", "")
    guid = TEXT["guid"].search(text)
    return f"GUID {guid[1]}" if guid else text


def _list_calls(lines: list[Mapping[str, str]]) -> list[Call]:
    """List the calls that one rank waits in, the first one first."""
    known = [defaultdict(str, one) for one in lines if one.get("seq")]
    found = [Call(int(one["seq"]), one["op"], one["size"] or one["shape"]) for one in known]
    # The other lines about a call lack operation and size.
    return sorted(found, key=lambda one: (one.number, not one.operation))


def _compare_group(name: str, ranks: GroupLines, size: int) -> CallComparison | None:
    first = {rank: _list_calls(ranks[rank])[:1] for rank in sorted(ranks)}
    waiting = group_pairs((call, rank) for rank, own in first.items() for call in own)
    if not waiting:
        return None
    calls = sorted(waiting)
    last = calls[-1].number
    # Ranks that did not call what the others wait in: their line gives the last that they called.
    idle = (rank for rank, own in first.items() if not own)
    ends = {rank: [int(n) for one in ranks[rank] if (n := one.get("enqueued"))] for rank in idle}
    absent = {rank: end[-1] for rank, end in ends.items() if end and end[-1] < last}
    parts = [f"{_name_ranks(waiting[call], 'waits', 'wait')} in {call}" for call in calls]
    parts += [f"rank {rank} called nothing after #{end}" for rank, end in absent.items()]
    statement = join_names(parts)
    behind = sorted([r for call in calls for r in waiting[call] if call.number < last] + [*absent])
    unlike = _are_unlike(calls)
    if (behind or unlike) and _is_comparable(name, ranks, calls):
        verdicts = [f"{_name_ranks(behind, 'is', 'are')} behind"] if behind else []
        verdicts += ["they call different collectives"] if unlike else []
        suffix = "" if name else ", if these lines are of one process group"
        statement += f": {', or '.join(verdicts)}{suffix}"
        return statement, [f"rank {rank}" for rank in behind], "desync"
    if name.startswith("GUID"):  # otherwise the lines may be of several groups
        size = max(map(_count_members, chain(*ranks.values()))) or size
    if len(calls) == 1 and len(waiting[calls[0]]) == size > 1:
        return f"{statement}: all {size} ranks wait in this call", [], "waiting"
    if len(calls) == 1:
        others = f"the other ranks (of {size})" if size else "other ranks"
        statement += f", and no line of these files shows what {others} do: give all logs"
    return statement, [], "timeout"


def _count_members(line: Mapping[str, str]) -> int:
    """Count the ranks of a group by what a rank gives to a call, and gets; 0 if it shows none."""
    ends = [int(line.get(end) or 0) for end in ("size", "out")]
    few, many = ends if "GATHER" in line.get("op", "") else reversed(ends)
    whole = line.get("op") in SHARED_OUT and 0 < few < many and many % few == 0
    return many // few if whole else 0


def _are_unlike(calls: list[Call]) -> bool:
    """Return whether the calls are of different operations, or of sizes that should be alike."""
    operations = {call.operation for call in calls} - {""}
    sizes = {call.size for call in calls if call.operation in ALIKE} - {""}
    return len(operations) > 1 or len(sizes) > 1


def _is_comparable(name: str, ranks: GroupLines, calls: list[Call]) -> bool:
    """Return whether the lines can be of one process group, with one count of its calls.

    No two ranks have one number in a group. Without a unique name, the numbers in the group must
    be those of the job; without any, a rank may wait in one call only.
    """
    if any(call.operation in PAIRED for call in calls):
        return False
    inner = {rank: {one.get("rank", "") for one in lines} - {""} for rank, lines in ranks.items()}
    if name.startswith("GUID"):
        return sum(map(len, inner.values())) == len(set[str]().union(*inner.values()))
    numbers = [{call.number for call in _list_calls(lines)} for lines in ranks.values()]
    if not name and any(len(own) > 1 for own in numbers):
        return False
    return all(own <= {str(rank)} for rank, own in inner.items())


def _name_ranks(ranks: list[int], one: str, several: str) -> str:
    return f"{number_ranks(ranks)} {one if len(ranks) == 1 else several}"
