"""Causes behind a red fabric: pure functions from what was measured to findings."""

from __future__ import annotations

from collections import Counter
from typing import Any

from probes.cluster.byte_counters import main_road
from probes.environment.lint import Flag
from probes.fabric.node_pairs import Crowds, Cut
from probes.fabric.sweep import Journey
from probes.findings import SHOWN, finding, listed
from reference_trainer.launch.gang import Gang
from reports.record import Finding, Limit, Verdict
from scaling.collectives.fault_search import Hunt, Link, attribute, blame

WAYS = {"sends": "when it sends", "receives": "when it receives", "both": "both ways"}
# Of NCCL's log: what proves nothing, what the rails' own measures judge, and what came late.
NO_FAULT = ("FAB-UNKNOWN-NET", "FAB-PARTIAL-RAILS", "INIT-SLOW")
DOUBTS = 3  # doubtful settings told in one sentence


def unreachable(cut: Cut) -> list[Finding]:
    """The nodes, else the pairs, that explain which pairs do not reach each other."""
    guilty, left = blame(cut.pairs, cut.nodes)
    found = []
    for node in dict.fromkeys([*cut.dead, *guilty]):
        why = cut.dead.get(node, "reaches no other node by TCP")
        found.append(finding("FAB-LINK-DOWN", f"{node}: {why}", [node]))
    for a, b in left:
        if a not in cut.dead and b not in cut.dead:
            said = f"{a} and {b} do not reach each other by TCP"
            found.append(finding("FAB-PAIR-BLOCKED", said, [a, b]))
    return found


def narrow(cut: Cut) -> list[Finding]:
    """The node whose MTU is another, else the pairs that full-size packets do not pass."""
    odd = odd_mtu(cut)
    if odd:
        told = ", ".join(f"{node} {cut.mtu[node]}" for node in odd)
        others = {mtu for node, mtu in cut.mtu.items() if node not in odd}
        said = f"MTU of the interface: {told}; the others {', '.join(map(str, others))}"
        return [finding("FAB-MTU", said, odd)]
    guilty, left = blame(cut.narrow or [], cut.nodes)
    packets = f"packets of {min(cut.mtu.values(), default=0)} bytes, unfragmented,"
    found = [
        finding("FAB-MTU", f"{packets} do not pass between {node} and others", [node])
        for node in guilty
    ]
    return found + [
        finding("FAB-MTU", f"{packets} do not pass between {a} and {b}", [a, b]) for a, b in left
    ]


def odd_mtu(cut: Cut) -> list[str]:
    """Nodes whose MTU is not that of most."""
    usual = Counter(cut.mtu.values()).most_common(1)
    return [node for node, mtu in cut.mtu.items() if mtu != usual[0][0]] if usual else []


def silent_ranks(gang: Gang, names: dict[str, str], error: str) -> list[Finding]:
    """After a time-out: the ranks whose processes do not even say where they are."""
    missing = gang.silent()
    if not missing:
        return []
    told = ", ".join(f"rank {rank} on {names[gang.places[rank].node]}" for rank in missing)
    suspects = [f"rank {rank}" for rank in missing]
    suspects += dict.fromkeys(names[gang.places[rank].node] for rank in missing)
    said = f"{told}: the process does not answer while the others wait for it ({error})"
    return [finding("INIT-MISSING-RANK", said, suspects)]


def settings_wrong(flags: list[Flag]) -> list[Finding]:
    """One finding per harmful setting; the doubtful ones in one."""
    found = [
        finding(flag.code, flag.statement, flag.nodes) for flag in flags if flag.severity == "fail"
    ]
    doubtful = [flag for flag in flags if flag.severity == "warn"]
    if doubtful:
        nodes = list(dict.fromkeys(node for flag in doubtful for node in flag.nodes))
        said = "; ".join(flag.statement for flag in doubtful[:DOUBTS])
        more = f"; {len(doubtful) - DOUBTS} more in settings.json" if len(doubtful) > DOUBTS else ""
        found.append(finding("ENV-DOUBTFUL", said + more, nodes))
    return found


def wrong_data(rows: list[dict[str, Any]], gang: Gang, names: dict[str, str]) -> list[Finding]:
    """Who received wrong elements, and the first offsets: one finding, as all ranks receive what
    one of them, or a link to it, spoilt."""
    offsets: dict[int, list[str]] = {}
    for row in rows:
        for rank, offset in row["first_wrong"]:
            offsets.setdefault(rank, []).append(f"element {offset} of {row['elements']}")
    if not offsets:
        return []
    ranks = sorted(offsets)
    told = "; ".join(
        f"rank {rank} on {names[gang.places[rank].node]} received a wrong {offsets[rank][0]}"
        for rank in ranks[:SHOWN]
    )
    more = f"; {len(ranks) - SHOWN} more ranks" if len(ranks) > SHOWN else ""
    suspects = [f"rank {rank}" for rank in ranks[:SHOWN]]
    suspects += dict.fromkeys(names[gang.places[rank].node] for rank in ranks[:SHOWN])
    return [finding("FAB-WRONG-DATA", told + more, suspects)]


