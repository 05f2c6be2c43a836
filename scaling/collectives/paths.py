"""Plans meetings of the pairs that did not meet in earlier runs, and writes which have met.

A pair is two ports of one rail, sorted.  Rails are lists of ports.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain, combinations, islice
from typing import Any, NamedTuple

from scaling.collectives.fault_search import Pair, near_round, plan_rounds

Facts = Sequence[Mapping[str, Any]]  # of nodes


class PathsBefore(NamedTuple):
    """Pairs that met in an earlier run, and in those that it carried on; `head` names that run."""

    head: str
    met: set[Pair]


def unmet_rounds(
    rails: Sequence[Sequence[str]], met: Collection[Pair], most: int
) -> list[list[Pair]]:
    """Plan a round of near pairs, and at most so many rounds of pairs that have not `met`.

    The near pairs meet in each run, and so do the first far ones unless a whole round is left:
    those that are left may all be of one node, such as a new one, or all cross one uplink, and show
    no speed of others.
    """
    near = near_round(rails)
    known = {*map(frozenset, near)}  # a pair meets once in a job
    plan = plan_rounds([sorted(sorted(rail), key=len) for rail in rails])  # the same in each run
    rounds = ([pair for pair in pairs if frozenset(pair) not in known] for pairs in plan)
    far, met_before = next(rounds, []), {*map(frozenset, met)}
    every = chain([far], rounds)  # as lazy as the plan: 4,096 nodes have 8 million pairs
    unmet = ([pair for pair in pairs if frozenset(pair) not in met_before] for pairs in every)
    chosen = [*islice(filter(None, unmet), most)]
    if chosen and len(chosen[0]) < len(far):
        left = ([pair for pair in pairs if pair not in far] for pairs in chosen)
        chosen = [far, *filter(None, left)]
    return [near, *chosen]


def pack_pairs(rails: Sequence[Sequence[str]], met: Collection[Pair]) -> list[list[Any]]:
    """Write each rail as its ports, and a bit for each of their pairs as a hex number."""
    bits = (["01"[pair in met] for pair in combinations(sorted(ports), 2)] for ports in rails)
    numbers = (int("".join(["0", *one]), 2) for one in bits)
    return [[sorted(ports), f"{number:x}"] for ports, number in zip(rails, numbers, strict=True)]


def read_pairs(packed: Sequence[Sequence[Any]], then: Facts, now: Facts) -> set[Pair]:
    """Read the pairs that `pack_pairs` wrote, by the facts of the nodes then and now.

    A node that has other GPUs now is another one: its pairs have not met.
    """
    old, new = _gpus_of(then), _gpus_of(now)
    same, met = {name for name in new if old.get(name) == new[name]}, set[Pair]()
    for ports, digits in packed:
        pairs = [*combinations(ports, 2)]
        bits = f"{int(digits, 16):0{len(pairs)}b}"
        met.update(pair for pair, bit in zip(pairs, bits, strict=False) if bit == "1")
    # A port is named `fab1 on node0`, or as its node.
    return {pair for pair in met if same.issuperset(port.rpartition(" on ")[2] for port in pair)}


def _gpus_of(facts: Facts) -> dict[Any, list[Any]]:
    """Return the UUIDs of each node's GPUs, by its name."""
    return {one.get("name"): [gpu.get("uuid") for gpu in one.get("gpus", ())] for one in facts}
