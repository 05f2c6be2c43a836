"""Why a group of ranks did not start, or hangs: what ranks, logs and the network say of it.

Who hangs is asked in a second thread while it hangs: our deadline comes before torch's, for a rank
that gave up says nothing more.
"""

from __future__ import annotations

from collections import Counter

from probes.acceptance.measure import Ledger
from probes.cluster.cluster import Cluster
from probes.fabric.detect import narrow, of_the_log, silent_ranks, unreachable
from probes.fabric.library_report import RankLogs
from probes.fabric.nccl_ras import ras_status
from probes.fabric.node_pairs import reachability
from probes.fabric.stack_dump import Whereabouts, whereabouts
from probes.findings import SHOWN, finding
from reference_trainer.launch.gang import Gang, GangError, WorkerLost
from reports.record import Finding


def tell_why(
    cluster: Cluster,
    gang: Gang,
    names: dict[str, str],
    fabric: str | None,
    error: GangError,
    logs: RankLogs,
    measure: Ledger,
) -> None:
    """Name the cause, by what is known of the ranks; the gang is removed on the way.

    `names` are the nodes' as they were when the gang started: one may be gone by now.
    """
    hangs = not isinstance(error, WorkerLost)
    silent = silent_ranks(gang, names, str(error))  # first: what is asked next may block
    found = gang.ask(whereabouts)
    word = logs.says(gang, names)
    who = {rank: f"rank {rank} on {names[place.node]}" for rank, place in enumerate(gang.places)}
    measure.keep(
        "init.json",
        {
            "error": str(error),
            "ranks": {who[rank]: one for rank, one in found.items()},
            "stages": word.stages,
        },
        kind="log",
        caption="where each rank is: its stack, torch's flight recorder, and NCCL's log",
    )
    if hangs:
        keep_ras(cluster, measure)
    logged = of_the_log(word.report.findings, fabric) if word.report else []
    told = silent or [one for one in logged if one.code.startswith(("INIT-", "NCCL-"))]
    if not told and hangs and len(gang.jobs) == 1:  # else not all wait for each other
        told = apart(found, who, str(error))
    gang.remove()
    before = measure.explained  # the log is read from its beginning again
    more = [one for one in logged if one not in told and one.code not in before]
    measure.explain(told or [no_start(error, who)], more)
    measure.explain(who_reaches(cluster, names, word.interface or fabric, measure))


def no_start(error: GangError, who: dict[int, str]) -> Finding:
    """The error, and the ranks that it is of; of all of them nobody stands out."""
    lost = (error.ranks or error.failed) if isinstance(error, WorkerLost) else []
    lost = lost if len(lost) < len(who) else []
    return finding("FAB-NO-START", str(error), [who[rank] for rank in lost[:SHOWN]])


def apart(found: dict[int, Whereabouts], who: dict[int, str], error: str) -> list[Finding]:
    """The ranks that the others wait for: they are elsewhere, or began fewer collectives."""
    late = (behind(found) or elsewhere(found)) if found else []
    if not late:
        return []
    most = next(one for rank, one in found.items() if rank not in late)
    said = "; ".join(f"{who[rank]} is in {where(found[rank])}" for rank in late[:SHOWN])
    said = f"the others wait in {where(most)}; {said} ({error})"
    return [finding("INIT-HANG", said, [who[rank] for rank in late[:SHOWN]])]


def where(one: Whereabouts) -> str:
    """`all_reduce, its collective 3`."""
    begun = f"its collective {one['begun']}" if one["begun"] else "without a collective yet"
    return f"{one['at'] or 'nothing of ours'}, {begun}"


def behind(found: dict[int, Whereabouts]) -> list[int]:
    """Ranks that began fewer collectives than the one that came furthest."""
    came = {rank: (one["group"], one["begun"]) for rank, one in found.items()}
    furthest = max(came.values())
    return [rank for rank in came if came[rank] < furthest]


def elsewhere(found: dict[int, Whereabouts]) -> list[int]:
    """Ranks that are not in the function that more than half of them are in."""
    usual, ranks = Counter(one["at"] for one in found.values()).most_common(1)[0]
    if 2 * ranks <= len(found):
        return []
    return [rank for rank, one in found.items() if one["at"] != usual]


def who_reaches(
    cluster: Cluster, names: dict[str, str], interface: str | None, measure: Ledger
) -> list[Finding]:
    """Pairs of nodes that do not reach each other now, on the interface that was in use."""
    try:
        with cluster.gang() as fresh:
            cut = reachability(fresh, {**names, **cluster.names}, interface)
    except GangError as error:
        measure.covered(f"who reaches whom was not tried again: {error}")
        return []
    where = interface or "the interface of Ray"
    if len(cut.dead) == len(cut.nodes):
        measure.covered(f"who reaches whom was not tried again: no node has an address on {where}")
        return []
    blocked = len(cut.pairs) + len(cut.narrow or [])
    measure.covered(
        f"after the failure, on {where}: {blocked} pairs of nodes do not reach each other"
    )
    return [*unreachable(cut), *narrow(cut)]


def keep_ras(cluster: Cluster, measure: Ledger) -> None:
    """What NCCL's RAS service says on each node."""
    names = cluster.names
    for node, said in cluster.on_each_node(ras_status).items():
        if said:
            caption = f"what NCCL's RAS says on {names[node]}, after the deadline"
            measure.keep(f"ras-{names[node]}.txt", said, kind="log", caption=caption)
