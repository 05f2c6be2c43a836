"""Find the bad one: slow nodes and slow links, in few rounds of disjoint pairs.

`hunt` asks the caller to let pairs of nodes meet, and says who is to blame.  One round proves good
whoever was in a fast pair; the others then meet proven good nodes, which tells the bad node from
its innocent partner; nobody is blamed on one meeting.  `grouped` does the same with groups of
about sqrt(n) nodes, for faults that pairs are too small to show.

The idea that one fast meeting clears both nodes: a link is as fast as the slowest of its sender,
its receiver and the road between, so whoever was fast once can be fast.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from typing import TypeVar

Pair = tuple[str, str]  # two nodes that meet; the order says nothing
Link = tuple[str, str]  # (sender, receiver)
LinkEnd = tuple[str, str]  # (node, "sends" or "receives"): one direction of a node
Item = TypeVar("Item")
MeasurePairs = Callable[[list[list[Pair]]], Mapping[Link, float]]
MeasureGroups = Callable[[list[list[str]]], Sequence[float]]

MIN_EFFECT = 0.8  # the minimum effect size: what reaches this share of typical is never called slow
MAD_CUTOFF = 3.5  # in scaled MADs: Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993
MAD_SCALE = 1.4826  # scaled MAD: the standard deviation, where noise is normal
MIN_HEALTHY = 5  # healthy values, to tell what their noise is
NODE_SLOW_SHARE = 0.8  # of a node's links slow: the node is, whatever luck the others had
MIN_CHECKS = 2  # nodes proven good that look at a suspect before it is blamed, if there are two
MIN_QUICK_NODES = 8  # fewer: all pairs take 7 rounds at most, one round is too few to compare
MAX_FIRST_ROUNDS = 3  # first rounds to play before giving up on finding anybody good


@dataclass(frozen=True)
class FaultSearchResult:
    """What a hunt found.  Speeds in GB/s (1e9 bytes), one direction."""

    speeds: dict[Link, float]  # each link that met: the best of its meetings, 0 where all failed
    typical: float  # GB/s of a healthy link
    slow_nodes: dict[str, str]  # guilty node -> "sends", "receives" or "both": when it is slow
    slow_links: list[Link]  # guilty links, (sender, receiver), that no guilty node explains
    rounds: int  # played in all
    rechecks: int  # meetings that only checked what an earlier one had said
    coverage: str  # one sentence: who met, and what this hunt cannot see


def search_faults(
    nodes: Sequence[str],
    measure_pairs: MeasurePairs,
    matrix: bool = False,
    effect: float = MIN_EFFECT,
) -> FaultSearchResult:
    """Find the nodes and links that are slow, and which way they are slow.

    `measure_pairs` takes rounds of disjoint pairs and returns GB/s of both directions of each pair,
    by (sender, receiver); an entry that is missing or not a number is a meeting that failed, 0
    GB/s.  It is called several times, each time for the rounds that the answers so far suggest.

    Quick (the default) settles every node, but only the links that happened to meet: 1 round
    where all is well, about 3 with bad nodes.  `matrix` lets every pair meet (n - 1 rounds, n where
    n is odd) and settles every link too; so do fewer than 8 nodes always.  Up to about a third of
    the nodes may be bad.

    A link is slow below `effect` of the typical speed, if it is also beyond the noise: a fault that
    all share does not show.  Blame needs a node that is proven good: where there is none, and so
    always with two nodes, slow links stay links.  Links that are slower by design are reported as
    slow ones.  ValueError where a node is named twice.
    """
    if len(set(nodes)) < len(nodes):
        duplicates = sorted(name for name, count in Counter(nodes).items() if count > 1)
        raise ValueError(f"each node is to be named once, found twice: {', '.join(duplicates)}")
    search = _Search(list(nodes), measure_pairs, effect)
    search.measure_first(all_pairs=matrix or len(nodes) < MIN_QUICK_NODES)
    while schedule := search.suspect_round() or search.recheck_rounds():
        search.measure_rounds(schedule)
    return search.result()


def round_robin(items: Sequence[Item]) -> Iterator[list[tuple[Item, Item]]]:
    """Pair everybody once, in rounds in which nobody meets twice: n - 1 of them, n where n is odd.

    The circle method: one stays seated, the others move on by a chair.
    """
    count = len(items)
    order = list(range(count + count % 2))  # where n is odd, whoever faces the extra seat rests
    half = len(order) // 2
    for _ in range(len(order) - 1 if count > 1 else 0):
        opposite = zip(order[:half], reversed(order[half:]), strict=True)
        yield [(items[a], items[b]) for a, b in opposite if max(a, b) < count]
        order = [order[0], order[-1], *order[1:-1]]


def pack_rounds(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Put the pairs into rounds in which nobody meets twice: each into the first that is free."""
    schedule: list[list[Pair]] = []
    busy: list[set[str]] = []
    for pair in pairs:
        index = next((i for i, names in enumerate(busy) if names.isdisjoint(pair)), len(schedule))
        if index == len(schedule):
            schedule.append([])
            busy.append(set())
        schedule[index].append(pair)
        busy[index].update(pair)
    return schedule


