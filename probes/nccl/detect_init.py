"""Detects why a job did not start, or starts wrong: findings INIT-* and NCCL-* from its log.

Causes and symptoms are those of NCCL's troubleshooting guide.
"""

from __future__ import annotations

from collections import defaultdict

from probes.findings import MAX_NAMES, join_names
from probes.nccl import evidence, log_files
from probes.nccl.calls import ENDLESS, ErrorCause, find_cause, is_at_end, read_remedies
from probes.nccl.evidence import first_lines, hosts_of, message_findings, named_peers, one_finding
from probes.nccl.job import STAGES, MatchedMessage, Rank
from probes.nccl.log import Log
from probes.nccl.patterns import read_phrases, read_plain_errors
from reports.record import Finding


def init_errors(log: Log) -> list[Finding]:
    """Find errors whose own text names the cause.

    That no segment of shared memory could be made follows from a more specific error about it.
    """
    specific = [hit for kind in ("shm-cuda", "shm-denied", "shm-attach") for hit in log.hits[kind]]
    explained = {hit.rank.writer for hit in specific}
    findings = []
    for kind, (code, problem) in read_plain_errors().items():
        hits, remedy = log.hits[kind], read_remedies().errors.get(kind, "")
        if kind == "shm":
            hits = [hit for hit in hits if hit.rank.writer not in explained]
        if kind == "cuda":
            hits = [hit for hit in hits if not is_at_end(log, hit)]
        findings += message_findings(code, problem, hits, quote=True, remedy=remedy)
    return findings


def qp_errors(log: Log) -> list[Finding]:
    """Find RDMA connections that could not be made, and those that broke: one finding per cause."""
    # NCCL retries by itself: a retry that succeeded is no error.
    tries = [] if log.partial else [m for m in log.hits["qp-retrying"] if log.joined(m.rank).stuck]
    findings, known = [], read_remedies().causes
    for event, causes, hits in (
        ("cannot be made", known.qp_setup, [*log.hits["qp"], *tries]),
        ("broke", known.qp_break, log.hits["qp-broke"]),
    ):
        by_cause: dict[ErrorCause, list[MatchedMessage]] = {}
        for hit in hits:
            by_cause.setdefault(find_cause(causes, hit.detail), []).append(hit)
        for cause, alike in by_cause.items():
            hosts, peers = hosts_of(alike), named_peers(log, alike) if event == "broke" else []
            reason = f"{cause.reason} ({alike[0].detail}){_gid_news(log, hosts)}"
            message = f"{join_names(hosts) or 'the job'}: an RDMA connection {event}: {reason}"
            suspects = dict.fromkeys([*hosts, *peers])
            findings += one_finding("INIT-QP", message, suspects, first_lines(alike), cause.remedy)
    return findings


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


def bootstrap_errors(log: Log) -> list[Finding]:
    """Find ranks that could not connect to a peer by TCP while they were starting."""
    failures = [*log.hits["refused"], *([] if log.partial else log.hits["retrying"])]
    hits = [m for m in failures if not log.joined(m.rank).initialised]
    if not hits:
        return []
    peers, hosts = named_peers(log, hits), hosts_of(hits)
    cause = find_cause(read_remedies().causes.connect, hits[0].detail)
    peer = join_names(peers) or "a peer"
    message = f"{join_names(hosts) or 'the job'}: cannot connect to {peer} by TCP ({cause.reason})"
    remedy = cause.remedy
    if families := two_families(log):
        message, remedy = f"{message}; {families[0]}", read_remedies().texts["family"]
    suspects, lines = peers[:MAX_NAMES] or hosts, first_lines(hits)
    names = {"peer": hosts[0] if peers and hosts else ""}
    return one_finding("INIT-BOOTSTRAP", message, suspects, lines, remedy, names)


def nvls_errors(log: Log) -> list[Finding]:
    """Find NVLink SHARP multicast that failed or stopped."""
    stuck = [rank for rank in log.job_ranks if STAGES[rank.stage] == "nvls"]
    if log.hits["nvls"] or not stuck or log.partial or stopped_by_error(log):
        hits = log.hits["nvls"]
        return message_findings("INIT-NVLS", "NVLink multicast (NVLS) failed", hits, quote=True)
    names = evidence.rank_names(stuck)
    message = f"{names}: the start stops while NCCL binds the memory of NVLink multicast (NVLS)"
    return one_finding("INIT-NVLS", message, (rank.name for rank in stuck))


def mixed_versions(log: Log) -> list[Finding]:
    """Report more than one NCCL version in one job, or what else makes ranks disagree so early."""
    versions, hits, sizes = log.versions, log.hits["version"], log.hits["start-size"]
    if len(versions) < 2 and not hits:
        problem = "ranks expect different sizes of a message at the start of NCCL"
        remedy = read_remedies().texts["start_size"]
        return message_findings("NCCL-ERROR", problem, sizes, quote=True, remedy=remedy)
    hits = hits or sizes
    listing = "; ".join(f"{version} on {join_names(hosts)}" for version, hosts in versions.items())
    minority = min(versions.values(), key=len) if len(versions) > 1 else hosts_of(hits)
    message = f"the ranks run different NCCL versions: {listing or hits[0].detail}"
    return one_finding("NCCL-VERSION", message, minority, first_lines(hits))


