"""Times parts of the cluster: pairs of nodes, and the ranks inside each node."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Any

from probes.check.judging import is_agreed
from probes.check.recorder import Recorder
from probes.cluster.network_facts import interfaces_of, join_fabric
from probes.fabric import criterion as check
from probes.fabric import link_counters as counters
from probes.fabric.addresses import RailRanks, find_rails, node_of, port_name, ranks_by_node
from probes.fabric.rails import is_own_rail
from probes.fabric.sweep import init_seconds, lowest
from probes.findings import MAX_NAMES, describe_most, finding, join_names
from reference_trainer.launch.gang import Gang
from reports.numbers import percent, quantity
from reports.record import Finding
from scaling.collectives import fault_search, node_groups
from scaling.collectives.fault_search import FaultSearchResult, Link, Pair, search_rails
from scaling.collectives.node_groups import BOTH_WAYS, ONE_WAY, RankMeetings, own_parts, pair_sweep

REPEATS = 6  # tries in each direction; the fastest counts: one may lose a packet, or the CPU
FEW_REPEATS = 2  # the same for a control: its fault is there at every try
JOB_ROUNDS = 16  # rounds of meetings in one job
# Longest time of one direction, or of both at the same time: each try almost too slow.
WAY_SECONDS = REPEATS * node_groups.SLOW_TRANSFER_S
MAX_ALONE = 16  # pairs that are measured once more without others
UNLIKE = "no two nodes have the same number of ranks and the same GPUs"
MIN_RATIO = 0.85  # share of the typical speed below which a link is a suspect: it is marginal there


@dataclass
class PairSearch:
    """Results of the pairs of nodes, by link (sender, receiver).

    Where nodes have several rails, sender and receiver are ports of one rail, as `fab1 on node0`.
    `lost`: the share of packets that a try lost, and that another try of the link lost too; None if
    no counter shows it.  `stalls`: the seconds above twice the median of its tries, likewise.
    `lossy`: nodes and links that lose more than is allowed; its speeds are 0 (lossy) or 1.  `sent`:
    bytes that the sender counted on each of its devices.  `rails` are the rails that were tested
    one by one.  `at_once` is the search in which all sent at the same time, both ways, None if none
    did.  `one_rail` is the typical GB/s of a rail whose pairs send both ways while no other rail
    does.  `alone` is the GB/s of slow links when no other pair sends.
    """

    speed: FaultSearchResult
    lossy: FaultSearchResult
    wrong: dict[Link, int]
    lost: dict[Link, float | None]
    sent: dict[Link, dict[str, int | None]]
    rails: list[RailRanks] = field(default_factory=list)
    at_once: FaultSearchResult | None = None
    one_rail: float = 0.0
    alone: dict[Link, float] = field(default_factory=dict)
    stalls: dict[Link, float] = field(default_factory=dict)


@dataclass(frozen=True)
class BadSender:
    """Fault that a control plants on one rank: its delay, and the share it reports as resent."""

    rank: int
    delay_s: float
    resent_share: float


def run_pair_search(
    gang: Gang,
    node_names: dict[str, str],
    max_lost: float = 1.0,
    full: bool = False,
    rails: list[RailRanks] | None = None,
    at_once: bool = True,
    first: list[list[Pair]] | None = None,
) -> PairSearch:
    """Find links that are slow, lose packets, change data, or take a detour.

    On each rail (by default one, the first rank of each node) every rank meets the same local rank
    of its partner.  One rail meets in each direction separately.  Several rails first meet all
    `at_once`, both ways.  Then each rail meets alone in one round.  A pair that was as fast and
    clean at once as such a rail needs no other meeting; the other pairs meet rail by rail, in each
    direction separately.  A link that loses more than `max_lost` of its packets is lossy.

    Up to 8 nodes (7 rounds), or with the `full` matrix (n - 1 rounds), every pair meets.  Otherwise
    a far, a near and maybe two more rounds find bad nodes, or those of `first`.
    """
    rails = rails or [first_rail(gang, node_names)]
    single = _Meetings(gang, rails, max_lost)
    if len(rails) == 1 or not at_once:
        return _search(single, full, first)
    together = _Meetings(gang, rails, max_lost, is_at_once=True)
    all_rails = together.search_slow(full, first)
    one_rail = single.measure_base()
    single.trust(together)
    found = _search(single, full, first)
    wrong = {link: found.wrong.get(link, 0) + count for link, count in together.wrong.items()}
    wrong = {**found.wrong, **wrong}
    coverage = f"{found.speed.coverage}. {len(single.trusted) // 2} of these pairs were tested "
    coverage += "with all rails at once only, and were as fast as one rail alone"
    speed = replace(found.speed, coverage=coverage)
    return replace(found, speed=speed, at_once=all_rails, one_rail=one_rail, wrong=wrong)


def first_rail(gang: Gang, node_names: dict[str, str]) -> RailRanks:
    """Return the rail of the first rank of each node; no fabric is expected of it."""
    return find_rails([node_names[place.node] for place in gang.places], None, "")[0]


def run_few_pairs(
    gang: Gang,
    rail: RailRanks,
    nodes: int,
    bad: BadSender | None = None,
    environment: dict[str, str | None] | None = None,
) -> PairSearch:
    """Search the pairs of the first `nodes` nodes of a rail, with a planted fault (a control's).

    No pair meets twice: the planted fault is there the first time.
    """
    few = replace(rail, ports=dict(islice(rail.ports.items(), nodes)))
    return _search(_Meetings(gang, [few], 1.0, bad, environment, is_control=True))


def _search(
    meetings: _Meetings, full: bool = False, first: list[list[Pair]] | None = None
) -> PairSearch:
    speed = meetings.search_slow(full, first)
    # The search for lossy links uses the same meetings: pairs are not measured again for it.
    ports, matrix = [[*rail.ports] for rail in meetings.rails], meetings.matrix(full)
    lossy = search_rails(ports, meetings.measure_loss, matrix, first=first)
    alone = {} if meetings.is_control else meetings.measure_alone(speed.slow_links)
    seen = meetings.wrong, meetings.lost, meetings.sent, meetings.rails
    return PairSearch(speed, lossy, *seen, alone=alone, stalls=meetings.stalls)


@dataclass
class _Meetings:
    """Results of all meetings of pairs so far: rail by rail, or all rails at once and both ways.

    `exchanged` is the GB/s both ways where pairs also met one way.  `typical` is what
    `typical_speed` says of the rails alone, if each has met once.  `known` are links that need not
    meet for the first time.  `trusted` are those that never met rail by rail.  `clean` are links
    that lost hardly a packet, and took their own rail.  `round_of` is the first round of a link
    with all rails at once.
    """

    gang: Gang
    rails: list[RailRanks]
    max_lost: float
    bad: BadSender | None = None
    environment: dict[str, str | None] | None = None
    is_control: bool = False
    is_at_once: bool = False
    speeds: dict[Link, float] = field(default_factory=dict)
    wrong: dict[Link, int] = field(default_factory=dict)
    lost: dict[Link, float | None] = field(default_factory=dict)
    tries: dict[Link, list[list[float]]] = field(default_factory=dict)  # shares lost, by meeting
    stalls: dict[Link, float] = field(default_factory=dict)
    sent: dict[Link, dict[str, int | None]] = field(default_factory=dict)
    judged: set[Link] = field(default_factory=set)
    exchanged: dict[Link, float] = field(default_factory=dict)
    typical: tuple[float, float] | None = None
    known: set[Link] = field(default_factory=set)
    trusted: set[Link] = field(default_factory=set)
    clean: set[Link] = field(default_factory=set)
    round_of: dict[Link, list[Pair]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ranks = {port: rank for rail in self.rails for port, rank in rail.ports.items()}
        self.ports = {rank: port for port, rank in self.ranks.items()}
        self.rail_of = {port: rail for rail in self.rails for port in rail.ports}

    def matrix(self, full: bool) -> bool:
        """Return whether every pair meets."""
        return full or max(len(rail.ports) for rail in self.rails) <= 8

    def search_slow(self, full: bool, first: list[list[Pair]] | None) -> FaultSearchResult:
        """Search slow links, first with the rounds of `first` if there are any."""
        ports, matrix = [[*rail.ports] for rail in self.rails], self.matrix(full)
        how = matrix, MIN_RATIO, self.typical, first, None if matrix else self.measure_alone
        return search_rails(ports, self.measure_speed, *how)

    def measure_speed(self, rounds: list[list[Pair]]) -> dict[Link, float]:
        """Let these pairs meet, if need be; return the GB/s of each of their links."""
        unknown = [[pair for pair in pairs if not self._take(pair)] for pairs in rounds]
        if self.is_at_once:
            self._meet(self._repeat_rounds(unknown), (BOTH_WAYS,))
        else:
            self._meet(unknown, (ONE_WAY,))
        return {link: self.speeds[link] for link in _links_of(rounds)}

    def _take(self, pair: Pair) -> bool:
        """Return whether the first meeting of this pair is known; the next one is not."""
        links = {pair, pair[::-1]}
        met = self.speeds.keys() if self.is_control else self.known
        is_known = links <= met
        self.known -= links
        return is_known

    def _repeat_rounds(self, rounds: list[list[Pair]]) -> list[list[Pair]]:
        """Replace pairs that have met by their whole first rounds: faults may need that load."""
        pairs = [pair for pairs in rounds for pair in pairs]
        first = [self.round_of[pair] for pair in pairs if pair in self.round_of]
        fresh = [[pair for pair in pairs if pair not in self.round_of] for pairs in rounds]
        for one in fresh:
            self.round_of |= dict.fromkeys(_links_of([one]), one)
        return [*{id(one): one for one in first}.values(), *fresh]

    def _meet(self, rounds: list[list[Pair]], ways: tuple[str, ...]) -> None:
        """Let these pairs meet, in these ways."""
        split = [*chain.from_iterable(map(self._split, rounds))]
        self.trusted -= {*_links_of(split)}
        table = [[(self.ranks[a], self.ranks[b]) for a, b in pairs] for pairs in split]
        directions = 2 * (ONE_WAY in ways) + (BOTH_WAYS in ways)
        for start in range(0, len(table), JOB_ROUNDS):
            batch = table[start : start + JOB_ROUNDS]
            timeout_s = init_seconds(self.gang.size) + 30 + WAY_SECONDS * directions * len(batch)
            repeats = FEW_REPEATS if self.is_control else REPEATS
            call: tuple[Any, ...] = repeats, None, counters.LinkReader, None, ways
            if bad := self.bad:
                slow = bad.rank, bad.delay_s
                call = repeats, None, partial(_make_reader, bad.rank, bad.resent_share), slow, ways
            rounds_of = zip(*(own_parts(pairs, self.gang.size) for pairs in batch), strict=True)
            met = self.gang.run(
                pair_sweep, *call, timeout=timeout_s, environment=self.environment,
                each=[(own,) for own in rounds_of],
            )  # fmt: skip
            for rank, meetings in enumerate(met):
                if rank in self.ports:  # the others did not meet anyone
                    self._note(self.ports[rank], meetings)

    def measure_base(self) -> float:
        """Let each rail meet once while no other does; return its typical GB/s both ways.

        One round for each rail, with as many pairs as in a round with all rails: what it shares
        with other rails is then free, and what it has alone is as full.
        """
        rounds = [next(fault_search.round_robin([*rail.ports]), []) for rail in self.rails]
        self._meet(rounds, (ONE_WAY, BOTH_WAYS))
        self.known.update(_links_of(rounds))
        self.typical = fault_search.typical_speed(self.speeds.values(), MIN_RATIO)
        return fault_search.typical_speed(self.exchanged.values(), MIN_RATIO)[0]

    def trust(self, together: _Meetings) -> None:
        """Take over pairs that all rails at once did not slow: rail by rail they are no slower."""
        least = MIN_RATIO * self.typical[0] if self.typical else float("inf")
        fast = {link for link, speed in together.speeds.items() if speed >= least}
        good = (fast & together.clean) - self.known
        for link in good & {link[::-1] for link in good}:
            self.speeds[link], self.lost[link] = together.speeds[link], together.lost[link]
            self.sent[link] = together.sent[link]
            self.trusted.add(link)
        self.known |= self.trusted

    def measure_alone(self, links: list[Link]) -> dict[Link, float]:
        """Measure the pairs of these links again, one after the other; GB/s by link.

        At most MAX_ALONE pairs: they show whether slow links are slow by themselves.  All rails at
        once: those of the two nodes.
        """
        pairs = list(dict.fromkeys((min(link), max(link)) for link in links))[:MAX_ALONE]
        if len(pairs) < 2:
            return {}
        before, self.speeds = self.speeds, {}
        if self.is_at_once:
            nodes = dict.fromkeys((node_of(a), node_of(b)) for a, b in pairs)
            names = [rail.name for rail in self.rails]
            rounds = [
                [(port_name(name, a), port_name(name, b)) for name in names] for a, b in nodes
            ]
            self._meet(rounds, (BOTH_WAYS,))
        else:
            self.measure_speed([[pair] for pair in pairs])
        alone, self.speeds = self.speeds, before
        return alone

    def _split(self, pairs: list[Pair]) -> list[list[Pair]]:
        """Split a round into one for each rail, unless all rails meet at once."""
        if self.is_at_once:
            return [pairs] if pairs else []
        by_rail = [[pair for pair in pairs if pair[0] in rail.ports] for rail in self.rails]
        return [found for found in by_rail if found]

    def measure_loss(self, rounds: list[list[Pair]]) -> dict[Link, float]:
        """Return 1 for each link that loses no more than is allowed, else 0.

        Pairs that have not met, or were judged before, meet now.
        """
        fresh = [
            [pair for pair in pairs if pair not in self.speeds or pair in self.judged]
            for pairs in rounds
        ]
        if fresh := [pairs for pairs in fresh if pairs]:
            self.measure_speed(fresh)
        links = _links_of(rounds)
        self.judged.update(links)
        # A loss in one try of all: its repeat decides.
        tries = {link: [0.0, *chain(*self.tries.get(link, ()))] for link in links}
        once = (link for link in links if max(tries[link]) > self.max_lost)
        once = (link for link in once if (self.lost.get(link) or 0.0) <= self.max_lost)
        again = dict.fromkeys((min(link), max(link)) for link in once)
        self.measure_speed(fault_search.pack_rounds(again))
        return {link: float((self.lost.get(link) or 0.0) <= self.max_lost) for link in links}

    def _note(self, port: str, met: RankMeetings) -> None:
        """Record what the rank of this port observed."""
        both = self.speeds if self.is_at_once else self.exchanged
        data = [(rank, *found, self.speeds) for rank, found in met.received.items()]
        data += [(rank, *found[:2], both) for rank, found in met.exchanged.items()]
        for rank, speed, wrong, speeds in data:
            link = self.ports[rank], port
            speeds[link] = speed
            self.wrong[link] = self.wrong.get(link, 0) + wrong
        for rank, stall in met.stalls.items():
            link = self.ports[rank], port
            self.stalls[link] = max(self.stalls.get(link, 0.0), stall)
        for rank, readings in met.sent.items():
            link = port, self.ports[rank]
            self._note_counts(link, readings, met.exchanged[rank][2] if self.is_at_once else 0)

    def _note_counts(self, link: Link, readings: list[Any], payload: int) -> None:
        """Record what the sender counted; `payload` is what its rank sent with all rails at once.

        RDMA's packets are those of all its node's ranks: there all losses may be of this link.
        """
        rail, grown = self.rail_of[link[0]], counters.bytes_sent(readings)
        shares = counters.lost_shares(readings) or []
        if self.is_at_once:
            shares = [one * len(self.rails) for one in shares]
            share = max(shares, default=None)
            is_sound = share is not None and share <= min(counters.SOUND_LOSS, self.max_lost)
            is_clean = is_sound and is_own_rail(rail, self.rails, grown, payload)
            (self.clean.add if is_clean else self.clean.discard)(link)
            own = {*interfaces_of(rail.fabric)}
            others = {name for one in self.rails for name in interfaces_of(one.fabric)} - own
            grown = {name: count for name, count in grown.items() if name not in others}
        meetings = self.tries.setdefault(link, [])
        meetings += [shares] if shares else []
        self.lost[link] = counters.lasting_loss(meetings, self.max_lost) if meetings else None
        self.sent[link] = join_fabric(grown, rail.fabric)


def _make_reader(bad_rank: int, resent_share: float) -> counters.LinkReader:
    """Make the reader of this rank; that of the bad rank reports packets as resent."""
    return counters.LinkReader(resent_share if os.environ["RANK"] == str(bad_rank) else 0.0)


def _links_of(rounds: list[list[Pair]]) -> list[Link]:
    """List both directions of each pair."""
    return [link for pairs in rounds for a, b in pairs for link in ((a, b), (b, a))]


@dataclass(frozen=True)
class NodeGroupsResult:
    """Results of groups of about sqrt(n) nodes.

    `nodes` make each of their groups slow.  `groups` are slow groups that no such node explains.
    `wrong` counts wrong elements by node.  `coverage` is one sentence.  `fast` are groups at full
    speed, of the first partition: their nodes are near each other.
    """

    nodes: list[str]
    groups: list[list[str]]
    wrong: dict[str, int]
    coverage: str
    fast: list[list[str]] = field(default_factory=list)


def run_groups(
    gang: Gang, groups: list[list[int]], slow: tuple[int, float] | None = None
) -> list[tuple[float, int]]:
    """Time all-reduce in disjoint groups of ranks at once; return what `group_sweep` does."""
    each = [(own,) for own in own_parts(groups, gang.size)]
    timeout_s = 2 * init_seconds(gang.size)  # all ranks connect, and then those of each group
    return gang.run(node_groups.group_sweep, None, slow, each=each, timeout=timeout_s)


def run_group_search(gang: Gang, node_names: dict[str, str]) -> NodeGroupsResult:
    """Find faults that pairs are too small to show: all-reduce in groups, all at once."""
    rank_nodes = [node_names[place.node] for place in gang.places]
    wrong, sizes, tried = dict[str, int](), set[int](), 0
    first: list[tuple[list[str], float]] = []

    def trial(parts: list[list[str]]) -> list[float]:
        nonlocal tried
        tried += len(parts)
        sizes.update(map(len, parts))
        ranks = [[i for i, name in enumerate(rank_nodes) if name in group] for group in parts]
        results = run_groups(gang, ranks)
        for name, (_, wrong_count) in zip(rank_nodes, results, strict=True):
            wrong[name] = wrong.get(name, 0) + wrong_count
        speeds = [min(results[rank][0] for rank in group) for group in ranks]
        first.extend(() if first else zip(parts, speeds, strict=True))
        return speeds

    bad_nodes, groups = node_groups.search_groups(list(ranks_by_node(rank_nodes)), trial, MIN_RATIO)
    coverage = f"{tried} groups of {min(sizes)} to {max(sizes)} nodes, all of them at once"
    best = max(speed for _, speed in first)
    fast = [group for group, speed in first if speed >= MIN_RATIO * best]
    return NodeGroupsResult(bad_nodes, groups, wrong, coverage, fast)


def run_leaf_search(gang: Gang, node_names: dict[str, str], groups: list[list[str]]) -> PairSearch:
    """Let one node of each group meet those of all others: groups of one leaf are fast together."""
    rail = first_rail(gang, node_names)
    few = replace(rail, ports={group[0]: rail.ports[group[0]] for group in groups})
    return _search(_Meetings(gang, [few], max_lost=1.0), full=True)


def run_wrong_search(gang: Gang, node_names: dict[str, str]) -> FaultSearchResult:
    """Find which node makes an all-reduce wrong for all ranks: two nodes at a time.

    Speeds in the result are 1, or 0 where an element was wrong.
    """
    rank_nodes = [node_names[place.node] for place in gang.places]

    def meet(rounds: list[list[Pair]]) -> dict[Link, float]:
        found = {}
        for pairs in rounds:
            ranks = [[i for i, name in enumerate(rank_nodes) if name in pair] for pair in pairs]
            results = run_groups(gang, ranks)
            for (a, b), group in zip(pairs, ranks, strict=True):
                is_right = not any(results[rank][1] for rank in group)
                found[a, b] = found[b, a] = float(is_right)
        return found

    return fault_search.search_faults(list(ranks_by_node(rank_nodes)), meet)


@dataclass(frozen=True)
class InsideSpeeds:
    """Busbw (GB/s) and wrong elements of the all-reduce inside each node that has several ranks.

    `left_out` are nodes with one rank: they have nothing to reduce.  `ranks` is their number by
    node, `models` are the GPUs of each kind of node that was ordered: only nodes with as many ranks
    and the same GPUs are compared.
    """

    busbw: dict[str, float]
    wrong: dict[str, int]
    left_out: list[str]
    ranks: dict[str, int]
    models: Mapping[str, str] = field(default_factory=dict)

    def typical(self, node: str) -> float:
        """Return the busbw (GB/s) of a healthy node like this one; of two, the faster counts."""
        speeds = [self.busbw[peer] for peer in self.peers(node)]
        return fault_search.typical_speed(speeds, MIN_RATIO)[0]

    def peers(self, node: str) -> list[str]:
        """List the nodes that this one is compared with, itself too."""
        kinds = {peer: (self.ranks[peer], self.models.get(peer)) for peer in self.busbw}
        return [peer for peer in kinds if kinds[peer] == kinds[node]]

    def shares(self) -> dict[str, float]:
        """Return each node's busbw as a ratio of its typical one, where there are several nodes."""
        known = {node: self.typical(node) for node in self.busbw if len(self.peers(node)) > 1}
        return {node: self.busbw[node] / at if at else 0.0 for node, at in known.items()}


def measure_inside(
    gang: Gang, rank_nodes: Sequence[str], slow: tuple[int, float] | None = None
) -> InsideSpeeds:
    """Run an all-reduce inside each node, all at the same time.

    `slow` (rank, seconds) is for a control: that rank begins each call late.  Raises GangError.
    """
    by_node = ranks_by_node(rank_nodes)
    groups = {node: ranks for node, ranks in by_node.items() if len(ranks) > 1}
    results = run_groups(gang, [*groups.values()], slow) if groups else []
    return InsideSpeeds(
        {node: min(results[rank][0] for rank in ranks) for node, ranks in groups.items()},
        {node: sum(results[rank][1] for rank in ranks) for node, ranks in groups.items()},
        [node for node in by_node if node not in groups],
        {node: len(ranks) for node, ranks in groups.items()},
    )


def judge_inside(inside: InsideSpeeds, measure: Recorder, *, alone: bool = False) -> None:
    """Judge the slowest node as a share of a typical one, and each by the agreed figure, if any.

    `alone`: one node was ordered, so that figure decides alone, and must be there.
    """
    name = check.ALL_REDUCE_INSIDE_NODE
    if not inside.busbw:
        measure.covered("all-reduce inside nodes was not tested: each node has one rank")
        if alone:
            measure(name, None, note="the node has one rank, and links inside it need two")
        return
    measure(check.WRONG_ELEMENTS, sum(inside.wrong.values()), on="all-reduce inside nodes")
    if not alone:
        shares, against = inside.shares(), check.ALL_REDUCE_INSIDE_NODE_AGAINST_OTHERS
        where, share = min(shares.items(), key=lambda item: item[1], default=("cluster", None))
        note = "" if shares else UNLIKE
        measure(against, share, on=where, samples=len(shares) or None, note=note)
        lone = [node for node in inside.busbw if node not in shares]
        if lone and shares and not is_agreed(measure, name):
            note = f"no other node has as many ranks and the same GPUs: agree on [FABRIC.{name}]"
            measure(f"{name}_against_others", None, on=join_names(lone), note=note)
    slowest, speed = min(inside.busbw.items(), key=lambda item: item[1])
    if alone or is_agreed(measure, name):
        measure(name, speed, on=slowest, samples=len(inside.busbw))
    else:
        measure.note(name, speed, "GB/s", on=slowest)
    least = lowest(measure, f"{name}_against_others")
    measure.explain(find_slow_inside(inside, least, lowest(measure, name)))
    left_out = f"; not in {join_names(inside.left_out)} (one rank)" if inside.left_out else ""
    nodes = quantity(len(inside.busbw), "nodes")
    measure.covered(f"all-reduce inside {nodes}{', all at once' * (not alone)}{left_out}")


def find_slow_inside(inside: InsideSpeeds, least: float, agreed: float | None) -> Iterator[Finding]:
    """Name each node whose all-reduce is below `least` of the typical, or below the agreed figure.

    If every node is below the agreed figure, one finding names them all.
    """
    shares = inside.shares()
    slow = [node for node, share in shares.items() if share < least]
    if is_most := 2 * len(slow) > len(shares) > 2:
        best = max(inside.peers(slow[0]), key=lambda node: inside.busbw[node])
        most = quantity(max(inside.busbw[node] for node in slow), "GB/s")
        possible = quantity(inside.busbw[best], "GB/s")
        part = f"{len(slow)} of {len(shares)} nodes"
        message = f"all-reduce inside a node: {describe_most(slow, part, most, best, possible)}"
        yield finding("FAB-SLOW-INSIDE", message, slow[:MAX_NAMES])
    for node in slow if not is_most else ():
        typical = quantity(inside.typical(node), "GB/s")
        message = f"all-reduce inside {node}: {quantity(inside.busbw[node], 'GB/s')}, "
        message += f"{percent(shares[node])} of a typical node's {typical}"
        yield finding("FAB-SLOW-INSIDE", message, [node])
    below = [n for n, speed in inside.busbw.items() if agreed and speed < agreed and n not in slow]
    if below:
        speeds = quantity(min(inside.busbw[node] for node in below), "GB/s")
        message = f"all-reduce inside {join_names(below)}: {speeds}. "
        message += f"Agreed: {quantity(agreed or 0.0, 'GB/s')}"
        yield finding("FAB-SLOW-INSIDE", message, below)
    wrong = {node: count for node, count in inside.wrong.items() if count}
    for node, count in wrong.items():
        message = f"all-reduce inside {node} returned {quantity(count, 'wrong elements')}"
        yield finding("FAB-WRONG-DATA", message, [node])
