"""Detects why a job did not start, hangs or starts wrong: findings INIT-* and NCCL-* of its log.

Causes and symptoms are those of NCCL's troubleshooting guide.
"""

from __future__ import annotations

from collections.abc import Iterator

from probes.findings import MAX_NAMES, join_names
from probes.nccl import calls
from probes.nccl.calls import message_findings, number_ranks, one_finding, places_of
from probes.nccl.job import PER_RANK_S, STAGES, Rank
from probes.nccl.lines import MAX_SKIPPED
from probes.nccl.log import Log
from probes.nccl.patterns import read_phrases, read_plain_errors, read_remedies, say
from reports.groups import group_pairs
from reports.record import Finding


def init_errors(log: Log) -> Iterator[Finding]:
    """Find errors whose own text names the cause.

    That no segment of shared memory could be made follows from a more specific error about it.
    """
    specific = [hit for kind in ("shm-cuda", "shm-denied", "shm-attach") for hit in log.hits[kind]]
    explained = {hit.rank.writer for hit in specific}
    for kind, (code, problem) in read_plain_errors().items():
        hits = log.hits[kind]
        if kind == "shm":
            hits = [hit for hit in hits if hit.rank.writer not in explained]
        if kind == "cuda":
            hits = [hit for hit in hits if not calls.is_at_end(log, hit)]
        yield from message_findings(code, problem, hits, calls.advise(kind))


def qp_errors(log: Log) -> Iterator[Finding]:
    """Find RDMA connections that could not be made, and those that broke: one finding per cause."""
    # NCCL retries by itself: a retry that succeeded is no error.
    tries = [] if log.partial else [m for m in log.hits["qp-retrying"] if log.joined(m.rank).stuck]
    known = read_remedies().causes
    for event, causes, hits in (
        ("cannot be made", known["qp_setup"], [*log.hits["qp"], *tries]),
        ("broke", known["qp_break"], log.hits["qp-broke"]),
    ):
        by_cause = group_pairs((calls.find_cause(causes, hit.detail), hit) for hit in hits)
        for cause, alike in by_cause.items():
            hosts = calls.hosts_of(alike)
            peers = calls.named_peers(log, alike) if event == "broke" else []
            reason = f"{cause.reason} ({alike[0].detail}){_gid_news(log, hosts)}"
            message = calls.name_hits(alike, f"an RDMA connection {event}: {reason}")
            suspects = dict.fromkeys([*hosts, *peers])
            yield one_finding("INIT-QP", message, suspects, places_of(alike), cause.remedy)


def _gid_news(log: Log, hosts: list[str]) -> str:
    """Return that a port's GID table changed, and which links the host has, if that may matter."""
    changed = [m for m in log.hits["port-news"] if "GID table" in m.detail]
    news = f"; the GID table changed ({changed[0].line})" if changed else ""
    for name in (name for name in hosts if name in log.hosts):
        types = log.hosts[name].link_types
        if len(set(types.values())) > 1:
            listing = join_names(f"{device}/{kind}" for device, kind in types.items())
            return f"{news}; {name} has links of two kinds: {listing}"
    return news


def bootstrap_errors(log: Log) -> Iterator[Finding]:
    """Find ranks that could not connect to a peer by TCP while they were starting."""
    failures = [*log.hits["refused"], *([] if log.partial else log.hits["retrying"])]
    hits = [m for m in failures if not log.joined(m.rank).initialised]
    if not hits:
        return
    peers, hosts = calls.named_peers(log, hits), calls.hosts_of(hits)
    cause = calls.find_cause(read_remedies().causes["connect"], hits[0].detail)
    problem = f"cannot connect to {join_names(peers) or 'a peer'} by TCP ({cause.reason})"
    remedy = cause.remedy
    if families := two_families(log):
        problem, remedy = f"{problem}; {families[0]}", say("family")
    message, suspects = calls.name_hits(hits, problem), peers[:MAX_NAMES] or hosts
    peer = hosts[0] if peers and hosts else ""
    yield one_finding("INIT-BOOTSTRAP", message, suspects, places_of(hits), remedy, peer=peer)