def missing_ranks(log: Log) -> list[Finding]:
    """Find ranks that never logged that they joined, while the others wait for them."""
    size, members = log.world_size, log.job_ranks
    world = [rank for rank in members if rank.size == size]
    absent = sorted(set(range(size)) - {rank.number for rank in world})
    starting = [rank for rank in members if not rank.size]  # started, without a rank number so far
    if len(log.jobs) > 1 or log.partial or log_files.why_no_hang(log) or log_files.all_joined(log):
        return []
    if log_files.is_piece(log) and not (
        log.reported("report", *ENDLESS) and log_files.shows_most(log)
    ):
        return []  # it may end before the lines of the others
    if not world or len(absent) <= len(starting) or stopped_by_error(log):
        return []
    missing = log_files.number_ranks(absent)
    stage = STAGES[min(rank.stage for rank in world)]
    message = (
        f"{missing} of {size} never joined the job. {len(world)} others wait for them at the step "
        f"`{stage}` of NCCL's start"
    )
    suspects = (f"rank {number}" for number in absent)
    return one_finding("INIT-MISSING-RANK", message, suspects, names={"rank": absent[0]})


def corrupt_results(log: Log) -> list[Finding]:
    """Report wrong elements that nccl-tests counted."""
    if not log.bad_rows:
        return []
    worst = max((wrong for _, wrong in log.bad_rows), key=abs)
    extent = f"up to {worst} in one" if worst > 0 else "one count is not a number"
    message = f"nccl-tests found wrong values in {len(log.bad_rows)} rows, {extent}"
    return one_finding("NCCL-CORRUPT", message, lines=(line for line, _ in log.bad_rows))


def stopped_by_error(log: Log) -> bool:
    """Return whether some rank that is not done logged an error that explains it."""
    kinds = {*read_plain_errors(), *(one.kind for one in read_phrases() if one.blocks)}
    return any(log.joined(m.rank).stuck for kind in kinds for m in log.hits[kind])


def slow_init(log: Log) -> list[Finding]:
    """Find a start over the limit, with its longest phase or the rank that came late."""
    if not log.slow_inits:
        return []
    worst = max(log.slow_inits, key=lambda t: t.total)
    phase, name = worst.longest_phase, worst.rank.name
    message = (
        f"{name} took {worst.total:.1f} s to start, {worst.phases[phase]:.1f} s of it in the phase "
        f"`{phase}`. Expected: under {worst.limit:.1f} s (half of NCCL's time-out for a connection)"
    )
    fastest = log.fastest.get(worst.ranks, worst)
    if phase == "bootstrap" and fastest.bootstrap_s < worst.bootstrap_s / 2:
        late = fastest.rank.name
        message += f". {late} joined last: it spent only {fastest.bootstrap_s:.1f} s in it"
        return one_finding("INIT-SLOW", message, [late], remedy=read_remedies().texts["late"])
    same = sorted((t for t in log.slow_inits if t.longest_phase == phase), key=lambda t: -t.total)
    suspects = dict.fromkeys(t.rank.name for t in same)
    remedy = read_remedies().phases.get(phase, "")
    return one_finding("INIT-SLOW", message, suspects, remedy=remedy)


def find_hang(log: Log) -> list[Finding]:
    """Find the stage where the job stopped without an error, and the ranks that lag behind.

    Ranks with no connections to make are ignored unless other ranks are still connecting.
    """
    ranks = log.job_ranks
    if log.partial or not any(rank.stuck for rank in ranks):
        return []  # the end of the file is not the end of the job
    shown = _by_family(log)  # by the lines that are here
    if not shown and (log_files.why_no_hang(log) or log_files.ends_early(log)):
        return []
    if log.hits["unknown"] and not log.every_rank:
        return []  # an error that is not known is an error
    message, suspects, remedy = shown or _before_network(log) or _lagging(log, ranks)
    if log_files.shows_order(log):
        message += (
            ". The other ranks wrote lines after the last lines of these ranks (unless somebody "
            "removed lines from the file)"
        )
    reports = [one.line for one in log.reported("timeout", "work")]
    return one_finding("INIT-HANG", message, suspects, reports, remedy)


def start_without_end(log: Log) -> list[Finding]:
    """Find a start in which all ranks waited until the job gave up: no rank failed to join."""
    return find_hang(log) if log_files.gave_up(log) else []


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


def _lagging(log: Log, ranks: list[Rank]) -> tuple[str, list[str], str]:
    connects = log.stage in ("connect", "first-collective")
    remedy = read_remedies().texts["collective"] if connects else ""
    lowest = min(rank.stage for rank in ranks)
    idle = [rank for rank in ranks if rank.stage == lowest and not rank.connecting]
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
