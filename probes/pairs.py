"""What each pair of nodes can do: reach each other, and how fast."""

from __future__ import annotations

from dataclasses import dataclass

from probes.facts import interfaces
from reference_trainer.gang import Gang
from scaling.collectives import pair_sweep, rounds
from scaling.search import Pair, listen, reach, typical


@dataclass(frozen=True)
class Cut:
    """Pairs of nodes that do not reach each other, and nodes whose fabric port is not usable."""

    nodes: list[str]
    pairs: list[Pair]
    dead: dict[str, str]  # node -> why


def reachability(gang: Gang, names: dict[str, str], fabric: str | None) -> Cut:
    """Connect every pair of ranks by TCP on the agreed interface (Ray's address without one)."""
    places = [names[place.node] for place in gang.places]
    ports = gang.run(interfaces, timeout=60)
    doors: dict[str, tuple[str, int] | None] = {}
    dead: dict[str, str] = {}
    own: list[str] = []
    for place, name, found in zip(gang.places, places, ports, strict=True):
        port = found.get(fabric or "")
        by_interface = fabric is not None and fabric != "rdma"
        if by_interface and not port:
            dead[name] = f"has no interface {fabric}"
        elif by_interface and port and (not port["address"] or port["state"] == "down"):
            dead[name] = f"{fabric} is {port['state']}, address {port['address'] or 'none'}"
        own.append(port["address"] if by_interface and port and port["address"] else place.address)
    opened = gang.run(listen, timeout=60, each=[(address,) for address in own])
    for name, address, number in zip(places, own, opened, strict=True):
        doors[name] = None if name in dead else (address, number)
    rows = gang.run(reach, timeout=60, each=[(address, doors) for address in own])
    answered = dict(zip(places, rows, strict=True))
    nodes = list(dict.fromkeys(places))
    pairs = [
        (a, b)
        for i, a in enumerate(nodes)
        for b in nodes[i + 1 :]
        if not (answered[a].get(b) and answered[b].get(a))
    ]
    return Cut(nodes, pairs, dead)


def pair_speeds(gang: Gang, names: dict[str, str], doubtful: float = 0.8) -> dict[Pair, float]:
    """GB/s of each pair of nodes, one direction while both run; the slower end's figure.

    Pairs meet in parallel rounds first.  Those under `doubtful` of the typical figure meet again,
    one at a time and longer, before anybody is blamed: neighbours may have been in their way, and
    a fresh TCP connection that lost a packet early needs some repeats to come back to its speed.
    """
    places = [place.node for place in gang.places]
    first = sorted(places.index(node) for node in set(places))
    found = _meet(gang, rounds(first), 12)
    usual = typical(found) if found else 0.0
    again = [pair for pair, gbs in found.items() if gbs < doubtful * usual]
    if again:
        for pair, gbs in _meet(gang, [[pair] for pair in again], 24).items():
            found[pair] = max(gbs, found[pair])
    return {(names[places[a]], names[places[b]]): gbs for (a, b), gbs in found.items()}


def _meet(
    gang: Gang, meetings: list[list[tuple[int, int]]], repeats: int
) -> dict[tuple[int, int], float]:
    found: dict[tuple[int, int], float] = {}
    for rank, row in enumerate(gang.run(pair_sweep, meetings, 4 << 20, repeats, timeout=180)):
        for peer, gbs in row.items():
            pair = (min(rank, peer), max(rank, peer))
            found[pair] = min(gbs, found.get(pair, gbs))
    return found