def nvls_errors(log: Log) -> Iterator[Finding]:
    """Find NVLink SHARP multicast that failed or stopped."""
    stuck = [rank for rank in log.job_ranks if STAGES[rank.stage] == "nvls"]
    hits = log.hits["nvls"]
    yield from message_findings("INIT-NVLS", "NVLink multicast (NVLS) failed", hits)
    if stuck and not (hits or log.partial or stopped_by_error(log)):
        message = f"{calls.rank_names(stuck)}: {say('nvls')}"
        yield one_finding("INIT-NVLS", message, (rank.name for rank in stuck))


def mixed_versions(log: Log) -> Iterator[Finding]:
    """Report more than one NCCL version in one job, or what else makes ranks disagree so early."""
    versions, hits, sizes = log.versions, log.hits["version"], log.hits["start-size"]
    if len(versions) < 2 and not hits:
        yield from message_findings("NCCL-ERROR", say("sizes"), sizes, say("start_size"))
        return
    hits = hits or sizes
    listing = "; ".join(f"{version} on {join_names(hosts)}" for version, hosts in versions.items())
    minority = min(versions.values(), key=len) if len(versions) > 1 else calls.hosts_of(hits)
    message = f"the ranks run different NCCL versions: {listing or hits[0].detail}"
    yield one_finding("NCCL-VERSION", message, minority, places_of(hits))


def corrupt_results(log: Log) -> Iterator[Finding]:
    """Report wrong elements that nccl-tests counted."""
    if rows := log.others.bad_rows:
        worst = max((wrong for _, wrong in rows), key=abs)
        extent = f"up to {worst} in one row" if worst > 0 else "one count is not a number"
        message = f"nccl-tests found wrong values in its table (rows: {len(rows)}, {extent})"
        yield one_finding("NCCL-CORRUPT", message, lines=(line for line, _ in rows))


def slow_init(log: Log) -> Iterator[Finding]:
    """Find a start over the limit, with its longest phase or the rank that came late."""
    timed = [(rank, rank.timing) for rank in log.ranks.values() if rank.timing]
    slow = [(rank, timing) for rank, timing in timed if timing.total >= timing.limit]
    if not slow:
        return
    slow.sort(key=lambda one: -one[1].total)
    worst, timing = slow[0]
    message = say("slow", rank=worst.name, timing=timing, each=PER_RANK_S)
    same_job = (one for one in timed if one[1].ranks == timing.ranks)
    late, fastest = min(same_job, key=lambda one: one[1].bootstrap)
    if timing.phase == "bootstrap" and fastest.bootstrap < timing.bootstrap / 2:
        message += say("waited", rank=late.name, seconds=fastest.bootstrap)
        suspects, remedy = [late.name], say("late")
    else:
        suspects = [rank.name for rank, one in slow if one.phase == timing.phase]
        remedy = read_remedies().phases.get(timing.phase, "")
    yield one_finding("INIT-SLOW", message, dict.fromkeys(suspects), remedy=remedy)


# Hangs and missing ranks, for which no error is logged.  A log may be a piece: then the end of the
# file is not the end of the job, and a rank that it does not show may have written lines.
MOST = 0.75  # of the ranks: a piece that has so many is likely to be the log of all
# Lines of each other rank, on average: launchers write what ranks print in blocks of some KB.
FURTHER = 50


def what_to_collect(log: Log) -> str:
    """Return what shows a hang, without what was done already."""
    if log.repeated:
        return say("repeated")
    return say("collect", level="" if log.has_info else "NCCL_DEBUG=INFO ")


