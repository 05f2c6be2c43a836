"""Why a job did not start, or starts wrong: findings INIT-* and NCCL-* from its log.

Causes and symptoms as in NCCL's troubleshooting guide.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from probes.findings import SHOWN, finding, listed
from probes.nccl.evidence import PLACES, hosts_of, names, places, told
from probes.nccl.job import STAGES, Rank, Sighting
from probes.nccl.log import Log
from probes.nccl.remedies import (
    FAMILIES,
    FIRST_COLLECTIVE,
    LATE,
    MESH,
    NOT_CONNECTED,
    QP_BROKE,
    QP_NOT_MADE,
    SLOW,
    Cause,
    cause_of,
)
from reports.record import Finding

PEER = re.compile(r"(?:to|peer) \[?([\w.:%\-]{1,255}?)\]?<\d+>")  # since 2.22 also by its name
PLAIN = {  # phrase -> code, and what it says of the host
    "no-interface": ("INIT-NO-IFACE", "NCCL found no network interface to use"),
    "memlock": ("INIT-MEMLOCK", "memory could not be registered for RDMA"),
    "mnnvl": ("INIT-MNNVL", "NVLink between hosts (MNNVL) cannot be used"),
    "limits": ("INIT-LIMITS", "a limit of the process was reached"),
    "shm": ("INIT-SHM", "no shared memory segment could be made in /dev/shm"),
    "duplicate-gpu": ("NCCL-DUP-GPU", "two ranks use one GPU"),
    "cuda": ("NCCL-ERROR", "NCCL failed while it worked"),
}
# Phrases that explain why init did not end, so that no rank is blamed for waiting.
STOPPERS = (
    *(*PLAIN, "refused", "retrying", "nvls", "version", "mixed-sockets"),
    *("qp", "qp-retrying", "qp-broke"),
)


def plain(log: Log) -> list[Finding]:
    """Errors that say what is wrong in their own words."""
    found = []
    for kind, (code, what) in PLAIN.items():
        if seen := log.seen[kind]:
            found += told(code, f"{what} ({seen[0].detail})", seen)
    return found


def queue_pairs(log: Log) -> list[Finding]:
    """RDMA connections that could not be made: a finding for each cause."""
    # NCCL tries again by itself; that is no error where it went well.
    tries = [] if log.partial else [s for s in log.seen["qp-retrying"] if log.of(s.rank).stuck]
    found = []
    for cause, seen in _by_cause(QP_NOT_MADE, [*log.seen["qp"], *tries]):
        hosts, detail = hosts_of(seen), seen[0].detail
        said = f"{listed(hosts)}: an RDMA connection cannot be made: {cause.what} ({detail})"
        at = places(seen)
        found.append(finding("INIT-QP", said, hosts[:SHOWN], evidence=at, remedy=cause.remedy))
    return found


def broken_pairs(log: Log) -> list[Finding]:
    """RDMA connections that broke: a finding for each cause."""
    found = []
    for cause, seen in _by_cause(QP_BROKE, log.seen["qp-broke"]):
        suspects = list(dict.fromkeys([*hosts_of(seen), *_peers(log, seen)]))
        said = (
            f"{listed(hosts_of(seen))}: an RDMA connection broke: {cause.what} ({seen[0].detail})"
        )
        at = places(seen)
        found.append(finding("INIT-QP", said, suspects[:SHOWN], evidence=at, remedy=cause.remedy))
    return found


def _by_cause(
    causes: tuple[Cause, ...], seen: list[Sighting]
) -> Iterable[tuple[Cause, list[Sighting]]]:
    found: dict[Cause, list[Sighting]] = {}
    for sighting in seen:
        found.setdefault(cause_of(causes, sighting.detail), []).append(sighting)
    return found.items()


def bootstrap(log: Log) -> list[Finding]:
    """Ranks that could not connect to a peer by TCP while they were starting."""
    tries = [*log.seen["refused"], *([] if log.partial else log.seen["retrying"])]
    seen = [s for s in tries if not log.of(s.rank).initialised]
    if not seen:
        return []
    peers, hosts = _peers(log, seen), hosts_of(seen)
    cause = cause_of(NOT_CONNECTED, seen[0].detail)
    said = f"{listed(hosts)}: cannot connect to {listed(peers) or 'a peer'} by TCP ({cause.what})"
    remedy = cause.remedy
    if mixed := two_families(log):
        said, remedy = f"{said}; {mixed[0]}", FAMILIES
    at = places(seen)
    return [finding("INIT-BOOTSTRAP", said, peers[:SHOWN] or hosts, evidence=at, remedy=remedy)]


def _peers(log: Log, seen: list[Sighting]) -> list[str]:
    """The peers that are named, each once."""
    return [peer for peer in dict.fromkeys(_peer(log, s.detail) for s in seen) if peer]


def _peer(log: Log, text: str) -> str:
    """The host whose address is named, else the address or the name."""
    match = PEER.search(text)
    if not match:
        return ""
    for name, host in log.hosts.items():
        ours = [host.bootstrap, *host.sockets] if host.bootstrap else host.sockets
        if match[1] in [address for _, address in ours]:
            return name
    return match[1]


def nvls(log: Log) -> list[Finding]:
    """NVLink SHARP multicast that failed or stopped."""
    stuck = [rank for rank in log.members if STAGES[rank.stage] == "nvls"]
    if log.seen["nvls"] or not stuck or log.partial or stopped_by_error(log):
        seen = log.seen["nvls"]
        what = f"NVLink multicast (NVLS) failed ({seen[0].detail})" if seen else ""
        return told("INIT-NVLS", what, seen)
    said = f"{names(stuck)}: init stops while NVLink multicast memory is bound"
    return [finding("INIT-NVLS", said, [rank.name for rank in stuck[:SHOWN]])]


def versions(log: Log) -> list[Finding]:
    """More than one NCCL version in one job."""
    found, seen = log.versions, log.seen["version"]
    if len(found) < 2 and not seen:
        return []
    told_by = "; ".join(f"{version} on {listed(hosts)}" for version, hosts in found.items())
    minority = min(found.values(), key=len) if len(found) > 1 else hosts_of(seen)
    said = f"the ranks run different NCCL versions: {told_by or seen[0].detail}"
    return [finding("NCCL-VERSION", said, minority[:SHOWN], evidence=places(seen))]


def missing_ranks(log: Log) -> list[Finding]:
    """Ranks that never wrote that they joined, while the others wait for them."""
    size, members = log.size, log.members
    world = [rank for rank in members if rank.ranks == size]
    waiting = [rank for rank in world if not rank.initialised]
    absent = sorted(set(range(size)) - {rank.rank for rank in world})
    on_the_way = [rank for rank in members if not rank.ranks]  # started, no number so far
    if len(log.jobs) > 1 or log.partial:
        return []
    if not waiting or len(absent) <= len(on_the_way) or stopped_by_error(log):
        return []
    who = f"rank{'s' if len(absent) > 1 else ''} {listed(map(str, absent))}"
    said = f"{who} of {size} never joined; {len(waiting)} others wait at {log.stage}"
    return [finding("INIT-MISSING-RANK", said, [f"rank {number}" for number in absent[:SHOWN]])]


def corrupt(log: Log) -> list[Finding]:
    """Wrong elements that nccl-tests counted."""
    if not log.corrupt:
        return []
    worst = max((wrong for _, wrong in log.corrupt), key=abs)
    most = f"up to {worst} in one" if worst > 0 else "a number of them that is no number"
    said = f"nccl-tests counted wrong elements in {len(log.corrupt)} rows, {most}"
    return [finding("NCCL-CORRUPT", said, evidence=[at for at, _ in log.corrupt[:PLACES]])]


def broken(log: Log) -> list[Finding]:
    """What torch said of NCCL: a collective that timed out, an error that NCCL returned."""
    if not log.errors:
        return []
    told_by = listed(dict.fromkeys(said for _, said in log.errors))
    at = [where for where, _ in log.errors[:PLACES]]
    return [finding("NCCL-ERROR", f"the job says: {told_by}", evidence=at)]


def stopped_by_error(log: Log) -> bool:
    """Whether some rank that is not done wrote an error that explains it."""
    return any(log.of(s.rank).stuck for kind in STOPPERS for s in log.seen[kind])


def slow(log: Log) -> list[Finding]:
    """A start over the limit, with the phase that took most; who came late where others waited."""
    if not log.slow:
        return []
    worst = max(log.slow, key=lambda start: start.total)
    phase, name = worst.phase, worst.rank.name
    said = (
        f"{name} took {worst.total:.1f} s to start, {worst.phases[phase]:.1f} s of them in "
        f"{phase}, expected under {worst.limit:.1f} s (half of what NCCL waits for a connection)"
    )
    first = log.quickest.get(worst.ranks, worst)
    if phase == "bootstrap" and first.bootstrap < worst.bootstrap / 2:
        late = first.rank.name
        said += f"; it waited for {late}, which was there {first.bootstrap:.1f} s"
        return [finding("INIT-SLOW", said, [late], remedy=LATE)]
    alike = sorted((s for s in log.slow if s.phase == phase), key=lambda start: -start.total)
    suspects = list(dict.fromkeys(start.rank.name for start in alike))[:SHOWN]
    return [finding("INIT-SLOW", said, suspects, remedy=SLOW.get(phase, ""))]


def hang(log: Log) -> list[Finding]:
    """Stopped without an error: the stage, and the ranks that lag behind.

    A rank that never had to connect holds nobody up, unless others are seen connecting.
    """
    members = log.members
    if log.partial or not any(rank.stuck for rank in members):
        return []  # the end of the file is no end of the job
    said, suspects, remedy = _families(log) or _before_the_network(log) or _behind(log, members)
    return [finding("INIT-HANG", said, suspects[:SHOWN], remedy=remedy)]


def two_families(log: Log) -> tuple[str, list[str]] | None:
    """Hosts that start over IPv4 beside hosts that start over IPv6; the minority."""
    hosts: dict[str, list[str]] = defaultdict(list)
    for name, host in log.hosts.items():
        if host.bootstrap:
            hosts["IPv6" if ":" in host.bootstrap[1] else "IPv4"].append(name)
    if len(hosts) < 2:
        return None
    few, many = sorted(hosts, key=lambda family: len(hosts[family]))
    uses = "uses" if len(hosts[few]) == 1 else "use"
    others = "uses" if len(hosts[many]) == 1 else "use"
    said = f"{listed(hosts[few])} {uses} {few}, {listed(hosts[many])} {others} {many}"
    return said, hosts[few]


def _families(log: Log) -> tuple[str, list[str], str] | None:
    found = two_families(log)
    if found is None or STAGES.index(log.stage) > STAGES.index("topology"):
        return None  # or they have met all the same
    said, suspects = found
    return f"the log stops at {log.stage} without an error, and {said}", suspects, FAMILIES


def _before_the_network(log: Log) -> tuple[str, list[str], str] | None:
    """Every process stops before NCCL looks at the network."""
    if log.networked or {rank.stage for rank in log.members} != {STAGES.index("bootstrap")}:
        return None
    said = f"all {len(log.members)} processes stop before any line about the network"
    return said, log.host_names, MESH


def _behind(log: Log, members: list[Rank]) -> tuple[str, list[str], str]:
    remedy = FIRST_COLLECTIVE if log.stage in ("connect", "first-collective") else ""
    least = min(rank.stage for rank in members)
    idle = [rank for rank in members if rank.stage == least and not rank.connecting]
    behind = idle or [rank for rank in members if rank.stuck]
    if len(behind) == len(members):
        said = f"the log of all {len(members)} ranks stops at {log.stage} without an error"
        return said, [], remedy
    others = STAGES[max(rank.stage for rank in members)]
    said = f"the log stops without an error: {names(behind)} at {log.stage}, others at {others}"
    return said, [rank.name for rank in behind], remedy
