"""What each pair of nodes can do: reach each other, in full-size packets, and how fast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from probes.cluster.node_facts import interfaces
from reference_trainer.launch.gang import Gang
from scaling.collectives.fault_search import Hunt, Link, Pair, grouped, hunt
from scaling.collectives.node_groups import PATIENCE, group_sweep, pair_sweep
from scaling.collectives.reachability import echo, listen, passes, patience, reach

REPEATS = 6
AT_ONCE = 16  # rounds of meetings in one job
ROUND_SECONDS = 2 * REPEATS * PATIENCE  # of a round at most: both ways, each try almost too slow
GROUPS_SECONDS = 180  # of a trial, most of it to connect
SLOW = 0.85  # share of the typical speed under which a link is hunted: where it is marginal
SMALL = 100  # bytes of a datagram that passes wherever datagrams pass at all


@dataclass(frozen=True)
class Cut:
    """Pairs of nodes that do not reach each other, and nodes whose fabric port is not usable.

    `narrow` are pairs that small packets pass and full-size ones do not, None where that could
    not be tried, for the reason in `untried`; `mtu` is that of each node's interface.
    """

    nodes: list[str]
    pairs: list[Pair]
    dead: dict[str, str]  # node -> why
    narrow: list[Pair] | None = field(default_factory=list)
    mtu: dict[str, int] = field(default_factory=dict)
    untried: str = ""


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
        address = gang.places[rank].address
        port = found[rank].get(fabric or "")
        if fabric is None or fabric == "rdma":  # then what Ray itself uses is tried
            port = next((p for p in found[rank].values() if p["address"] == address), None)
        elif not port:
            dead[name] = f"has no interface {fabric}"
        elif not port["address"] or port["state"] == "down":
            dead[name] = f"{fabric} is {port['state']}, address {port['address'] or 'none'}"
        own.append((port and port["address"]) or address)
        if port and port["mtu"] and name not in dead:
            mtu[name] = port["mtu"]
    knock = _Knocking(gang, ranks, nodes, own, dead)
    pairs = knock.failing(listen, reach)
    narrow, untried = _narrow(knock, pairs, mtu)
    return Cut(nodes, pairs, dead, narrow, mtu, untried)


def _narrow(
    knock: _Knocking, cut: list[Pair], mtu: dict[str, int]
) -> tuple[list[Pair] | None, str]:
    """Pairs that only small datagrams pass; None and why where no small one passes either."""
    living = [node for node in knock.nodes if node not in knock.dead]
    if any(node not in mtu for node in living):
        return None, "the MTU of the interface is not known on every node"
    small = dict.fromkeys(knock.nodes, SMALL)
    full = {node: mtu.get(node, SMALL) for node in knock.nodes}
    # Each pair is tried at the smaller MTU of its two: one odd node must not spare the others.
    each = [{peer: min(full[node], full[peer]) for peer in knock.nodes} for node in knock.nodes]
    blocked = knock.failing(echo, passes, [small] * len(knock.nodes))
    if set(blocked) - set(cut):
        return None, "UDP is filtered between some nodes, so packet sizes could not be tried"
    wide = knock.failing(echo, passes, each)
    return [pair for pair in wide if pair not in cut], ""


def turns(node: int, nodes: int) -> list[int]:
    """Whom a node knocks at, turn by turn, itself among them: in turn r it is node r - i (mod n).

    Who knocks at whom in a turn are disjoint pairs.
    """
    return [(turn - node) % nodes for turn in range(nodes)]


@dataclass(frozen=True)
class _Knocking:
    """Every node opens a door, and every node knocks at all of them.

    In rounds of disjoint pairs, so they do not all knock at one door at once; but nobody waits for
    a round's end.
    """

    gang: Gang
    ranks: list[int]
    nodes: list[str]
    own: list[str]
    dead: dict[str, str]

    def failing(
        self,
        open_door: Callable[[str], int],
        knock: Callable[..., dict[str, bool]],
        sizes: list[dict[str, int]] | None = None,
    ) -> list[Pair]:
        """Pairs of which one does not get through to the other; `sizes` are each node's."""
        solo = [[rank] for rank in self.ranks]
        each: list[list[object]] = [[] for _ in self.gang.places]
        for rank, address in zip(self.ranks, self.own, strict=True):
            each[rank] = [address]
        opened = self.gang.run(open_door, timeout=60, each=each, groups=solo)
        doors = [
            (name, None if name in self.dead else (address, port))
            for name, address, port in zip(self.nodes, self.own, opened, strict=True)
        ]
        for at, (rank, address) in enumerate(zip(self.ranks, self.own, strict=True)):
            mine = dict(doors[other] for other in turns(at, len(doors)))
            each[rank] = [address, mine, *([sizes[at]] if sizes else [])]
        longest = 60 + patience(len(doors), 4)
        rows = self.gang.run(knock, timeout=longest, each=each, groups=solo)
        answered = dict(zip(self.nodes, rows, strict=True))
        return [
            (a, b)
            for i, a in enumerate(self.nodes)
            for b in self.nodes[i + 1 :]
            if not (answered[a].get(b) and answered[b].get(a))
        ]


