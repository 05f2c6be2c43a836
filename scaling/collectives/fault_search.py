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
End = tuple[str, str]  # (node, "sends" or "receives"): one direction of a node
Key = TypeVar("Key")
Player = TypeVar("Player")
Meet = Callable[[list[list[Pair]]], Mapping[Link, float]]
Trial = Callable[[list[list[str]]], Sequence[float]]

EFFECT = 0.8  # the minimum effect size: what reaches this share of typical is never called slow
CUTOFF = 3.5  # in scaled MADs: Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993
SCALE = 1.4826  # scaled MAD: the standard deviation, where noise is normal
ENOUGH = 5  # healthy values, to tell what their noise is
NEARLY_ALL = 0.8  # of a node's links slow: the node is, whatever luck the others had
WITNESSES = 2  # nodes proven good that look at a suspect before it is blamed, if there are two
SMALL = 8  # fewer nodes: all pairs take 7 rounds at most, and one round is too few to compare
TRIES = 3  # first rounds to play before giving up on finding anybody good


@dataclass(frozen=True)
class Hunt:
    """What a hunt found.  Speeds in GB/s (1e9 bytes), one direction."""

    speeds: dict[Link, float]  # each link that met: the best of its meetings, 0 where all failed
    typical: float  # GB/s of a healthy link
    nodes: dict[str, str]  # guilty node -> "sends", "receives" or "both": when it is slow
    links: list[Link]  # guilty links, (sender, receiver), that no guilty node explains
    rounds: int  # played in all
    confirmed: int  # meetings that only checked what an earlier one had said
    coverage: str  # one sentence: who met, and what this hunt cannot see


def hunt(
    nodes: Sequence[str],
    meet: Meet,
    matrix: bool = False,
    effect: float = EFFECT,
    expected: float | None = None,
) -> Hunt:
    """The nodes and links that are slow, by which way they are slow.

    `meet` takes rounds of disjoint pairs and returns GB/s of both directions of each pair, keyed
    (sender, receiver); an entry that is missing or not a number is a meeting that failed, 0 GB/s.
    It is called several times, each time for the rounds that the answers so far suggest.

    Quick (the default) settles every node, but only the links that happened to meet: 1 round
    where all is well, about 3 with bad nodes.  `matrix` lets every pair meet (n - 1 rounds, n where
    n is odd) and settles every link too; so do fewer than 8 nodes always.  Up to about a third of
    the nodes may be bad.

    A link is slow below `effect` of the typical speed, if it is also beyond the noise; or below
    `effect` of `expected` (GB/s), the absolute yardstick without which a fault that all share
    does not show.  Blame needs a node that is proven good: where there is none, and so always with
    two nodes, slow links stay links.  Links that are slower by design are reported as slow ones.

    ValueError where a node is named twice, or `expected` is not above zero.
    """
    if expected is not None and not _number(expected):
        raise ValueError(f"expected is to be GB/s above zero, or None if unknown; found {expected}")
    if len(set(nodes)) < len(nodes):
        twice = sorted(name for name, times in Counter(nodes).items() if times > 1)
        raise ValueError(f"each node is to be named once, found twice: {', '.join(twice)}")
    search = _Search(list(nodes), meet, effect, expected)
    search.open(whole=matrix or len(nodes) < SMALL)
    while table := search.examination() or search.repetition():
        search.play(table)
    return search.result()


def rounds(players: Sequence[Player]) -> list[list[tuple[Player, Player]]]:
    """Every pair once, in rounds in which nobody meets twice: n - 1 of them, n where n is odd."""
    return list(_circle(players))


