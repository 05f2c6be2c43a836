"""Measures how well the cause of a lost percent is named, on simulated clusters.

`python -m benchmarks.loss_attribution [SEEDS]` prints three tables: healthy clusters that are
blamed, single causes that are named first and at their place, and pairs with a cause not named.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import combinations

from scaling.loss.explain import Explanation, explain
from tests.support.simulated_steps import CODES, WHERE, Cluster

# (nodes, ranks per node, steps)
SHAPES = [(nodes, per, steps) for nodes, per in ((4, 1), (8, 1), (8, 8)) for steps in (8, 24, 100)]
PAIRED = [shape for shape in SHAPES if shape[1] == 1 and shape[2] < 100]
SLOWER = {"slowing", "slowing_jump", "hot"}
FIRST_SEED = 5000  # other seeds than the tests'


def seen(seed: int, shape: tuple[int, int, int], **planted: float) -> tuple[Cluster, Explanation]:
    """Simulate a cluster of (nodes, ranks per node, steps) and explain its largest rung."""
    nodes, per_node, steps = shape
    # A cluster's parameters are of several types; the injected ones are all floats.
    cluster = Cluster(nodes=nodes, per_node=per_node, steps=steps, seed=seed, **planted)  # type: ignore[arg-type]
    base, here = cluster.base(), cluster.largest()
    return cluster, explain(base, here, cluster.talk, limit=0.9)


def single(cause: str, shape: tuple[int, int, int], seeds: range) -> tuple[int, int, int]:
    """Count seeds: cause named first, named first at its place as well, another named too."""
    first = placed = more = 0
    for seed in seeds:
        cluster, found = seen(seed, shape, **{cause: 0.2 if cause == "tokens" else 0.08})
        right = [c for c in found.causes[:1] if c.code == CODES[cause]]
        first += bool(right)
        place = getattr(cluster, WHERE[cause]) if cause in WHERE else None
        placed += bool(right) and place in (None, right[0].where)
        more += any(c.code != CODES[cause] for c in found.causes)
    return first, placed, more


def pairs(shape: tuple[int, int, int], seeds: range) -> Iterator[tuple[str, str, int]]:
    """Yield each pair of causes and how often both are named."""
    for one, two in combinations(CODES, 2):
        if {one, two} <= SLOWER:
            continue
        sizes = {one: 0.128, two: 0.08} | ({"tokens": 0.2} if "tokens" in (one, two) else {})
        if one == "slow_node" and two in SLOWER:
            sizes = {one: 0.08, two: 0.16}
        named = [{c.code for c in seen(seed, shape, **sizes)[1].causes} for seed in seeds]
        yield one, two, sum({CODES[one], CODES[two]} <= codes for codes in named)


def main() -> None:
    """Print the tables."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    seeds, many = range(FIRST_SEED, FIRST_SEED + count), range(FIRST_SEED, FIRST_SEED + 5 * count)
    print(
        f"{'nodes x ranks, steps':>22}  sound accused of {len(many)}; first/placed/more of {count}"
    )
    for shape in SHAPES:
        accused = sum(bool(seen(seed, shape)[1].causes) for seed in many)
        scores = {cause: single(cause, shape, seeds) for cause in CODES}
        odd = [f"{k} {'/'.join(map(str, v))}" for k, v in scores.items() if v != (count, count, 0)]
        nodes, per_node, steps = shape
        said = ", ".join(odd) or "all"
        print(f"{f'{nodes} x {per_node}, {steps}':>22}  {accused}; {said}", flush=True)
    for shape in PAIRED:
        found = list(pairs(shape, seeds))
        low = [f"{a}+{b} {n}" for a, b, n in found if n < 0.9 * count]
        print(f"{shape}: {len(found)} pairs, under 9 of 10: {', '.join(low) or 'none'}", flush=True)


if __name__ == "__main__":
    main()