def wrong_links(wrong: dict[Link, int]) -> list[Finding]:
    """The node that changes what it sends or receives, else the links that do."""
    bad = [link for link, count in wrong.items() if count]
    guilty, left = attribute(bad, wrong, len({node for link in wrong for node in link}))
    found = []
    for node, way in guilty:
        links = [link for link in bad if node == link[way == "receives"]]
        said = f"what {node} {way} is changed on the way: {sum(wrong[link] for link in links)} "
        said += f"wrong elements over {len(links)} links"
        found.append(finding("FAB-WRONG-LINK", said, [node]))
    for a, b in left:
        said = f"what {a} sends to {b} is changed on the way: {wrong[a, b]} wrong elements"
        found.append(finding("FAB-WRONG-LINK", said, [a, b]))
    return found


def of_the_log(found: list[Finding], fabric: str | None) -> list[Finding]:
    """What NCCL's log shows, less what is agreed: where TCP is the fabric, TCP is no fault."""
    starts = ("INIT-", "NCCL-", "FAB-ALONE", "FAB-LOOPBACK")
    return [one for one in found if fabric == "rdma" or one.code.startswith(starts)]


def log_faults(found: list[Finding]) -> list[Finding]:
    """Those of NCCL's log that are a fault by themselves where RDMA is agreed."""
    return [one for one in found if one.code not in NO_FAULT]


def wrong_road(journey: Journey, fabric: str | None) -> list[Finding]:
    """Nodes whose bytes went another way than the agreed fabric."""
    if fabric is None:
        return []
    strays = {
        node: main_road(sent) for node, sent in journey.sent.items() if main_road(sent) != fabric
    }
    if not strays:
        return []
    roads = ", ".join(sorted(set(strays.values())))
    said = f"gradient bytes of {', '.join(strays)} went over {roads}, not {fabric}"
    return [finding("FAB-WRONG-ROAD", said, list(strays))]


def slow_in_groups(crowds: Crowds, pairs: Hunt) -> list[Finding]:
    """Nodes whose groups are slow though their pairs are not, and groups that no node explains.

    Who is slow in pairs has a finding already.
    """
    blamed = {*pairs.nodes, *(node for link in pairs.links for node in link)}
    found = []
    for node in (node for node in crowds.nodes if node not in blamed):
        said = f"each group that {node} is in is slow, and its pairs are not"
        found.append(finding("FAB-SLOW-GROUP", said, [node]))
    for group in crowds.groups:
        if blamed.isdisjoint(group):
            said = f"{', '.join(group)} are slow together, and in other groups they are not"
            found.append(finding("FAB-SLOW-GROUP", said, group))
    wrong = {node: count for node, count in crowds.wrong.items() if count}
    if wrong:
        said = f"in groups of nodes {sum(wrong.values())} elements were wrong, on {listed(wrong)}"
        found.append(finding("FAB-WRONG-DATA", said, list(wrong)[:SHOWN]))
    return found


def slow_links(pairs: Hunt) -> list[Finding]:
    """The node or link that is slow, and which way."""
    found = []
    for node, way in pairs.nodes.items():
        links = {ends: gbs for ends, gbs in pairs.speeds.items() if node in _ends(ends, way)}
        said = (
            f"every link of {node} is slow {WAYS[way]}: {min(links.values()):.3f} GB/s "
            f"where others give {pairs.typical:.3f}"
        )
        found.append(finding("FAB-SLOW-LINK", said, [node]))
    for a, b in pairs.links:
        if (b, a) in pairs.links and (b, a) < (a, b):
            continue  # said once, for both ways
        arrow = "<->" if (b, a) in pairs.links else "->"
        slowest = min(pairs.speeds[link] for link in ((a, b), (b, a)) if link in pairs.links)
        said = f"{a} {arrow} {b}: {slowest:.3f} GB/s, others {pairs.typical:.3f}"
        found.append(finding("FAB-SLOW-LINK", said, [a, b]))
    return found


def is_slow(journey: Journey, limit: Limit | None) -> bool:
    """Whether the all-reduce of all misses the limit of its bus bandwidth."""
    return limit is not None and limit.judge(journey.peak["busbw"]) is Verdict.FAIL


def slow_everywhere(journey: Journey) -> Finding:
    """The fabric is slow as a whole: neither pairs nor groups show where."""
    said = f"all-reduce over {len(journey.sent)} nodes gives {journey.peak['busbw']:.3f} GB/s"
    return finding("FAB-SLOW", said, list(journey.sent))


def _ends(link: Link, way: str) -> list[str]:
    """The nodes of a link that could make it slow, given the way in which they are slow."""
    return {"sends": [link[0]], "receives": [link[1]]}.get(way, list(link))
