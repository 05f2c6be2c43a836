"""Measures search_faults on simulated clusters: rounds, precision and recall.

`python -m benchmarks.fault_search` prints three tables: quick searches for nodes, searches over all
pairs for nodes and links, and quick searches for ports of RAILS rails. The second table includes
the plain method, in which every pair meets three times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from scaling.collectives.fault_search import search_faults, search_rails
from tests.support.simulated_links import Cluster, brute_force, planted

RAILS = 8
Found = tuple[dict[str, str], set[tuple[str, str]]]
COLUMNS = "{:>5}{:>13}{:>6}{:>7}{:>12}{:>11}{:>11}{:>8}{:>10}"


@dataclass
class Score:
    """Counts of found and injected faults over several seeds."""

    right: int = 0
    blamed: int = 0
    planted: int = 0

    def add(self, found: Found, cluster: Cluster, with_links: bool) -> None:
        """Add one cluster's result; a node or link counts as right only in the right direction."""
        said = {*found[0].items(), *found[1]}
        truth = {*cluster.guilty().items(), *(cluster.guilty_links() if with_links else ())}
        self.right += len(said & truth)
        self.blamed += len(said)
        self.planted += len(truth)

    def line(self) -> tuple[str, str]:
        """Format precision and recall."""
        return f"{self.right / max(self.blamed, 1):.4f}", f"{self.right / self.planted:.4f}"


def quick(cluster: Cluster) -> Found:
    """Run the default search."""
    told = search_faults(cluster.nodes, cluster.meet)
    return told.slow_nodes, set(told.slow_links)


def matrix(cluster: Cluster) -> Found:
    """Run the search over all pairs."""
    told = search_faults(cluster.nodes, cluster.meet, matrix=True)
    return told.slow_nodes, set(told.slow_links)


def rails(cluster: Cluster) -> Found:
    """Run the default search over several rails."""
    told = search_rails(cluster.ports, cluster.meet)
    return told.slow_nodes, set(told.slow_links)


def row(way: Callable[[Cluster], Found], size: int, bad: int, links: int, seeds: int) -> None:
    """Print one line: `bad` slow nodes and `links` slow links in each of `seeds` clusters."""
    score, played, seconds = Score(), [], []
    for seed in range(seeds):
        cluster = planted(size, bad, seed, links, RAILS if way is rails else 1)
        begun = time.perf_counter()
        found = way(cluster)
        seconds.append(time.perf_counter() - begun)
        played.append(cluster.rounds)
        score.add(found, cluster, with_links=way not in (quick, rails))
    took = f"{statistics.median(played):.0f} ({max(played)})"
    name, usual = way.__name__.replace("_", " "), f"{statistics.median(seconds):.3f} s"
    print(COLUMNS.format(size, name, bad, links, took, size - 1, *score.line(), usual))


def main() -> None:
    """Print the tables; 20 seeds per line, 5 of all pairs of 256 nodes and of rails from there."""
    begun = time.perf_counter()
    print("noise 3 %, dips of 15 % in 1 % of meetings; bad: slow to 0-60 % when it sends, receives")
    print("or both; rounds: median (most); seconds: median, the simulation's included")
    print(COLUMNS.format("nodes", "way", "bad", "links", "rounds", "all pairs", "precision",
                         "recall", "seconds"))  # fmt: skip
    for size in (8, 16, 64, 256, 1024, 4096):
        for share in (0.01, 0.1, 0.3):
            if size * share >= 0.5:
                row(quick, size, max(1, int(size * share)), 0, 20)
    for size in (8, 16, 64, 256):
        for way in (matrix, brute_force):
            row(way, size, max(1, size // 10), max(1, size // 16), 20 if size < 256 else 5)
    print(f"ports of {RAILS} rails")
    for size in (8, 16, 64, 256, 1024, 4096):
        for share in (0.01, 0.1):
            row(rails, size, max(1, int(size * RAILS * share)), 0, 20 if size < 256 else 5)
    print(f"{time.perf_counter() - begun:.0f} s in all")


if __name__ == "__main__":
    main()