def _circle(players: Sequence[Player]) -> Iterator[list[tuple[Player, Player]]]:
    """The circle method: one stays seated, the others move on by a chair."""
    count = len(players)
    seats = list(range(count + count % 2))  # where n is odd, whoever faces the extra seat rests
    half = len(seats) // 2
    for _ in range(len(seats) - 1 if count > 1 else 0):
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [(players[a], players[b]) for a, b in facing if max(a, b) < count]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def packed(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """The pairs in rounds in which nobody meets twice: each goes into the first that is free."""
    table: list[list[Pair]] = []
    busy: list[set[str]] = []
    for pair in pairs:
        at = next((i for i, names in enumerate(busy) if names.isdisjoint(pair)), len(table))
        if at == len(table):
            table.append([])
            busy.append(set())
        table[at].append(pair)
        busy[at].update(pair)
    return table


def outliers(speeds: Mapping[Key, float], effect: float = EFFECT) -> set[Key]:
    """The keys whose speed (any unit) is low: beyond the noise, and under `effect` of typical.

    Up to three quarters of the values may be low.  What is 0 or not a number is always low.
    """
    limit = yardstick(speeds.values(), effect)[1]
    return {key for key, speed in speeds.items() if _number(speed) < limit}


def yardstick(
    speeds: Iterable[float], effect: float = EFFECT, expected: float | None = None
) -> tuple[float, float]:
    """(typical speed, the speed below which one is slow), in the unit of `speeds`.

    Median and MAD of the healthy body: the values within `effect` of the upper quartile.  Of all
    values they would mislead: 30 % bad nodes spoil half of the pairs.
    """
    values = sorted(map(_number, speeds)) or [0.0]
    quartile = values[math.ceil(0.75 * (len(values) - 1))]
    body = [value for value in values if value >= effect * quartile]
    typical = statistics.median(body)
    spread = statistics.median(abs(value - typical) for value in body)
    noise = SCALE * spread if len(body) >= ENOUGH else 0.0
    limit = min(effect * typical, typical - CUTOFF * noise)
    # Above zero, because a meeting that failed is slow even where all failed.
    return typical, max(limit, effect * (expected or 0.0), sys.float_info.min)


def _number(speed: float | None) -> float:
    return speed if speed is not None and math.isfinite(speed) and speed > 0 else 0.0


def attribute(
    slow: Sequence[Link], met: Iterable[Link], nodes: int
) -> tuple[list[End], list[Link]]:
    """(ends of nodes nearly all of whose links are slow, slow links that no such end explains).

    An end is one direction of a node.  Greedy, the end with the largest share of slow links
    first; what it explains no longer counts against the other end of those links.
    """
    known = Counter(end for link in met for end in _ends(link))
    mine: dict[End, set[Link]] = defaultdict(set)
    for link in slow:
        for end in _ends(link):
            mine[end].add(link)

    def weight(end: End) -> tuple[float, int]:
        return -len(mine[end]) / max(known[end], 1), -len(mine[end])

    least = min(2, nodes - 2)  # of three nodes, one link may be all that is left to go by
    queue = [(weight(end), end) for end, links in mine.items() if len(links) > 1]
    heapify(queue)
    guilty: dict[End, None] = {}
    while queue:
        before, worst = heappop(queue)
        if len(mine[worst]) < max(least, NEARLY_ALL * known[worst]):
            continue
        if before < weight(worst):  # others have explained some of it since: weights only shrink
            heappush(queue, (weight(worst), worst))
            continue
        guilty[worst] = None
        for link in mine[worst]:
            other = next(end for end in _ends(link) if end != worst)
            mine[other].discard(link)
            known[other] -= 1
    return list(guilty), [link for link in slow if guilty.keys().isdisjoint(_ends(link))]


def _ends(link: Link) -> tuple[End, End]:
    return (link[0], "sends"), (link[1], "receives")


@dataclass
class _Search:
    """What is known so far, and who should meet next."""

    nodes: list[str]
    meet: Meet
    effect: float
    expected: float | None
    speeds: dict[Link, float] = field(default_factory=dict)
    times: Counter[Link] = field(default_factory=Counter)  # how often a link met
    witnesses: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    typical: float = 0.0
    limit: float = 0.0
    rounds: int = 0
    confirmed: int = 0

    def open(self, whole: bool) -> None:
        """The first round, or all; typical is taken here, before the suspects are over-represented.

        Where the first round proves nobody good, a few more are tried.
        """
        table = _circle(self.nodes)
        batches = [list(table)] if whole else ([pairs] for pairs in islice(table, TRIES))
        for batch in batches:
            self.play(batch)
            self.typical, self.limit = yardstick(self.speeds.values(), self.effect, self.expected)
            if self.proven():
                return

    def play(self, table: list[list[Pair]]) -> None:
        """Let them meet; a link's best meeting counts, as an obstacle may have been passing."""
        found = self.meet(table) if table else {}
        for a, b in chain.from_iterable(table):
            for link in ((a, b), (b, a)):
                self.speeds[link] = max(self.speeds.get(link, 0.0), _number(found.get(link)))
                self.times[link] += 1
        self.rounds += len(table)

    def examination(self) -> list[list[Pair]]:
        """One round: whoever is not cleared meets a proven good node, until two have seen it."""
        proven = self.proven()
        blamed = {node for node, _ in self.attribution()[0]}
        free = [node for node in self.nodes if node in proven and node not in blamed]
        cleared = set(free)
        pairs = []
        for node in self.nodes:
            if node in cleared or len(self.witnesses[node]) >= WITNESSES:
                continue
            witness = self.witness(node, free)
            if witness is not None:
                self.confirmed += bool(self.witnesses[node]) or (node, witness) in self.speeds
                self.witnesses[node].add(witness)
                free.remove(witness)
                pairs.append((node, witness))
        return [pairs] if pairs else []

    def witness(self, node: str, free: Iterable[str]) -> str | None:
        """One of the free nodes that it has not met, else one it met only in the first rounds."""
        unmet = (good for good in free if (node, good) not in self.speeds)
        known = (good for good in free if good not in self.witnesses[node])
        return next(chain(unmet, known), None)

    def repetition(self) -> list[list[Pair]]:
        """Slow links that no node explains meet once more."""
        left = self.attribution()[1]
        pairs = dict.fromkeys((min(link), max(link)) for link in left if self.times[link] == 1)
        self.confirmed += len(pairs)
        return packed(pairs)

    def slow(self) -> list[Link]:
        return [link for link, speed in self.speeds.items() if speed < self.limit]

    def proven(self) -> set[str]:
        """Nodes that sent at speed at least once, and received at speed at least once."""
        fast = [link for link, speed in self.speeds.items() if speed >= self.limit]
        return {sender for sender, _ in fast} & {receiver for _, receiver in fast}

    def attribution(self) -> tuple[list[End], list[Link]]:
        slow = self.slow()
        return attribute(slow, self.speeds, len(self.nodes)) if self.proven() else ([], slow)

    def result(self) -> Hunt:
        guilty, links = self.attribution()
        ways: dict[str, list[str]] = defaultdict(list)
        for node, way in guilty:
            ways[node].append(way)
        nodes = {
            node: "both" if len(ways[node]) == 2 else ways[node][0]
            for node in self.nodes
            if node in ways
        }
        return Hunt(
            self.speeds, self.typical, nodes, links, self.rounds, self.confirmed, self.coverage()
        )

    def coverage(self) -> str:
        """Who met, and what that leaves unseen."""
        met, pairs = len(self.speeds) // 2, math.comb(len(self.nodes), 2)
        played = f"{self.rounds} round{'s' * (self.rounds != 1)}"
        said = [f"{met} of {pairs} pairs, both directions, {played}"]
        if met < pairs:
            said.append("a link that did not meet is not judged")
        if self.expected is None:
            said.append("judged against each other, so a fault that all share does not show")
        if self.slow() and not self.proven():
            said.append("nobody is proven good, so no node is blamed")
        return "; ".join(said)


def groups(nodes: Sequence[str]) -> tuple[list[list[str]], list[list[str]]]:
    """Two ways to part the nodes into groups of about sqrt(n); two nodes share one group at most.

    Rows and columns of a grid whose holes lie on a diagonal, so that no row or column has two.
    Every group has two nodes or more from 6 nodes on, and with 4.
    """
    columns = math.ceil(math.sqrt(len(nodes)))
    lines = math.ceil(len(nodes) / columns) if columns else 0
    holes = {(lines - 1 - i, columns - 1 - i) for i in range(lines * columns - len(nodes))}
    cells = ((row, column) for row in range(lines) for column in range(columns))
    seats = dict(zip((cell for cell in cells if cell not in holes), nodes, strict=True))
    across = [[node for (row, _), node in seats.items() if row == at] for at in range(lines)]
    down = [[node for (_, column), node in seats.items() if column == at] for at in range(columns)]
    return across, down


def grouped(
    nodes: Sequence[str], trial: Trial, effect: float = EFFECT, expected: float | None = None
) -> tuple[list[str], list[list[str]]]:
    """(nodes that make their groups slow, slow groups that no such node explains).

    `trial` takes disjoint groups, lets all of them work at once and returns the GB/s of each, in
    their order.  Every node is in two groups that share only it; where both stay slow, it is
    tried once more among proven good nodes, so that no other suspect can spoil its group.
    Slow is what `hunt` calls slow.  Meant for 12 nodes or more: fewer make pairs of groups.
    """
    slow, good, limit = _slow_groups(nodes, trial, effect, expected)
    suspects = [node for node in nodes if node not in good and any(node in g for g in slow)]
    guilty = []
    for batch in _among(suspects, [node for node in nodes if node in good], len(nodes)):
        for group, speed in zip(batch, trial(batch), strict=True):
            if _number(speed) < limit:
                guilty.append(group[0])
    return guilty, [group for group in slow if not set(group) & set(guilty)]


def _slow_groups(
    nodes: Sequence[str], trial: Trial, effect: float, expected: float | None
) -> tuple[list[list[str]], set[str], float]:
    """(groups that were slow twice, nodes of a group that was fast, GB/s below which is slow)."""
    partings = [[group for group in parting if len(group) > 1] for parting in groups(nodes)]
    first = [
        [_number(speed) for speed in trial(parting)] if parting else [] for parting in partings
    ]
    limit = yardstick(chain.from_iterable(first), effect, expected)[1]
    slow, good = [], set[str]()
    for parting, speeds in zip(partings, first, strict=True):
        doubtful = any(speed < limit for speed in speeds)
        again = trial(parting) if doubtful else speeds  # all of it: the load may be the fault
        for group, *both in zip(parting, speeds, map(_number, again), strict=True):
            if max(both) < limit:
                slow.append(group)
            else:
                good.update(group)
    return slow, good, limit


def _among(suspects: list[str], good: list[str], nodes: int) -> Iterator[list[list[str]]]:
    """Disjoint groups, each of one suspect and good nodes only, as large as the first were."""
    others = min(len(good), math.ceil(math.sqrt(nodes)) - 1)
    at_once = len(good) // others if others else 0
    for start in range(0, len(suspects) if at_once else 0, at_once or 1):
        batch = suspects[start : start + at_once]
        yield [[one, *good[i * others : (i + 1) * others]] for i, one in enumerate(batch)]


def blame(bad: list[Pair], nodes: list[str]) -> tuple[list[str], list[Pair]]:
    """(nodes all of whose pairs are bad, bad pairs that no such node explains).

    Nodes are taken greedily, the one with most bad pairs first; with only two nodes a bad
    pair cannot be told apart, so it stays a pair.
    """
    guilty: list[str] = []
    left = list(bad)
    while left and len(nodes) > 2:
        counts = {node: sum(node in pair for pair in left) for node in nodes if node not in guilty}
        worst = max(counts, key=lambda node: counts[node])
        if counts[worst] < 2 or counts[worst] < len(nodes) - 1 - len(guilty):
            break
        guilty.append(worst)
        left = [pair for pair in left if worst not in pair]
    return guilty, left