def why_no_hang(log: Log) -> str:
    """Return why these files cannot show that ranks are missing, or that the job hangs; else ""."""
    count, size = len(log.job_ranks), log.world_size
    if log.repeated:  # also where the caller says that the log is whole
        return "Ray's driver left out repeated lines"
    if log.every_rank:
        return ""
    if not (size or has_file_each(log)):
        end = f", and all {count} processes end at the step `{log.stage}`"
        return f"no line gives the number of ranks{end if len(log.behind) == count > 1 else ''}"
    if not any(rank.has_beginning for rank in log.ranks.values()):
        return "its beginning is missing"
    if log.present == 1 < size:
        some = "the lines" if log.shown <= 1 else "the rank number"
        return f"it has {some} of only one of {size} ranks"
    return ""


def ends_early(log: Log) -> str:
    """Return why one file, which may be a piece, shows no hang; else ""."""
    size, present = log.world_size, log.present
    if not is_piece(log) or shows_order(log) or gave_up(log):
        return ""
    if present < size and any(map(_has_gathered, log.ranks.values())):
        if log.shown >= size:
            return f"it does not show the rank number of each of {size} ranks"
        return f"it has the lines of {max(present, log.shown)} of {size} ranks"
    if present < size:
        absent = number_ranks(sorted({*range(size)} - log.numbers))
        return f"{absent} never joined, or this part of the log ends too early"
    if any(rank.number < 0 and not rank.stage for rank in log.job_ranks):
        return "the first lines of some of its processes are missing"
    where = _all_of(log, log.behind) or calls.rank_names(log.behind)
    return say("end_there", where=where, stage=log.stage)


def is_piece(log: Log) -> bool:
    """Return whether the log may be a piece: one file, which people cut where they like."""
    return not log.every_rank and len(log.files) == 1


def has_file_each(log: Log) -> bool:
    """Return whether several processes each wrote one file, from their start."""
    begun = {rank.process for rank in log.ranks.values() if rank.has_beginning}
    files = [file.processes for file in log.files if file.count]
    single = {next(iter(found)) for found in files if len(found) == 1}
    return len(files) == len(single & begun) > 1


def shows_order(log: Log) -> bool:
    """Return whether one file shows by its order that some ranks stopped.

    All ranks are in it, and after the last line of those that are behind every other rank wrote at
    a later stage: the end of the file does not explain that.
    """
    ranks = log.job_ranks
    others = [rank for rank in ranks if STAGES[rank.stage] != log.stage]
    if not (others and is_piece(log) and len(ranks) == len(log.numbers) == log.world_size):
        return False
    # Lines that nothing reads count, so all of them must be known.
    if log.files[0].skipped == MAX_SKIPPED or not all(rank.stuck for rank in log.behind):
        return False
    end = max(max(rank.last_line, log.seen.get(rank.writer, 0)) for rank in log.behind)
    after = [rank.last_line - end for rank in others]
    return min(after) > 0 and max(after) >= FURTHER * len(after)


def gave_up(log: Log) -> bool:
    """Return whether all ranks began, none is done, and the job says that it waited in vain."""
    ranks = log.job_ranks
    began = len(log.numbers) == len(ranks) == log.world_size > 1
    stuck = all(rank.open_comms and not rank.initialised for rank in ranks)
    return began and stuck and bool(log.reported("timeout", "work"))


def missing_ranks(log: Log) -> Iterator[Finding]:
    """Find ranks that never logged that they joined, while the others wait for them."""
    size, members = log.world_size, log.job_ranks
    world = [rank for rank in members if rank.size == size]
    absent = sorted({*range(size)} - {rank.number for rank in world})
    starting = [rank for rank in members if not rank.size]  # started, without a rank number so far
    if len(log.jobs) > 1 or log.partial or why_no_hang(log):
        return
    # Past the bootstrap a rank has gathered something from every rank.
    if any(_has_gathered(rank) for rank in log.ranks.values() if rank.size == size):
        return
    if is_piece(log) and (log.present < MOST * size or not log.reported("report", *calls.ENDLESS)):
        return  # it may end before the lines of the others
    if world and len(absent) > len(starting) and not stopped_by_error(log):
        stage = STAGES[min(rank.stage for rank in world)]
        ranks = number_ranks(absent)
        message = say("missing", ranks=ranks, size=size, joined=len(world), stage=stage)
        suspects = (f"rank {number}" for number in absent)
        yield one_finding("INIT-MISSING-RANK", message, suspects, rank=str(absent[0]))


