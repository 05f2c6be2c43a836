"""Searches for slow nodes and slow links, in few rounds of disjoint pairs.

`search_faults` asks the caller to measure pairs of nodes, and names the slow nodes and links. The
first round proves both nodes of each fast pair good. The other nodes then meet proven good nodes,
which separates a bad node from its good partner. No node is blamed after one meeting.
`search_groups` does the same with groups of about sqrt(n) nodes, for faults that pairs are too
small to show.

One fast meeting clears both nodes. A link is as fast as the slowest of its sender, its receiver and
the path between them. A node that was fast once can be fast.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import accumulate, chain, islice, zip_longest
from statistics import NormalDist, median
from typing import TypeVar

from reports.groups import group_pairs

Pair = tuple[str, str]  # two nodes that meet; the order has no meaning
Link = tuple[str, str]  # (sender, receiver)
LinkEnd = tuple[str, str]  # (node, "sends" or "receives"): one direction of a node
Item = TypeVar("Item")
MeasurePairs = Callable[[list[list[Pair]]], Mapping[Link, float]]
MeasureAlone = Callable[[list[Link]], Mapping[Link, float]]
MeasureGroups = Callable[[list[list[str]]], Sequence[float]]

MIN_EFFECT = 0.8  # minimum effect size: a speed of this share of typical is never slow
FALSE_ALARMS = 0.01  # share of sound runs in which some member may be accused
MAX_SPREAD = 0.03  # standard deviation among sound members that is still normal, as a share
MAD_VARIANCE = 1.36  # of the scaled MAD of n normal values, x n, as a share of its square
HEALTHY_SHARE = 0.9  # three normal deviations: values below it do not say how large the noise is
ALIKE = 0.92  # a job hardly sees 8 %: populations that are closer are both sound
MIXED = 0.8  # share of the variance that is between two populations; half a normal one each: 0.64
MIN_APART = 0.03  # populations that are closer lie within the normal spread
MAD_SCALE = 1.4826  # MAD x this estimates the standard deviation of normal noise
MIN_HEALTHY = 5  # healthy values needed to estimate their noise
FEW_CUT = 0.1  # the most that an unknown spread counts for
FEW = 8  # values of which a single one shows what is possible: nodes of a small cluster
NODE_SLOW_SHARE = 0.8  # share of a node's links that must be slow to blame the node
MIN_CHECKS = 2  # good nodes that check a suspect before it is blamed, if that many exist
# With fewer nodes, all pairs need 7 rounds at most, and one round has too few pairs to compare.
MIN_QUICK_NODES = 8
FEW_ALONE = 4  # far pairs that show what one alone can do: `typical_speed` asks for two links


# What the coverage says where not every pair met, and where near pairs are no measure of far ones.
UNSEEN = (
    "Links that were not tested are not judged. Near nodes in the order of addresses are taken for "
    "nodes of one switch: where they are not, a narrow uplink can stay unseen"
)
OWN_PATHS = (
    "Near nodes are not compared with far ones, whose pairs are slower alone too: near nodes may "
    "share a host or NVLink, or uplinks are slow, which groups of nodes show"
)


@dataclass(frozen=True)
class FaultSearchResult:
    """Result of a search. Speeds are in GB/s (1e9 bytes), one direction."""

    speeds: dict[Link, float]  # GB/s of each measured link: its best meeting, 0 if all failed
    typical: float  # GB/s of a healthy link
    slow_nodes: dict[str, str]  # guilty node -> slow direction: "sends", "receives" or "both"
    slow_links: list[Link]  # guilty links, (sender, receiver), that no guilty node explains
    rounds: int  # measured in total
    rechecks: int  # meetings that only repeated an earlier check
    coverage: str  # one sentence: which pairs were measured, and what was not judged
    limit: float = 0.0  # GB/s below which a link is slow


def search_faults(
    nodes: Sequence[str], measure_pairs: MeasurePairs, matrix: bool = False
) -> FaultSearchResult:
    """Find the nodes and links that are slow, and in which direction.

    `measure_pairs` takes rounds of disjoint pairs. It returns GB/s of both directions of each
    pair, by (sender, receiver). An entry that is missing or not a number is a failed meeting: 0
    GB/s. It is called several times, each time for the rounds that the results so far require.

    The default search judges every node, but only the links that were measured. It needs 2 rounds
    if all is well, one of far and one of near pairs, and about 4 with bad nodes. `matrix` measures
    every pair and judges every link. That takes n - 1 rounds, n if n is odd. With fewer than 8
    nodes every pair is always measured. Up to about a third of the nodes may be bad.

    A link is slow if it is below MIN_EFFECT of the typical speed and also beyond the noise. Links
    are compared with each other, so a fault that all links share is not found. A node is blamed
    only if some node is proven good. Without one, and so always with two nodes, slow links are
    reported as links. Links that are slower by design are reported as slow. Raises ValueError
    if a node is named twice.
    """
    return search_rails([nodes], measure_pairs, matrix)


def search_rails(
    rails: Sequence[Sequence[str]],
    measure_pairs: MeasurePairs,
    matrix: bool = False,
    effect: float = MIN_EFFECT,
    known: tuple[float, float] | None = None,
    first: list[list[Pair]] | None = None,
    measure_alone: MeasureAlone | None = None,
) -> FaultSearchResult:
    """Search several rails as `search_faults` does one network; all are compared with each other.

    `rails` holds the ports of each rail, by a name of their own. Only ports of one rail meet. A
    round has the disjoint pairs of all rails, so a rail that is slow everywhere is found too.
    `known` is what `typical_speed` returns, where it does not follow from the first meetings.
    `first` are the rounds that all meet, in place of the first ones. `measure_alone` measures links
    while no other pair sends: it is asked where far pairs are slow alike (`judge_far_alone`).
    """
    ports = [port for rail in rails for port in rail]
    if duplicates := sorted(name for name, count in Counter(ports).items() if count > 1):
        raise ValueError(f"expected each node once, found twice: {', '.join(duplicates)}")
    search = _Search([list(rail) for rail in rails], measure_pairs, effect, known, measure_alone)
    every = matrix or search.rail_size < MIN_QUICK_NODES
    search.measure_first(plan_rounds(rails) if every else first)
    while schedule := search.suspect_round() or search.recheck_rounds():
        search.measure_rounds(schedule)
    return search.result()


def round_robin(items: Sequence[Item]) -> Iterator[list[tuple[Item, Item]]]:
    """Yield rounds of disjoint pairs in which each pair meets once: n - 1 rounds, n if n is odd.

    Circle method: one item keeps its place, the others move on by one.  The earlier item of a pair
    is its first: all that cross an uplink then send the same way at once.
    """
    count = len(items)
    order = list(range(count + count % 2))  # if n is odd, the partner of the extra place rests
    half = len(order) // 2
    for _ in range(len(order) - 1 if count > 1 else 0):
        opposite = zip(order[:half], reversed(order[half:]), strict=True)
        pairs = (sorted(pair) for pair in opposite)
        yield [(items[a], items[b]) for a, b in pairs if b < count]
        order = [order[0], order[-1], *order[1:-1]]


def plan_rounds(rails: Sequence[Sequence[str]]) -> Iterator[list[Pair]]:
    """Yield the rounds in which each pair of a rail meets once, on all rails at the same time."""
    for rounds in zip_longest(*map(round_robin, rails), fillvalue=()):
        yield [pair for pairs in rounds for pair in pairs]


def near_round(rails: Sequence[Sequence[str]]) -> list[Pair]:
    """Pair each node with the next but one, in fours: nodes of one switch, if the order follows it.

    All far pairs may cross one narrow uplink and be slow alike: a round of near pairs shows it. The
    next node of all may be a virtual machine of the same host, whose bytes do not leave it. Up to
    three nodes at the end rest.
    """
    pairs = (zip(rail[at::4], rail[at + 2 :: 4], strict=False) for rail in rails for at in (0, 1))
    return [*chain.from_iterable(pairs)]


def pack_rounds(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Pack the pairs into rounds of disjoint pairs: each pair goes into the first free round."""
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