def bad_pairs(
    gang: Gang, names: dict[str, str], whole: bool = False
) -> tuple[Hunt, dict[Link, int]]:
    """Hunt the slow link, and the one that changes data: (the hunt, wrong elements by link).

    The first rank of each node meets the others', each direction apart.

    Every pair meets up to 8 nodes (7 rounds), or when the `whole` matrix is asked for (n - 1
    rounds); else two or three rounds find bad nodes.  A rank's messages use the rails that are
    close to it, so the others' are not tried.
    """
    places = [names[place.node] for place in gang.places]
    first, wrong = _first_ranks(places), dict[Link, int]()

    def meet(rounds: list[list[Pair]]) -> dict[Link, float]:
        table = [[(first[a], first[b]) for a, b in pairs] for pairs in rounds]
        speeds = {}
        for start in range(0, len(table), AT_ONCE):  # who has met many holds many connections
            some = table[start : start + AT_ONCE]
            longest = 120 + ROUND_SECONDS * len(some)
            for rank, row in enumerate(gang.run(pair_sweep, some, REPEATS, timeout=longest)):
                for sender, (speed, changed) in row.items():
                    link = places[sender], places[rank]
                    speeds[link] = speed
                    wrong[link] = wrong.get(link, 0) + changed
        return speeds

    return hunt(list(first), meet, matrix=whole or len(first) <= 8, effect=SLOW), wrong


@dataclass(frozen=True)
class Crowds:
    """What groups of about sqrt(n) nodes show: nodes that make each of their groups slow, and slow
    groups that no such node explains; `wrong` elements by node; `coverage` is one sentence."""

    nodes: list[str]
    groups: list[list[str]]
    wrong: dict[str, int]
    coverage: str


def slow_groups(gang: Gang, names: dict[str, str]) -> Crowds:
    """Hunt faults that pairs are too small to show: all-reduce in groups, all groups at once."""
    places = [names[place.node] for place in gang.places]
    wrong, sizes, tried = dict[str, int](), set[int](), 0

    def trial(parting: list[list[str]]) -> list[float]:
        nonlocal tried
        tried += len(parting)
        sizes.update(map(len, parting))
        ranks = [[at for at, name in enumerate(places) if name in group] for group in parting]
        found = gang.run(group_sweep, ranks, timeout=GROUPS_SECONDS)
        for name, (_, changed) in zip(places, found, strict=True):
            wrong[name] = wrong.get(name, 0) + changed
        return [min(found[rank][0] for rank in group) for group in ranks]

    guilty, groups = grouped(list(_first_ranks(places)), trial, SLOW)
    said = f"{tried} groups of {min(sizes)} to {max(sizes)} nodes, all of them at once"
    return Crowds(guilty, groups, wrong, said)


def _first_ranks(places: list[str]) -> dict[str, int]:
    """Each node's first rank; `places` are the ranks' nodes."""
    return {name: places.index(name) for name in dict.fromkeys(places)}