def _has_gathered(rank: Rank) -> bool:
    past = rank.gathered or rank.initialised or bool(rank.edges)
    return past or rank.stage >= STAGES.index("graph")


def stopped_by_error(log: Log) -> bool:
    """Return whether some rank that is not done logged an error that explains it."""
    kinds = {*read_plain_errors(), *(one.kind for one in read_phrases() if one.blocks)}
    return any(log.joined(m.rank).stuck for kind in kinds for m in log.hits[kind])


def find_hang(log: Log) -> Iterator[Finding]:
    """Find the stage where the job stopped without an error, and the ranks that lag behind.

    Ranks with no connections to make are ignored unless other ranks are still connecting.
    """
    if log.partial or not any(rank.stuck for rank in log.job_ranks):
        return  # the end of the file is not the end of the job
    shown = _by_family(log)  # by the lines that are here
    if not shown and (why_no_hang(log) or ends_early(log)):
        return
    if log.hits["unknown"] and not log.every_rank:
        return  # an error that is not known is an error
    message, suspects, remedy = shown or _lagging(log)
    if shows_order(log):
        message += say("order")
    lines = places_of(log.reported("timeout", "work"))
    yield one_finding("INIT-HANG", message, suspects, lines, remedy)


def two_families(log: Log) -> tuple[str, list[str]] | None:
    """Find whether some hosts start over IPv4 and others over IPv6: (message, minority) or None."""
    started = [(name, host.bootstrap[1]) for name, host in log.hosts.items() if host.bootstrap]
    found = group_pairs(("IPv6" if ":" in address else "IPv4", name) for name, address in started)
    if len(found) < 2:
        return None
    families = sorted(found.items(), key=lambda one: len(one[1]))
    uses = [f"{join_names(on)} use{'s' * (len(on) == 1)} {family}" for family, on in families]
    return ", ".join(uses), families[0][1]


# Each way to hang: the message, the suspects, and the remedy.
Hang = tuple[str, list[str], str]


def _by_family(log: Log) -> Hang | None:
    families = two_families(log)
    if families is None or STAGES.index(log.stage) > STAGES.index("topology"):
        return None  # or the hosts have connected nevertheless
    return say("two_families", stage=log.stage, uses=families[0]), families[1], say("family")


def _lagging(log: Log) -> Hang:
    """Report where all ranks stop, maybe before NCCL uses the network, or which lag behind."""
    ranks, of_several = log.job_ranks, len(log.host_names) > 1 or log.world_size
    if log.stage == "bootstrap" and log.behind == ranks and of_several and not log.saw_network:
        message = f"all {len(ranks)} processes stop before their first line about the network"
        return message, log.host_names, say("mesh")
    remedy = say("collective") if log.stage in ("connect", "first-collective") else ""
    idle = [rank for rank in log.behind if not rank.connecting]
    behind = idle or [rank for rank in ranks if rank.stuck]
    if len(behind) == len(ranks):
        who = f"{_all_of(log, behind)} stop" if len(ranks) > 1 else f"{ranks[0].name} stops"
        return f"{who} at the step `{log.stage}` without an error", [], remedy or say("all_stop")
    furthest = STAGES[max(rank.stage for rank in ranks)]
    where = f"stopped at the step `{log.stage}`, other ranks reached `{furthest}`"
    if furthest == log.stage:  # at the first collective
        where = "did not begin the collective in which the other ranks wait"
    message = f"the job stops without an error: {calls.rank_names(behind)} {where}"
    return message, [rank.name for rank in behind], remedy


def _all_of(log: Log, ranks: list[Rank]) -> str:
    return f"all {len(ranks)} ranks" if len(ranks) == len(log.job_ranks) else ""


DETECTORS = (
    init_errors, qp_errors, slow_init, bootstrap_errors, nvls_errors, mixed_versions,
    missing_ranks, corrupt_results,
)  # fmt: skip
