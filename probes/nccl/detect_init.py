"""Detects why a job did not start, or starts wrong: findings INIT-* and NCCL-* from its log.

Causes and symptoms are those of NCCL's troubleshooting guide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from probes.findings import MAX_NAMES, join_names
from probes.nccl import evidence, log_files
from probes.nccl.calls import ENDLESS, ErrorCause, find_cause, is_at_end, read_remedies
from probes.nccl.evidence import (
    first_lines,
    hosts_of,
    message_findings,
    name_hosts,
    named_peers,
    one_finding,
)
from probes.nccl.job import STAGES, MatchedMessage
from probes.nccl.log import Log
from probes.nccl.patterns import read_phrases, read_plain_errors
from reports.record import Finding


def init_errors(log: Log) -> Iterator[Finding]:
    """Find errors whose own text names the cause.

    That no segment of shared memory could be made follows from a more specific error about it.
    """
    specific = [hit for kind in ("shm-cuda", "shm-denied", "shm-attach") for hit in log.hits[kind]]
    explained = {hit.rank.writer for hit in specific}
    for kind, (code, problem) in read_plain_errors().items():
        hits, remedy = log.hits[kind], read_remedies().errors.get(kind, "")
        if kind == "shm":
            hits = [hit for hit in hits if hit.rank.writer not in explained]
        if kind == "cuda":
            hits = [hit for hit in hits if not is_at_end(log, hit)]
        yield from message_findings(code, problem, hits, remedy)


def qp_errors(log: Log) -> Iterator[Finding]:
    """Find RDMA connections that could not be made, and those that broke: one finding per cause."""
    # NCCL retries by itself: a retry that succeeded is no error.
    tries = [] if log.partial else [m for m in log.hits["qp-retrying"] if log.joined(m.rank).stuck]
    known = read_remedies().causes
    for event, causes, hits in (
        ("cannot be made", known.qp_setup, [*log.hits["qp"], *tries]),
        ("broke", known.qp_break, log.hits["qp-broke"]),
    ):
        by_cause: dict[ErrorCause, list[MatchedMessage]] = defaultdict(list)
        for hit in hits:
            by_cause[find_cause(causes, hit.detail)].append(hit)
        for cause, alike in by_cause.items():
            hosts, peers = hosts_of(alike), named_peers(log, alike) if event == "broke" else []
            reason = f"{cause.reason} ({alike[0].detail}){_gid_news(log, hosts)}"
            message = name_hosts(hosts, f"an RDMA connection {event}: {reason}")
            suspects = dict.fromkeys([*hosts, *peers])
            yield one_finding("INIT-QP", message, suspects, first_lines(alike), cause.remedy)


def _gid_news(log: Log, hosts: list[str]) -> str:
    """Return that a port's GID table changed, and which links the host has, if that may matter."""
    changed = [m for m in log.hits["port-news"] if "GID table" in m.detail]
    news = f"; before, the GID table changed at {changed[0].line}" if changed else ""
    for name in hosts:
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
    peers, hosts = named_peers(log, hits), hosts_of(hits)
    cause = find_cause(read_remedies().causes.connect, hits[0].detail)
    problem = f"cannot connect to {join_names(peers) or 'a peer'} by TCP ({cause.reason})"
    remedy = cause.remedy
    if families := two_families(log):
        problem, remedy = f"{problem}; {families[0]}", read_remedies().texts["family"]
    message, suspects = name_hosts(hosts, problem), peers[:MAX_NAMES] or hosts
    names = {"peer": hosts[0] if peers and hosts else ""}
    yield one_finding("INIT-BOOTSTRAP", message, suspects, first_lines(hits), remedy, names)


def nvls_errors(log: Log) -> Iterator[Finding]:
    """Find NVLink SHARP multicast that failed or stopped."""
    stuck = [rank for rank in log.job_ranks if STAGES[rank.stage] == "nvls"]
    hits = log.hits["nvls"]
    yield from message_findings("INIT-NVLS", "NVLink multicast (NVLS) failed", hits)
    if stuck and not (hits or log.partial or stopped_by_error(log)):
        stops = "the start stops while NCCL binds the memory of NVLink multicast (NVLS)"
        message = f"{evidence.rank_names(stuck)}: {stops}"
        yield one_finding("INIT-NVLS", message, (rank.name for rank in stuck))


