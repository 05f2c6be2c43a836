"""Causes behind a red fabric: pure functions from what was measured to findings."""

from __future__ import annotations

from collections.abc import Callable

from probes.counters import main_road
from probes.findings import finding
from probes.pairs import Cut
from probes.roads import Journey
from reference_trainer.gang import Gang
from reports.record import Finding, Limit, Verdict
from scaling.search import Pair, blame, typical


def unreachable(cut: Cut) -> list[Finding]:
    """The nodes, else the pairs, that explain which pairs do not reach each other."""
    guilty, left = blame(cut.pairs, cut.nodes)
    found = []
    for node in dict.fromkeys([*cut.dead, *guilty]):
        why = cut.dead.get(node, "reaches no other node on the fabric")
        found.append(finding("FAB-LINK-DOWN", f"{node}: {why}", [node]))
    for a, b in left:
        if a not in cut.dead and b not in cut.dead:
            said = f"{a} and {b} do not reach each other on the fabric"
            found.append(finding("FAB-PAIR-BLOCKED", said, [a, b]))
    return found


def wrong_data(journey: Journey, gang: Gang, names: dict[str, str]) -> list[Finding]:
    """Ranks and offsets of wrong elements."""
    found = []
    for row in journey.rows:
        for rank, offset in row["first_wrong"]:
            node = names[gang.places[rank].node]
            said = f"rank {rank} on {node}: element {offset} of {row['size'] // 4} is wrong"
            found.append(finding("FAB-WRONG-DATA", said, [node]))
    return found


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


def slow_links(
    journey: Journey, pairs: dict[Pair, float], limits: Callable[[str], Limit | None]
) -> list[Finding]:
    """The node or pair that is slow; or the fabric as a whole."""
    ratio, rate = limits("slowest_pair"), limits("busbw")
    found = []
    if ratio and ratio.low is not None and pairs:
        usual = typical(pairs)
        slow = [pair for pair, gbs in pairs.items() if gbs < ratio.low * usual]
        guilty, left = blame(slow, list(journey.sent))
        for node in guilty:
            worst = min(gbs for pair, gbs in pairs.items() if node in pair)
            said = f"every pair with {node} is slow: {worst:.3f} GB/s where others give {usual:.3f}"
            found.append(finding("FAB-SLOW-LINK", said, [node]))
        for a, b in left:
            said = f"{a} - {b}: {pairs[a, b]:.3f} GB/s where others give {usual:.3f}"
            found.append(finding("FAB-SLOW-LINK", said, [a, b]))
    slow_overall = rate is not None and rate.judge(journey.peak["busbw"]) is Verdict.FAIL
    if slow_overall and not found:
        said = f"all-reduce over {len(journey.sent)} nodes gives {journey.peak['busbw']:.3f} GB/s"
        found.append(finding("FAB-SLOW", said, list(journey.sent)))
    return found