def typical_speed(
    speeds: Iterable[float], effect: float = MIN_EFFECT, operations: int = 1
) -> tuple[float, float]:
    """Return (typical speed, speed below which a member is slow), in the unit of `speeds`.

    Both come from median and noise of the healthy values, which are near the upper quartile: 30 %
    bad nodes slow down half of the pairs.  If most are slower than the best, beyond the noise and
    by more than 8 % (or `effect`, if that is more), those near the best are the healthy ones: they
    show what is possible.  Of two sound populations the slower one sets the limit.  A value that
    is 0 or not a number is always slow.  `operations` are compared in one run.
    """
    values = sorted(map(valid_speed, speeds)) or [0.0]
    share = min(effect, HEALTHY_SHARE)
    # Of many the second best: one value alone may be wrong.
    fast = values[-2 if len(values) > FEW else -1]
    upper, best = (
        values[bisect_left(values, share * top) :]
        for top in (values[math.ceil(0.75 * (len(values) - 1))], fast)
    )
    # A limit of 10 % or more is below both of two sound populations.
    count = split_populations(upper) if effect > HEALTHY_SHARE else 0
    slower, faster = upper[:count], upper[count:]
    if slower and median(slower) < ALIKE * median(faster):
        slower = []
    typical, base = median(slower + faster), median(slower or faster)
    keep = min(effect, 1 - noise_cut([slower, faster], operations * len(values)))
    if typical < min(keep, ALIKE) * median(best):
        typical = base = median(best)
    # Above zero, so that a failed meeting (0) is slow even if all failed.
    return typical, max(keep * base, sys.float_info.min)