def typical_speed(speeds: Iterable[float], effect: float = MIN_EFFECT) -> tuple[float, float]:
    """Tell (typical speed, the speed below which one is slow), in the unit of `speeds`.

    Median and MAD of the healthy body: the values within `effect` of the upper quartile.  Of all
    values they would mislead: 30 % bad nodes spoil half of the pairs.  Up to three quarters may be
    slow; what is 0 or not a number always is.
    """
    values = sorted(map(valid_speed, speeds)) or [0.0]
    upper = values[math.ceil(0.75 * (len(values) - 1))]
    healthy = [value for value in values if value >= effect * upper]
    typical = statistics.median(healthy)
    mad = statistics.median(abs(value - typical) for value in healthy)
    noise = MAD_SCALE * mad if len(healthy) >= MIN_HEALTHY else 0.0
    limit = min(effect * typical, typical - MAD_CUTOFF * noise)
    # Above zero, because a meeting that failed is slow even where all failed.
    return typical, max(limit, sys.float_info.min)


def valid_speed(speed: float | None) -> float:
    """Take what is missing, not a number or below 0 for a meeting that failed: 0."""
    return speed if speed is not None and math.isfinite(speed) and speed > 0 else 0.0


def attribute_slow_links(
    slow: Sequence[Link], measured: Iterable[Link], node_count: int
) -> tuple[list[LinkEnd], list[Link]]:
    """(ends of nodes nearly all of whose links are slow, slow links that no such end explains).

    An end is one direction of a node.  Greedy, the end with the largest share of slow links
    first; what it explains no longer counts against the other end of those links.
    """
    link_counts = Counter(end for link in measured for end in _link_ends(link))
    slow_at: dict[LinkEnd, set[Link]] = defaultdict(set)
    for link in slow:
        for end in _link_ends(link):
            slow_at[end].add(link)

    def weight(end: LinkEnd) -> tuple[float, int]:
        return -len(slow_at[end]) / max(link_counts[end], 1), -len(slow_at[end])

    min_links = min(2, node_count - 2)  # of three nodes, one link may be all that is left to go by
    queue = [(weight(end), end) for end, links in slow_at.items() if len(links) > 1]
    heapify(queue)
    guilty: dict[LinkEnd, None] = {}
    while queue:
        priority, worst = heappop(queue)
        if len(slow_at[worst]) < max(min_links, NODE_SLOW_SHARE * link_counts[worst]):
            continue
        if priority < weight(worst):  # others have explained some of it since: weights only shrink
            heappush(queue, (weight(worst), worst))
            continue
        guilty[worst] = None
        for link in slow_at[worst]:
            other_end = next(end for end in _link_ends(link) if end != worst)
            slow_at[other_end].discard(link)
            link_counts[other_end] -= 1
    return list(guilty), [link for link in slow if guilty.keys().isdisjoint(_link_ends(link))]


def _link_ends(link: Link) -> tuple[LinkEnd, LinkEnd]:
    return (link[0], "sends"), (link[1], "receives")


