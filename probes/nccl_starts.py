"""Why a job did not start, or starts wrong: findings INIT-* and NCCL-* from its log.

Causes and symptoms as in NCCL's troubleshooting guide.
"""

from __future__ import annotations

import re

from probes.findings import SHOWN, finding, listed
from probes.nccl_job import STAGES
from probes.nccl_log import Log
from probes.nccl_sightings import PLACES, hosts_of, names, places, told
from reports.record import Finding

PEER = re.compile(r"(?:to|peer) \[?([\da-fA-F.:]+?)\]?<(\d+)>")
PLAIN = {  # phrase -> code, and what it says of the host
    "no-interface": ("INIT-NO-IFACE", "NCCL found no network interface to use"),
    "qp": ("INIT-QP", "an RDMA connection could not be made or broke"),
    "memlock": ("INIT-MEMLOCK", "memory could not be registered for RDMA"),
    "shm": ("INIT-SHM", "no shared memory segment could be made in /dev/shm"),
    "duplicate-gpu": ("NCCL-DUP-GPU", "two ranks use one GPU"),
    "cuda": ("NCCL-ERROR", "NCCL failed while it worked"),
}
# Phrases that explain why init did not end, so that no rank is blamed for waiting.
STOPPERS = (*PLAIN, "refused", "retrying", "nvls", "version", "mixed-sockets")


def plain(log: Log) -> list[Finding]:
    """Errors that say what is wrong in their own words."""
    found = []
    for kind, (code, what) in PLAIN.items():
        if seen := log.seen[kind]:
            found += told(code, f"{what} ({seen[0].detail})", seen)
    return found


def bootstrap(log: Log) -> list[Finding]:
    """Ranks that could not connect to a peer by TCP while they were starting."""
    tries = [*log.seen["refused"], *([] if log.partial else log.seen["retrying"])]
    seen = [s for s in tries if not log.of(s.rank).initialised]
    if not seen:
        return []
    peers = [peer for peer in dict.fromkeys(_peer(log, s.detail) for s in seen) if peer]
    reasons = ("refused", "timed out", "o route", "nreachable")
    why = next((reason for reason in reasons if reason in seen[0].detail), "failed")
    why = {"o route": "no route", "nreachable": "unreachable"}.get(why, why)
    hosts = hosts_of(seen)
    said = f"{listed(hosts)}: cannot connect to {listed(peers) or 'a peer'} by TCP ({why})"
    return [finding("INIT-BOOTSTRAP", said, peers[:SHOWN] or hosts, evidence=places(seen))]


def _peer(log: Log, text: str) -> str:
    """The host whose address is named, else the address."""
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
        return told("INIT-NVLS", "NVLink multicast (NVLS) failed", log.seen["nvls"])
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


def hang(log: Log) -> list[Finding]:
    """Stopped without an error: the stage, and the ranks that lag behind.

    A rank that never had to connect holds nobody up, unless others are seen connecting.
    """
    members = log.members
    if log.partial or not any(rank.stuck for rank in members):
        return []  # the end of the file is no end of the job
    least = min(rank.stage for rank in members)
    idle = [rank for rank in members if rank.stage == least and not rank.connecting]
    behind = idle or [rank for rank in members if rank.stuck]
    if len(behind) == len(members):
        said = f"the log of all {len(members)} ranks stops at {log.stage} without an error"
        return [finding("INIT-HANG", said)]
    others = STAGES[max(rank.stage for rank in members)]
    said = f"the log stops without an error: {names(behind)} at {log.stage}, others at {others}"
    return [finding("INIT-HANG", said, [rank.name for rank in behind[:SHOWN]])]


def stopped_by_error(log: Log) -> bool:
    """Whether some rank that is not done wrote an error that explains it."""
    return any(log.of(s.rank).stuck for kind in STOPPERS for s in log.seen[kind])
