"""Simulates nodes on leaves whose uplinks may be too narrow for all of them at once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from scaling.collectives.node_groups import RankMeetings
from tests.support.rank_parts import Each, rounds_of

RATE = 50.0  # GB/s of a healthy link
READINGS = [
    {
        "bytes": {"fab0": tried * 4 << 20},
        "tcp": {"sent": tried * 10**5, "resent": 0, "twice": 0},
        "rdma": None,
    }
    for tried in range(7)
]


@dataclass
class Leaves:
    """Nodes of one rank and one rail each, on leaves whose uplinks carry 1 / `narrow` of them.

    `leaf_of` is by node; by default there are two leaves, of nodes in a row.  Nodes of one `part`
    (a host, an NVLink domain), so many in a row, reach each other at `inside` of the rate, past the
    fabric.  Nodes of one host share a port if it is `shared`.
    """

    size: int
    seed: int = 0
    narrow: float = 1.0
    leaf_of: Sequence[int] = ()
    part: int = 1
    inside: float = 1.0
    shared: bool = False
    noise: float = 0.03  # as tests/support/simulated_links.py
    dips: float = 0.002  # of the best of six tries
    slow: dict[int, float] = field(default_factory=dict)
    rounds: list[list[list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.places = [SimpleNamespace(node=f"n{at}") for at in range(self.size)]
        self.names = {place.node: place.node for place in self.places}
        self.leaf_of = self.leaf_of or [2 * at // self.size for at in range(self.size)]
        self.nodes_of = Counter(self.leaf_of)
        self.chance = random.Random(self.seed)

    def run(self, function: Any, *_: Any, each: Each, **__: Any) -> list[RankMeetings]:
        """Let pairs meet one way, as `pair_sweep` does."""
        found = [RankMeetings() for _ in self.places]
        for pairs in rounds_of(each):
            self.rounds.append(pairs)
            out = [pair for pair in pairs if pair[0] // self.part != pair[1] // self.part]
            crossing = [pair for pair in out if self.leaf_of[pair[0]] != self.leaf_of[pair[1]]]
            ends = [Counter(self.leaf_of[pair[end]] for pair in crossing) for end in (0, 1)]
            hosts = Counter(rank // self.part for pair in out for rank in pair)
            for pair in pairs:
                shares = [1.0] if pair in out else [self.inside]
                for end, count in enumerate(ends) if pair in crossing else ():
                    leaf = self.leaf_of[pair[end]]
                    shares.append(self.nodes_of[leaf] / self.narrow / count[leaf])
                if self.shared and pair in out:
                    shares += [1 / hosts[rank // self.part] for rank in pair]
                for a, b in (pair, pair[::-1]):
                    able = min(*shares, self.slow.get(a, self.inside))
                    found[b].received[a] = RATE * able * self.drawn(), 0
                    found[a].sent[b] = READINGS
        return found

    def drawn(self) -> float:
        """Return the noise of one meeting."""
        dip = 0.15 * (self.chance.random() < self.dips)
        return max(0.0, self.chance.gauss(1, self.noise)) * (1 - dip)
