"""Compares the calls in which the ranks of a torch job waited: who is behind, who called what.

A watchdog's line has the rank within its process group. Newer versions name the group in the next
line, and torch's logger puts the rank of the job before both. Calls are numbered per process group,
and sends and receives apart from collectives.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from probes.findings import join_names
from probes.nccl.rows import Reported

# Operations in which the sizes of all ranks are alike, and those between two ranks.
ALIKE = {"ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"}
PAIRED = {"SEND", "RECV", "COALESCED", "P2P"}
SAYS = "timeout", "waiting", "desync"  # advice, by how much a comparison says
GUID = re.compile(r"GUID ([^\s(]+)")


class Call(NamedTuple):
    """A call that a rank waits in: its number in the process group, operation and elements."""

    number: int
    operation: str = ""
    size: str = ""

    def __str__(self) -> str:
        elements = f" ({self.size} elements)" if self.size else ""
        return f"{self.operation or 'collective'} #{self.number}{elements}"


@dataclass(slots=True)
class RankState:
    """What one rank did in one process group: the call it waits in, and the last it called."""

    waits: Call | None = None
    enqueued: int | None = None
    inner: set[str] = field(default_factory=set)  # its numbers within the group
    calls: set[int] = field(default_factory=set)  # numbers of all calls that it waits in

    def add(self, groups: Mapping[str, str]) -> None:
        """Add what one line gives; of several calls the first one counts."""
        self.inner |= {groups.get("rank", "")} - {""}
        if number := groups.get("seq"):
            size = groups.get("size") or groups.get("shape", "")
            call = Call(int(number), groups.get("op", ""), size)
            self.calls.add(call.number)
            # The other lines about a call lack operation and size.
            known = filter(None, (self.waits, call))
            self.waits = min(known, key=lambda one: (one.number, not one.operation))
        if enqueued := groups.get("enqueued"):
            self.enqueued = int(enqueued)


class CallComparison(NamedTuple):
    """What the calls of one process group show; `advice` names a text of remedies.toml."""

    statement: str
    suspects: list[str]
    advice: str


def compare_calls(reports: list[Reported], size: int) -> CallComparison | None:
    """Compare the calls of each process group of a job of `size` ranks; None without a number."""
    found = [_compare_group(name, ranks, size) for name, ranks in _by_group(reports).items()]
    return max(filter(None, found), key=lambda one: SAYS.index(one.advice), default=None)


def _by_group(reports: Iterable[Reported]) -> dict[str, dict[int, RankState]]:
    """Sort what the lines show by process group (empty: not named) and rank."""
    numbered = [(int(one.rank), one) for one in reports if one.rank]
    # A line without the name of its group has that of the next line about the same call.
    names = {
        (rank, one.groups.get("seq")): name for rank, one in numbered if (name := _name_group(one))
    }
    found: dict[str, dict[int, RankState]] = defaultdict(lambda: defaultdict(RankState))
    for rank, one in numbered:
        name = _name_group(one) or names.get((rank, one.groups.get("seq")), "")
        found[name][rank].add(one.groups)
    return found


def _name_group(one: Reported) -> str:
    text = one.groups.get("pg", "")
    guid = GUID.search(text)
    return f"GUID {guid[1]}" if guid else text


def _compare_group(name: str, ranks: dict[int, RankState], size: int) -> CallComparison | None:
    waiting: dict[Call, list[int]] = defaultdict(list)
    for rank, state in sorted(ranks.items()):
        if state.waits:
            waiting[state.waits].append(rank)
    if not waiting:
        return None
    calls = sorted(waiting)
    last = calls[-1].number
    # Ranks that did not call what the others wait in: their line gives the last that they called.
    absent = {
        rank: state.enqueued
        for rank, state in sorted(ranks.items())
        if state.enqueued is not None and state.enqueued < last and not state.waits
    }
    parts = [f"{_name_ranks(waiting[call], 'waits', 'wait')} in {call}" for call in calls]
    parts += [f"rank {rank} called nothing after #{end}" for rank, end in absent.items()]
    statement = join_names(parts)
    behind = sorted([r for call in calls for r in waiting[call] if call.number < last] + [*absent])
    suffix = "" if name else ", if these lines are of one process group"
    unlike = _are_unlike(calls)
    if (behind or unlike) and _is_comparable(name, ranks, calls):
        if not behind:
            statement += f": they call different collectives{suffix}"
            return CallComparison(statement, [], "desync")
        statement += f": {_name_ranks(behind, 'is', 'are')} behind"
        statement += f", or they call different collectives{suffix}" if unlike else suffix
        return CallComparison(statement, [f"rank {rank}" for rank in behind], "desync")
    if len(calls) == 1 and len(waiting[calls[0]]) == size > 1:
        return CallComparison(f"{statement}: all {size} ranks wait in it", [], "waiting")
    if len(calls) == 1:
        statement += ", and no line of these files shows what other ranks do: give the logs of all"
    return CallComparison(statement, [], "timeout")


def _are_unlike(calls: list[Call]) -> bool:
    """Return whether the calls are of different operations, or of sizes that should be alike."""
    operations = {call.operation for call in calls} - {""}
    sizes = {call.size for call in calls if call.operation in ALIKE} - {""}
    return len(operations) > 1 or len(sizes) > 1


def _is_comparable(name: str, ranks: Mapping[int, RankState], calls: list[Call]) -> bool:
    """Return whether the lines can be of one process group, with one count of its calls.

    No two ranks have one number in a group. Without a unique name, the numbers in the group must
    be those of the job; without any, a rank may wait in one call only.
    """
    if any(call.operation in PAIRED for call in calls):
        return False
    inner = [number for state in ranks.values() for number in state.inner]
    if name.startswith("GUID"):
        return len(inner) == len(set(inner))
    if not name and any(len(state.calls) > 1 for state in ranks.values()):
        return False
    return all(state.inner <= {str(rank)} for rank, state in ranks.items())


def _name_ranks(ranks: list[int], one: str, several: str) -> str:
    listing = join_names(map(str, ranks))
    return f"rank {listing} {one}" if len(ranks) == 1 else f"ranks {listing} {several}"
