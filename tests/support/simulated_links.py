"""Simulates a cluster of links with known speed, noise and injected faults."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scaling.collectives.fault_search import Link, Pair, round_robin

RATE = 50.0  # GB/s of a healthy link, as 400 Gbit/s


@dataclass
class Cluster:
    """Nodes that meet on request. Faults are shares of the rate: 0.3 is slow, 0 is blocked."""

    size: int
    seed: int = 0
    sends: dict[str, float] = field(default_factory=dict)
    receives: dict[str, float] = field(default_factory=dict)
    links: dict[Link, float] = field(default_factory=dict)
    noise: float = 0.03  # standard deviation, as a share
    dips: float = 0.01  # chance that a meeting is 15 % slower
    spoilt: Mapping[int, float] = field(default_factory=dict)  # meeting's number -> its share, once
    rails: int = 1  # ports of each node; those of one rail meet
    leaves: int = 1  # switches of equal size; nodes of two leaves share the uplinks of both
    uplink: float = 1.0  # rate of an uplink, by that of all nodes of its leaf
    rounds: int = 0
    meetings: list[Pair] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.nodes = [f"n{at}" for at in range(self.size)]
        self.ports = [[f"fab{rail} on {node}" for node in self.nodes] for rail in range(self.rails)]
        self.chance = random.Random(self.seed)

    def meet(self, table: list[list[Pair]]) -> dict[Link, float]:
        """Return GB/s of both directions of each pair. AssertionError: a round is not disjoint."""
        found = {}
        for pairs in table:
            busy = [node for pair in pairs for node in pair]
            assert len(set(busy)) == len(busy), f"somebody meets twice in one round: {pairs}"
            self.rounds += 1
            crossing = sum(self.leaf(a) != self.leaf(b) for a, b in pairs)
            for a, b in pairs:
                self.meetings.append((a, b))
                share = self.share_of_uplink(crossing) if self.leaf(a) != self.leaf(b) else 1.0
                found[a, b] = min(self.speed(a, b), RATE * share)
                found[b, a] = min(self.speed(b, a), RATE * share)
        return found

    def leaf(self, node: str) -> int:
        """Return the leaf of a node: the first nodes are on leaf 0."""
        return int(node.rpartition("n")[2]) * self.leaves // self.size

    def share_of_uplink(self, pairs: int) -> float:
        """Return the share of the rate that each of so many pairs gets; of two leaves."""
        return min(1.0, self.uplink * self.size / self.leaves / pairs)

    def speed(self, sender: str, receiver: str) -> float:
        """Return one measurement, GB/s: the slowest of sender, receiver and link, with noise."""
        able = self.able(sender, receiver) * (1 - 0.15 * (self.chance.random() < self.dips))
        passing = self.spoilt.get(len(self.meetings), 1.0)
        return RATE * passing * able * max(0.0, self.chance.gauss(1, self.noise))

    def able(self, sender: str, receiver: str) -> float:
        """Return the share of the rate that this link can give."""
        return min(
            self.sends.get(sender, 1.0),
            self.receives.get(receiver, 1.0),
            self.links.get((sender, receiver), 1.0),
        )

    def guilty(self) -> dict[str, str]:
        """Return injected nodes and their direction, as `slow_nodes` of the search has them."""
        return _ways(self.sends, self.receives)

    def guilty_links(self) -> set[Link]:
        """Return the injected links that no injected node hides."""
        return {(a, b) for a, b in self.links if a not in self.sends and b not in self.receives}


def planted(size: int, bad: int, seed: int, links: int = 0, rails: int = 1) -> Cluster:
    """Make a cluster with `bad` nodes slow in a way drawn by `seed`, and `links` slow links.

    With several rails, ports are slow instead of nodes.
    """
    chance = random.Random(seed)
    cluster = Cluster(size, seed, rails=rails)
    ports = [port for ports in cluster.ports for port in ports]
    for node in chance.sample(ports if rails > 1 else cluster.nodes, bad):
        way = chance.choice(("sends", "receives", "both"))
        if way != "receives":
            cluster.sends[node] = chance.uniform(0, 0.6)
        if way != "sends":
            cluster.receives[node] = chance.uniform(0, 0.6)
    healthy = [node for node in cluster.nodes if node not in cluster.guilty()]
    ends = chance.sample(healthy, 2 * links)  # no node has two: they could be the node's own fault
    for pair in zip(ends[::2], ends[1::2], strict=True):
        cluster.links[pair] = chance.choice((0.0, 0.3, 0.6))
        if chance.random() < 0.5:
            cluster.links[pair[::-1]] = 0.3
    return cluster


def brute_force(cluster: Cluster, repeats: int = 3) -> tuple[dict[str, str], set[Link]]:
    """Find (guilty nodes, guilty links) by the plain way: every pair, several times."""
    best: dict[Link, float] = {}
    for _ in range(repeats):
        for link, speed in cluster.meet(round_robin(cluster.nodes)).items():
            best[link] = max(speed, best.get(link, 0.0))
    limit = 0.8 * statistics.quantiles(best.values(), n=4)[2]

    def slow(links: Sequence[Link]) -> bool:
        return max(best[link] for link in links) < limit

    names = cluster.nodes
    senders = {a for a in names if slow([(a, b) for b in names if b != a])}
    receivers = {b for b in names if slow([(a, b) for a in names if a != b])}
    left = {
        (a, b)
        for (a, b), speed in best.items()
        if speed < limit and a not in senders and b not in receivers
    }
    return _ways(senders, receivers), left


def _ways(senders: Iterable[str], receivers: Iterable[str]) -> dict[str, str]:
    ways = dict.fromkeys(receivers, "receives") | dict.fromkeys(senders, "sends")
    return ways | dict.fromkeys(set(senders) & set(receivers), "both")
