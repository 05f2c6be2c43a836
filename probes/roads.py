"""A sweep with witnesses: all-reduce over a gang, and the bytes each node sent meanwhile."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from probes.counters import growth, main_road, read_counters
from reference_trainer.gang import Gang
from scaling.collectives import all_reduce_sweep, moved, plateau, summarise


@dataclass(frozen=True)
class Journey:
    """What a sweep showed: rows per size, and per node the bytes sent on each road."""

    ranks: int
    backend: str
    rows: list[dict[str, Any]]
    sent: dict[str, dict[str, int]]

    @property
    def expected(self) -> float:
        """Bytes that each node had to send: 2(n-1)/n x S, over all calls."""
        return sum(moved(row["size"], self.ranks) * row["calls"] for row in self.rows)

    @property
    def peak(self) -> dict[str, Any]:
        """The judged row: the largest message."""
        return plateau(self.rows)

    @property
    def road(self) -> str:
        """The road that most nodes' bytes took."""
        return Counter(main_road(sent) for sent in self.sent.values()).most_common(1)[0][0]

    def share(self, node: str, road: str) -> float:
        """Bytes a node sent on a road, as a ratio of those it had to send."""
        return self.sent[node].get(road, 0) / self.expected if self.expected else 0.0

    def elsewhere(self, node: str, road: str) -> float:
        """The same for all other roads together."""
        return sum(self.share(node, other) for other in self.sent[node] if other != road)


def travel(
    gang: Gang,
    names: dict[str, str],
    environment: dict[str, str | None] | None = None,
    only: int | None = None,
) -> Journey:
    """Sweep all-reduce over the gang and count the bytes; `only` limits it to one size."""
    before = gang.run(read_counters, timeout=60)
    sweeps = gang.run(
        all_reduce_sweep,
        timeout=180,
        environment=environment,
        each=[(0.3, 0.6, None, only) for _ in gang.places],
    )
    after = gang.run(read_counters, timeout=60)
    sent = {
        names[place.node]: growth(b, a)
        for place, b, a in zip(gang.places, before, after, strict=True)
    }
    return Journey(sweeps[0]["ranks"], sweeps[0]["backend"], summarise(sweeps), sent)