def mixed_versions(log: Log) -> Iterator[Finding]:
    """Report more than one NCCL version in one job, or what else makes ranks disagree so early."""
    versions, hits, sizes = log.versions, log.hits["version"], log.hits["start-size"]
    if len(versions) < 2 and not hits:
        problem = "ranks expect different sizes of a message at the start of NCCL"
        remedy = read_remedies().texts["start_size"]
        yield from message_findings("NCCL-ERROR", problem, sizes, remedy)
        return
    hits = hits or sizes
    listing = "; ".join(f"{version} on {join_names(hosts)}" for version, hosts in versions.items())
    minority = min(versions.values(), key=len) if len(versions) > 1 else hosts_of(hits)
    message = f"the ranks run different NCCL versions: {listing or hits[0].detail}"
    yield one_finding("NCCL-VERSION", message, minority, first_lines(hits))


def missing_ranks(log: Log) -> Iterator[Finding]:
    """Find ranks that never logged that they joined, while the others wait for them."""
    size, members = log.world_size, log.job_ranks
    world = [rank for rank in members if rank.size == size]
    absent = sorted(set(range(size)) - {rank.number for rank in world})
    starting = [rank for rank in members if not rank.size]  # started, without a rank number so far
    if len(log.jobs) > 1 or log.partial or log_files.why_no_hang(log) or log_files.all_joined(log):
        return
    if log_files.is_piece(log) and not (
        log.reported("report", *ENDLESS) and log_files.shows_most(log)
    ):
        return  # it may end before the lines of the others
    if world and len(absent) > len(starting) and not stopped_by_error(log):
        stage = STAGES[min(rank.stage for rank in world)]
        message = (
            f"{log_files.number_ranks(absent)} of {size} never joined the job. {len(world)} others "
            f"wait for them at the step `{stage}` of NCCL's start"
        )
        suspects = (f"rank {number}" for number in absent)
        yield one_finding("INIT-MISSING-RANK", message, suspects, names={"rank": absent[0]})


def corrupt_results(log: Log) -> Iterator[Finding]:
    """Report wrong elements that nccl-tests counted."""
    if log.others.bad_rows:
        worst = max((wrong for _, wrong in log.others.bad_rows), key=abs)
        extent = f"up to {worst} in one" if worst > 0 else "one count is not a number"
        message = f"nccl-tests found wrong values in {len(log.others.bad_rows)} rows, {extent}"
        yield one_finding("NCCL-CORRUPT", message, lines=(line for line, _ in log.others.bad_rows))


def stopped_by_error(log: Log) -> bool:
    """Return whether some rank that is not done logged an error that explains it."""
    kinds = {*read_plain_errors(), *(one.kind for one in read_phrases() if one.blocks)}
    return any(log.joined(m.rank).stuck for kind in kinds for m in log.hits[kind])


def slow_init(log: Log) -> Iterator[Finding]:
    """Find a start over the limit, with its longest phase or the rank that came late."""
    timed = [(rank, rank.timing) for rank in log.ranks.values() if rank.timing]
    slow = [(rank, timing) for rank, timing in timed if timing.total >= timing.limit]
    if not slow:
        return
    slow.sort(key=lambda one: -one[1].total)
    worst, timing = slow[0]
    message = (
        f"{worst.name} took {timing.total:.1f} s to start, {timing.longest:.1f} s of it in the "
        f"phase `{timing.phase}`. Expected: under {timing.limit:.1f} s (half of NCCL's time-out "
        "for a connection)"
    )
    same_job = (one for one in timed if one[1].ranks == timing.ranks)
    late, fastest = min(same_job, key=lambda one: one[1].bootstrap)
    if timing.phase == "bootstrap" and fastest.bootstrap < timing.bootstrap / 2:
        message += f". {late.name} joined last: it spent only {fastest.bootstrap:.1f} s in it"
        suspects, remedy = [late.name], read_remedies().texts["late"]
    else:
        suspects = [rank.name for rank, one in slow if one.phase == timing.phase]
        remedy = read_remedies().phases.get(timing.phase, "")
    yield one_finding("INIT-SLOW", message, dict.fromkeys(suspects), remedy=remedy)


