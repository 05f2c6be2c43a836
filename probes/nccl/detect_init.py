"""Detects why a job did not start, or starts wrong: findings INIT-* and NCCL-* from its log.

Causes and symptoms are those of NCCL's troubleshooting guide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from probes.findings import MAX_NAMES, join_names
from probes.nccl.calls import ErrorCause, find_cause, is_at_end, read_remedies
from probes.nccl.evidence import (
    first_lines,
    hosts_of,
    message_findings,
    name_hosts,
    named_peers,
    one_finding,
    rank_names,
)
from probes.nccl.hang import missing_ranks, stopped_by_error, two_families
from probes.nccl.job import STAGES, MatchedMessage
from probes.nccl.log import Log
from probes.nccl.patterns import read_plain_errors
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
        message = f"{rank_names(stuck)}: {stops}"
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


def corrupt_results(log: Log) -> Iterator[Finding]:
    """Report wrong elements that nccl-tests counted."""
    if log.others.bad_rows:
        worst = max((wrong for _, wrong in log.others.bad_rows), key=abs)
        extent = f"up to {worst} in one" if worst > 0 else "one count is not a number"
        message = f"nccl-tests found wrong values in {len(log.others.bad_rows)} rows, {extent}"
        yield one_finding("NCCL-CORRUPT", message, lines=(line for line, _ in log.others.bad_rows))


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


DETECTORS = (
    init_errors, qp_errors, slow_init, bootstrap_errors, nvls_errors, mixed_versions,
    missing_ranks, corrupt_results,
)  # fmt: skip
