"""What each pair of nodes can do: reach each other, in full-size packets, and how fast."""

from __future__ import annotations

from dataclasses import dataclass, field

from probes.facts import interfaces
from reference_trainer.gang import Gang
from scaling.collectives import pair_sweep
from scaling.reach import echo, listen, passes, reach
from scaling.search import Hunt, Link, Pair, hunt

MESSAGE = 4 << 20  # bytes: 34 ms at 1 Gbit/s, well past the latency of any fabric
REPEATS = 6
SLOW = 0.8  # share of the typical speed under which a link is hunted


@dataclass(frozen=True)
class Cut:
    """Pairs of nodes that do not reach each other, and nodes whose fabric port is not usable.

    `narrow` are pairs that small packets pass and full-size ones do not; `mtu` is each node's.
    """

    nodes: list[str]
    pairs: list[Pair]
    dead: dict[str, str]  # node -> why
    narrow: list[Pair] = field(default_factory=list)
    mtu: dict[str, int] = field(default_factory=dict)


def reachability(gang: Gang, names: dict[str, str], fabric: str | None) -> Cut:
    """Connect every pair of nodes by TCP on the agreed interface (Ray's address without one), and
    send a full-size datagram that must not be fragmented."""
    first = {place.node: rank for rank, place in reversed(list(enumerate(gang.places)))}
    ranks = sorted(first.values())
    found = gang.run(interfaces, timeout=60)
    nodes = [names[gang.places[rank].node] for rank in ranks]
    own: list[str] = []
    dead: dict[str, str] = {}
    mtu: dict[str, int] = {}
    for rank, name in zip(ranks, nodes, strict=True):
        port = found[rank].get(fabric or "")
        by_interface = fabric is not None and fabric != "rdma"
        if by_interface and not port:
            dead[name] = f"has no interface {fabric}"
        elif by_interface and port and (not port["address"] or port["state"] == "down"):
            dead[name] = f"{fabric} is {port['state']}, address {port['address'] or 'none'}"
        elif by_interface and port:
            mtu[name] = port["mtu"]
        usable = by_interface and port and port["address"]
        own.append(port["address"] if usable and port else gang.places[rank].address)
    knock = _Knocking(gang, ranks, nodes, own, dead)
    pairs = knock.failing(listen, reach)
    narrow = knock.failing(echo, passes, min(mtu.values())) if mtu else []
    return Cut(nodes, pairs, dead, [pair for pair in narrow if pair not in pairs], mtu)


@dataclass(frozen=True)
class _Knocking:
    """Every node opens a door, and every node knocks at all of them."""

    gang: Gang
    ranks: list[int]
    nodes: list[str]
    own: list[str]
    dead: dict[str, str]

    def failing(self, open_door: object, knock: object, *more: int) -> list[Pair]:
        """Pairs of which one does not get through to the other."""
        solo = [[rank] for rank in self.ranks]
        each: list[list[object]] = [[] for _ in self.gang.places]
        for rank, address in zip(self.ranks, self.own, strict=True):
            each[rank] = [address]
        opened = self.gang.run(open_door, timeout=60, each=each, groups=solo)  # type: ignore[arg-type]
        doors = {
            name: None if name in self.dead else (address, port)
            for name, address, port in zip(self.nodes, self.own, opened, strict=True)
        }
        for rank, address in zip(self.ranks, self.own, strict=True):
            each[rank] = [address, doors, *more]
        rows = self.gang.run(knock, timeout=60, each=each, groups=solo)  # type: ignore[arg-type]
        answered = dict(zip(self.nodes, rows, strict=True))
        return [
            (a, b)
            for i, a in enumerate(self.nodes)
            for b in self.nodes[i + 1 :]
            if not (answered[a].get(b) and answered[b].get(a))
        ]


def slow_pairs(gang: Gang, names: dict[str, str]) -> Hunt:
    """Hunt the slow link: one rank of each node meets the others', each direction apart.

    Every pair meets up to 8 nodes (7 rounds); beyond that two or three rounds find bad nodes.
    """
    places = [names[place.node] for place in gang.places]
    first = {name: places.index(name) for name in dict.fromkeys(places)}

    def meet(rounds: list[list[Pair]]) -> dict[Link, float]:
        table = [[(first[a], first[b]) for a, b in pairs] for pairs in rounds]
        found = gang.run(pair_sweep, table, MESSAGE, REPEATS, timeout=180)
        return {
            (places[sender], places[rank]): speed
            for rank, row in enumerate(found)
            for sender, speed in row.items()
        }

    return hunt(list(first), meet, matrix=len(first) <= 8, effect=SLOW)