@dataclass
class _Search:
    """What is known so far, and who should meet next."""

    nodes: list[str]
    measure_pairs: MeasurePairs
    effect: float
    speeds: dict[Link, float] = field(default_factory=dict)
    counts: Counter[Link] = field(default_factory=Counter)  # how often a link met
    checked_by: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    typical: float = 0.0
    limit: float = 0.0
    rounds: int = 0
    rechecks: int = 0

    def measure_first(self, all_pairs: bool) -> None:
        """The first round, or all; typical is taken here, before the suspects are over-represented.

        Where the first round proves nobody good, a few more are tried.
        """
        schedule = round_robin(self.nodes)
        first = ([pairs] for pairs in islice(schedule, MAX_FIRST_ROUNDS))
        for batch in [list(schedule)] if all_pairs else first:
            self.measure_rounds(batch)
            self.typical, self.limit = typical_speed(self.speeds.values(), self.effect)
            if self.proven_good():
                return

    def measure_rounds(self, schedule: list[list[Pair]]) -> None:
        """Let them meet; a link's best meeting counts, as an obstacle may have been passing."""
        speeds = self.measure_pairs(schedule) if schedule else {}
        for a, b in chain.from_iterable(schedule):
            for link in ((a, b), (b, a)):
                self.speeds[link] = max(self.speeds.get(link, 0.0), valid_speed(speeds.get(link)))
                self.counts[link] += 1
        self.rounds += len(schedule)

    def suspect_round(self) -> list[list[Pair]]:
        """One round: whoever is not cleared meets a proven good node, until two have seen it."""
        proven = self.proven_good()
        blamed = {node for node, _ in self.attribution()[0]}
        available = [node for node in self.nodes if node in proven and node not in blamed]
        cleared = set(available)
        pairs = []
        for node in self.nodes:
            if node in cleared or len(self.checked_by[node]) >= MIN_CHECKS:
                continue
            checker = self.pick_checker(node, available)
            if checker is not None:
                self.rechecks += bool(self.checked_by[node]) or (node, checker) in self.speeds
                self.checked_by[node].add(checker)
                available.remove(checker)
                pairs.append((node, checker))
        return [pairs] if pairs else []

    def pick_checker(self, node: str, available: Iterable[str]) -> str | None:
        """One of the free nodes that it has not met, else one it met only in the first rounds."""
        unmeasured = (good for good in available if (node, good) not in self.speeds)
        fallback = (good for good in available if good not in self.checked_by[node])
        return next(chain(unmeasured, fallback), None)

    def recheck_rounds(self) -> list[list[Pair]]:
        """Slow links that no node explains meet once more."""
        links = self.attribution()[1]
        pairs = dict.fromkeys((min(link), max(link)) for link in links if self.counts[link] == 1)
        self.rechecks += len(pairs)
        return pack_rounds(pairs)

    def slow_links(self) -> list[Link]:
        return [link for link, speed in self.speeds.items() if speed < self.limit]

    def proven_good(self) -> set[str]:
        """Nodes that sent at speed at least once, and received at speed at least once."""
        fast = [link for link, speed in self.speeds.items() if speed >= self.limit]
        return {sender for sender, _ in fast} & {receiver for _, receiver in fast}

    def attribution(self) -> tuple[list[LinkEnd], list[Link]]:
        slow = self.slow_links()
        if not self.proven_good():
            return [], slow
        return attribute_slow_links(slow, self.speeds, len(self.nodes))

    def result(self) -> FaultSearchResult:
        guilty, links = self.attribution()
        directions: dict[str, list[str]] = defaultdict(list)
        for node, direction in guilty:
            directions[node].append(direction)
        nodes = {
            node: "both" if len(directions[node]) == 2 else directions[node][0]
            for node in self.nodes
            if node in directions
        }
        return FaultSearchResult(
            self.speeds, self.typical, nodes, links, self.rounds, self.rechecks, self.coverage()
        )

    def coverage(self) -> str:
        """Who met, and what that leaves unseen."""
        measured, pairs = len(self.speeds) // 2, math.comb(len(self.nodes), 2)
        rounds_text = f"{self.rounds} round{'s' * (self.rounds != 1)}"
        parts = [f"{measured} of {pairs} pairs, both directions, {rounds_text}"]
        if measured < pairs:
            parts.append("a link that did not meet is not judged")
        parts.append("judged against each other, so a fault that all share does not show")
        if self.slow_links() and not self.proven_good():
            parts.append("nobody is proven good, so no node is blamed")
        return "; ".join(parts)


def classify(bad: list[Pair], nodes: list[str]) -> tuple[list[str], list[Pair]]:
    """(nodes all of whose pairs are bad, bad pairs that no such node explains).

    Nodes are taken greedily, the one with most bad pairs first; with only two nodes a bad
    pair cannot be told apart, so it stays a pair.
    """
    guilty: list[str] = []
    remaining = list(bad)
    while remaining and len(nodes) > 2:
        counts = {
            node: sum(node in pair for pair in remaining) for node in nodes if node not in guilty
        }
        worst = max(counts, key=lambda node: counts[node])
        if counts[worst] < 2 or counts[worst] < len(nodes) - 1 - len(guilty):
            break
        guilty.append(worst)
        remaining = [pair for pair in remaining if worst not in pair]
    return guilty, remaining