def noise_cut(populations: Sequence[Sequence[float]], comparisons: int) -> float:
    """Return how far below typical noise brings a sound value, as a share of typical.

    It is z x spread x sqrt(1 + pi / 2n), where z is the normal quantile of
    1 - FALSE_ALARMS / (2 x comparisons): some of all comparisons in a run, slow or fast, are beyond
    it in 1 % of sound runs.  The root is for the error of a median of n.  The spread is the scaled
    MAD / sqrt(1 - MAD_VARIANCE x z^2 / n), for the MAD has an error too, but at most MAX_SPREAD, or
    the scaled MAD if that is more.  Of few values this root says nothing: then FEW_CUT is enough.
    """
    apart = [abs(v / mid - 1) for p in populations if p and (mid := median(p)) for v in p]
    if len(apart) < MIN_HEALTHY:
        return 0.0
    spread, z = MAD_SCALE * median(apart), NormalDist().inv_cdf(1 - FALSE_ALARMS / 2 / comparisons)
    share, z = 1 - MAD_VARIANCE * z * z / len(apart), z * math.sqrt(1 + math.pi / 2 / len(apart))
    if share <= 0:
        return max(z * spread, min(z * MAX_SPREAD, FEW_CUT))
    return z * min(spread / math.sqrt(share), max(spread, MAX_SPREAD))


def split_populations(values: Sequence[float]) -> int:
    """Count those of the sorted values that are a slower population; 0 if there is only one.

    It is the split with most variance between both (Otsu, 1979).  Each has a quarter at least.
    """
    size, mean = len(values), sum(values) / max(len(values), 1)
    least, sums = max(MIN_HEALTHY, math.ceil(size / 4)), [0.0, *accumulate(values)]
    between, count = max(
        ((sums[n] - n * mean) ** 2 * size / (n * (size - n)), n)
        for n in range(least, size - least + 1)
    ) if size >= 2 * least else (0.0, 0)  # fmt: skip
    if between <= MIXED * sum((value - mean) ** 2 for value in values):
        return 0
    is_apart = median(values[:count]) < (1 - MIN_APART) * median(values[count:])
    return count if is_apart else 0


def valid_speed(speed: float | None) -> float:
    """Return the speed, or 0 (a failed meeting) if it is missing, not a number or negative."""
    return speed if speed is not None and math.isfinite(speed) and speed > 0 else 0.0


def attribute_slow_links(
    slow: Sequence[Link], measured: Iterable[Link], node_count: int
) -> tuple[list[LinkEnd], list[Link]]:
    """Return (guilty node ends, slow links that none of them explains).

    An end is one direction of a node. It is guilty if NODE_SLOW_SHARE of its links are slow.
    The search is greedy: the end with the largest share of slow links comes first. Links that
    it explains no longer count for the end at their other side.  In the end, an end is not guilty
    whose links the others explain: of four nodes where three send slowly, one receives slowly.
    """
    link_counts = Counter(end for link in measured for end in _link_ends(link))
    slow_at: dict[LinkEnd, set[Link]] = defaultdict(set)
    for link in slow:
        for end in _link_ends(link):
            slow_at[end].add(link)

    def weight(end: LinkEnd) -> tuple[float, int]:
        return -len(slow_at[end]) / max(link_counts[end], 1), -len(slow_at[end])

    min_links = min(2, node_count - 2)  # with three nodes, only one link may be left to judge by
    queue = [(weight(end), end) for end, links in slow_at.items() if len(links) > 1]
    heapify(queue)
    guilty, links_of = dict[LinkEnd, None](), {end: [*links] for end, links in slow_at.items()}
    while queue:
        priority, worst = heappop(queue)
        if len(slow_at[worst]) < max(min_links, NODE_SLOW_SHARE * link_counts[worst]):
            continue
        if priority < weight(worst):  # outdated: links were explained since; weights only shrink
            heappush(queue, (weight(worst), worst))
            continue
        guilty[worst] = None
        for link in slow_at[worst]:
            other_end = next(end for end in _link_ends(link) if end != worst)
            slow_at[other_end].discard(link)
            link_counts[other_end] -= 1
    for end in [*guilty]:
        others = guilty.keys() - {end}
        if not any(others.isdisjoint(_link_ends(link)) for link in links_of[end]):
            del guilty[end]
    return list(guilty), [link for link in slow if guilty.keys().isdisjoint(_link_ends(link))]