def find_hang(log: Log) -> Iterator[Finding]:
    """Find the stage where the job stopped without an error, and the ranks that lag behind.

    Ranks with no connections to make are ignored unless other ranks are still connecting.
    """
    if log.partial or not any(rank.stuck for rank in log.job_ranks):
        return  # the end of the file is not the end of the job
    shown = _by_family(log)  # by the lines that are here
    if not shown and (log_files.why_no_hang(log) or log_files.ends_early(log)):
        return
    if log.hits["unknown"] and not log.every_rank:
        return  # an error that is not known is an error
    message, suspects, remedy = shown or _before_network(log) or _lagging(log)
    if log_files.shows_order(log):
        message += (
            ". The other ranks wrote lines after the last lines of these ranks (unless somebody "
            "removed lines from the file)"
        )
    reports = [one.line for one in log.reported("timeout", "work")]
    yield one_finding("INIT-HANG", message, suspects, reports, remedy)


def start_without_end(log: Log) -> Iterator[Finding]:
    """Find a start in which all ranks waited until the job gave up: no rank failed to join."""
    return find_hang(log) if log_files.gave_up(log) else iter(())


def two_families(log: Log) -> tuple[str, list[str]] | None:
    """Find whether some hosts start over IPv4 and others over IPv6: (message, minority) or None."""
    hosts: dict[str, list[str]] = defaultdict(list)
    for name, host in log.hosts.items():
        if host.bootstrap:
            hosts["IPv6" if ":" in host.bootstrap[1] else "IPv4"].append(name)
    if len(hosts) < 2:
        return None
    fewer, more = sorted(hosts, key=lambda family: len(hosts[family]))
    few, many = (
        f"{join_names(hosts[family])} {'uses' if len(hosts[family]) == 1 else 'use'} {family}"
        for family in (fewer, more)
    )
    return f"{few}, {many}", hosts[fewer]


def _by_family(log: Log) -> tuple[str, list[str], str] | None:
    families = two_families(log)
    if families is None or STAGES.index(log.stage) > STAGES.index("topology"):
        return None  # or the hosts have connected nevertheless
    message = f"the start stops at the step `{log.stage}` without an error, and {families[0]}"
    return message, families[1], read_remedies().texts["family"]


def _before_network(log: Log) -> tuple[str, list[str], str] | None:
    """Report that every process stops before NCCL uses the network; otherwise return None."""
    if len(log.host_names) < 2 and not log.world_size:
        return None
    if log.saw_network or {rank.stage for rank in log.job_ranks} != {STAGES.index("bootstrap")}:
        return None
    message = f"all {len(log.job_ranks)} processes stop before their first line about the network"
    return message, log.host_names, read_remedies().texts["mesh"]


def _lagging(log: Log) -> tuple[str, list[str], str]:
    ranks = log.job_ranks
    connects = log.stage in ("connect", "first-collective")
    remedy = read_remedies().texts["collective"] if connects else ""
    idle = [rank for rank in log.behind if not rank.connecting]
    behind = idle or [rank for rank in ranks if rank.stuck]
    if len(behind) == len(ranks):
        who = f"all {len(ranks)} ranks stop" if len(ranks) > 1 else f"{ranks[0].name} stops"
        message = f"{who} at the step `{log.stage}` without an error"
        return message, [], remedy or read_remedies().texts["all_stop"]
    furthest = STAGES[max(rank.stage for rank in ranks)]
    names = evidence.rank_names(behind)
    where = f"{names} stopped at the step `{log.stage}`, others reached `{furthest}`"
    if furthest == log.stage:  # at the first collective
        where = f"{names} did not begin the collective in which the others wait"
    message = f"the job stops without an error: {where}"
    return message, [rank.name for rank in behind], remedy


DETECTORS = (
    init_errors, qp_errors, slow_init, bootstrap_errors, nvls_errors, mixed_versions,
    missing_ranks, corrupt_results,
)  # fmt: skip
