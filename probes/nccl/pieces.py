"""Tells what a piece of a log can show: people paste forty lines of one rank."""

from __future__ import annotations

from collections.abc import Collection

from probes.findings import join_names
from probes.nccl.evidence import rank_names
from probes.nccl.job import STAGES, Rank
from probes.nccl.log import Log

MOST = 0.75  # of the ranks: a piece that has so many is likely to be the log of all
COLLECT = (
    "If this is all that every rank wrote, say so with --whole. Otherwise collect the log of every "
    "rank from its start, in a file for each: NCCL_DEBUG=INFO "
    "NCCL_DEBUG_FILE=/some/folder/nccl.%h.%p.log"
)


def why_no_hang(log: Log) -> str:
    """Return why this piece cannot show that the job hangs or that ranks are missing; else ""."""
    if log.repeated:  # also where the caller says that the log is whole
        return "Ray's driver left out repeated lines"
    if log.every_rank:
        return ""
    if not log.world_size:
        return "no line gives the number of ranks"
    if not any(rank.has_beginning for rank in log.ranks.values()):
        return "its beginning is missing"
    if log.world_size > 1 and _present(log) == 1:
        return f"it has the lines of one of {log.world_size} ranks"
    return ""


def _present(log: Log) -> int:
    """Count the ranks that wrote lines."""
    return len({rank.number if rank.number >= 0 else rank.writer[:2] for rank in log.job_ranks})


def number_ranks(numbers: Collection[int]) -> str:
    """Name ranks by their numbers: `rank 3`, `ranks 2, 3`."""
    return f"rank{'s' if len(numbers) > 1 else ''} {join_names(map(str, numbers))}"


def ends_early(log: Log) -> str:
    """Return why no hang is certain in one file, which may be a piece; else ""."""
    if not is_piece(log):
        return ""
    present = _present(log)
    if present < log.world_size and any(map(_has_gathered, log.ranks.values())):
        return f"it has the lines of {present} of {log.world_size} ranks"
    if present < log.world_size:
        absent = sorted(set(range(log.world_size)) - log.numbers)
        return f"{number_ranks(absent)} never joined, or the piece ends too early"
    if any(rank.number < 0 and not rank.stage for rank in log.job_ranks):
        return "of some of its processes the beginning is missing"
    lowest = min((rank.stage for rank in log.job_ranks), default=0)
    behind = [rank for rank in log.job_ranks if rank.stage == lowest]
    where = f"all {len(behind)} ranks" if len(behind) == len(log.job_ranks) else rank_names(behind)
    return f"the lines of {where} end at {log.stage}: a hang, or the piece ends there"


def is_piece(log: Log) -> bool:
    """Return whether the log may be a piece: one file, which people cut where they like."""
    return not log.every_rank and len(log.files) == 1


def shows_most(log: Log) -> bool:
    """Return whether the log has lines of most ranks, so that the others are missed in it."""
    return _present(log) >= MOST * log.world_size


def all_joined(log: Log) -> bool:
    """Return whether some rank is past the bootstrap: it gathers something from every rank."""
    return any(_has_gathered(rank) for rank in log.ranks.values() if rank.size == log.world_size)


def _has_gathered(rank: Rank) -> bool:
    past = rank.gathered or rank.initialised or bool(rank.edges)
    return past or rank.stage >= STAGES.index("graph")


def crosses_hosts(log: Log) -> bool:
    """Return whether the log shows two hosts: only then can a network be accused."""
    names = {*log.host_names, *log.test_hosts}
    return len(names) > 1 or log.nodes > 1 or log.external_edges > 0