def _link_ends(link: Link) -> tuple[LinkEnd, LinkEnd]:
    return (link[0], "sends"), (link[1], "receives")


@dataclass
class _Search:
    """State of a search: what was measured, and which nodes to measure next."""

    rails: list[list[str]]
    measure_pairs: MeasurePairs
    effect: float
    known: tuple[float, float] | None = None
    measure_alone: MeasureAlone | None = None
    speeds: dict[Link, float] = field(default_factory=dict)
    counts: Counter[Link] = field(default_factory=Counter)  # meetings of each link
    pair_of: dict[Link, Pair] = field(default_factory=dict)  # of each link, as it met first
    checked_by: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    typical: float = 0.0
    limit: float = 0.0
    rounds: int = 0
    rechecks: int = 0
    has_own_paths: bool = False

    def __post_init__(self) -> None:
        self.nodes = [node for rail in self.rails for node in rail]
        self.rail_of = {node: index for index, rail in enumerate(self.rails) for node in rail}
        self.rail_size = max(map(len, self.rails), default=0)

    def measure_first(self, rounds: Iterable[list[Pair]] | None) -> None:
        """Measure a far and a near round, or these, and take the typical speed from them.

        Later rounds would distort the typical speed, because suspects are over-represented
        in them.
        """
        near = near_round(self.rails)
        far_and_near = [*islice(plan_rounds(self.rails), 1), near]
        self.measure_rounds(far_and_near if rounds is None else [*rounds])
        self.take_typical(self.speeds.values())
        self.judge_far_alone({link for pair in near for link in (pair, pair[::-1])})

    def take_typical(self, speeds: Iterable[float]) -> None:
        """Take the typical speed of these, or the known one: its pairs may share what is slow."""
        found = typical_speed(speeds, self.effect)
        self.typical, self.limit = max(self.known, found) if self.known else found

    def judge_far_alone(self, near: Collection[Link]) -> None:
        """Compare far pairs with what such a pair reaches alone, where most of them are slow.

        Near pairs only raise the doubt: they may have a path of their own, in a host or by NVLink.
        Where uplinks are so slow that one pair alone is slow too, groups of nodes show it.  A pair
        with a slow node says nothing of paths: it does not count.
        """
        met, limit = {link: self.speeds[link] for link in near if link in self.speeds}, self.limit
        _, near_limit = typical_speed(met.values(), self.effect)
        bad = {node for link, speed in met.items() if speed < near_limit for node in link}
        far = [link for link in self.speeds if link not in near and bad.isdisjoint(link)]
        slow = [link for link in far if self.speeds[link] < limit]
        if not self.measure_alone or 2 * len(slow) <= len(far):
            return
        if alone := self.measure_alone(slow[: 2 * FEW_ALONE]):
            self.take_typical([*(self.speeds[link] for link in slow), *alone.values()])
            self.has_own_paths = self.typical < limit

    def measure_rounds(self, schedule: list[list[Pair]]) -> None:
        """Measure the pairs of these rounds.

        The best meeting of a link counts, as a disturbance may be temporary.
        """
        speeds = self.measure_pairs(schedule) if schedule else {}
        for a, b in chain.from_iterable(schedule):
            for link in ((a, b), (b, a)):
                self.speeds[link] = max(self.speeds.get(link, 0.0), valid_speed(speeds.get(link)))
                self.counts[link] += 1
                self.pair_of.setdefault(link, (a, b))
        self.rounds += len(schedule)

    def suspect_round(self) -> list[list[Pair]]:
        """Plan one round in which each node not cleared meets a proven good node.

        A node is skipped once MIN_CHECKS good nodes have checked it. Returns no round if no
        pair is left.
        """
        proven = self.proven_good()
        blamed = {node for node, _ in self.attribution()[0]}
        cleared = {node for node in self.nodes if node in proven and node not in blamed}
        available = [[node for node in rail if node in cleared] for rail in self.rails]
        pairs = []
        for node in self.nodes:
            if node in cleared or len(self.checked_by[node]) >= MIN_CHECKS:
                continue
            checkers = available[self.rail_of[node]]
            # One that the node has not met; else one that has not checked it yet.
            unmeasured = (good for good in checkers if (node, good) not in self.speeds)
            fallback = (good for good in checkers if good not in self.checked_by[node])
            checker = next(chain(unmeasured, fallback), None)
            if checker is not None:
                self.rechecks += bool(self.checked_by[node]) or (node, checker) in self.speeds
                self.checked_by[node].add(checker)
                checkers.remove(checker)
                pairs.append((node, checker))
        return [pairs] if pairs else []

    def recheck_rounds(self) -> list[list[Pair]]:
        """Plan a second meeting of the slow links that no node explains and that met once.

        Each pair sends the same way first, as an uplink is full one way at a time.
        """
        links = self.attribution()[1]
        pairs = dict.fromkeys(self.pair_of[link] for link in links if self.counts[link] == 1)
        self.rechecks += len(pairs)
        return pack_rounds(pairs)

    def slow_links(self) -> list[Link]:
        return [link for link, speed in self.speeds.items() if speed < self.limit]

    def proven_good(self) -> set[str]:
        """Return the nodes that at least once sent at speed and at least once received at speed."""
        fast = [link for link, speed in self.speeds.items() if speed >= self.limit]
        return {sender for sender, _ in fast} & {receiver for _, receiver in fast}

    def attribution(self) -> tuple[list[LinkEnd], list[Link]]:
        slow = self.slow_links()
        if not self.proven_good():
            return [], slow
        return attribute_slow_links(slow, self.speeds, self.rail_size)

    def result(self) -> FaultSearchResult:
        guilty, links = self.attribution()
        ways = group_pairs(guilty)
        named = [node for node in self.nodes if node in ways]
        nodes = {node: "both" if len(ways[node]) == 2 else ways[node][0] for node in named}
        found = self.speeds, self.typical, nodes, links, self.rounds, self.rechecks
        return FaultSearchResult(*found, self.coverage(), self.limit)

    def coverage(self) -> str:
        """Describe which pairs were measured, and what was not judged."""
        measured = len(self.speeds) // 2
        pairs = sum(math.comb(len(rail), 2) for rail in self.rails)
        rounds_text = f"{self.rounds} round{'s' * (self.rounds != 1)}"
        every = " (over all rails)" if len(self.rails) > 1 else ""
        parts = [f"{measured} of {pairs} pairs{every}, both directions, {rounds_text}"]
        parts += [UNSEEN] * (measured < pairs) + [OWN_PATHS] * self.has_own_paths
        parts += ["Links are only compared with each other: a fault of all links cannot be found"]
        if self.slow_links() and not self.proven_good():
            parts.append("No link is known to be good, so no node is blamed")
        return ". ".join(parts)


def classify(
    bad: Sequence[Pair], nodes: Sequence[str], tried: Sequence[Pair]
) -> tuple[list[str], list[Pair]]:
    """Return (nodes all of whose pairs are bad, bad pairs that no such node explains).

    `tried` are the pairs that were tested, the bad ones among them. The search is greedy: the node
    with most bad pairs comes first. With only two nodes a bad pair stays a pair, because either
    node may be the cause.
    """
    guilty: list[str] = []
    remaining, tested = list(bad), list(tried)
    while remaining and len(nodes) > 2:
        counts, met = (Counter(chain(*pairs)) for pairs in (remaining, tested))
        bad_everywhere = [node for node in nodes if counts[node] >= max(2, met[node])]
        if not bad_everywhere:
            break
        worst = max(bad_everywhere, key=lambda node: counts[node])
        guilty.append(worst)
        remaining = [pair for pair in remaining if worst not in pair]
        tested = [pair for pair in tested if worst not in pair]
    return guilty, remaining
