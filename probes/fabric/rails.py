"""Tests each rail by itself: cables, reach, ranks, shares and what they have in common."""

from __future__ import annotations

import json
import secrets
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from probes.check.recorder import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.network_facts import counter_growth, interfaces_of, port_bytes
from probes.cluster.node_facts import rdma_ports
from probes.cluster.system_facts import RDMA_SYSFS
from probes.environment.checks import admitted_facts, count_rails, nccl_ports, read_ib_hca
from probes.fabric.addresses import RailRanks, ask_first_ranks, first_ranks, port_name, suspects
from probes.fabric.reach import ReachabilityResult, find_unreachable, judge_reach, reach_series
from probes.findings import finding, name_port
from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.process_group import joins_no_group
from reports.numbers import percent
from reports.record import Finding
from scaling.collectives.line_rate import active_rails
from scaling.collectives.sweep import call_seconds

ALL_MACHINES = "ff02::1"  # of a link: RFC 4291, 2.7.1
REPEAT_S = 0.2
MAX_BYTES = 1024  # of a datagram
MAX_HEARD = 100_000  # ports on one link: more than the largest clusters have
# include/uapi/linux/in6.h: struct in6_pktinfo is an address and the number of the interface.
PKTINFO = struct.Struct("16sI")

Heard = Mapping[str, list[tuple[str, str]]]  # own interface -> (node, its interface)


@joins_no_group
def hear_rails(
    interfaces: Sequence[str], port: int, token: str, seconds: float, node: str
) -> dict[str, list[tuple[str, str]]]:
    """Send and listen on these interfaces; return who was heard on which: (node, interface).

    `token` tells this run's datagrams from others.  Empty where IPv6 is off.
    """
    heard: dict[str, set[tuple[str, str]]] = {name: set() for name in interfaces}
    with suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
        sock.bind(("::", port))
        names = {number: name for number, name in socket.if_nameindex() if name in interfaces}
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for number, name in names.items():
                data = json.dumps([token, node, name]).encode()
                with suppress(OSError):  # an interface that is down
                    sock.sendto(data, (ALL_MACHINES, port, 0, number))
            until = min(deadline, time.monotonic() + REPEAT_S)
            while (left_s := until - time.monotonic()) > 0:
                if not select.select([sock], [], [], left_s)[0]:
                    break
                message = parse_message(sock.recvmsg(MAX_BYTES, 256), token)
                own = names.get(message[0]) if message else None
                if message and own and message[1] != node and len(heard[own]) < MAX_HEARD:
                    heard[own].add(message[1:])
    return {name: sorted(found) for name, found in heard.items() if found}


def parse_message(received: tuple[Any, ...], token: str) -> tuple[int, str, str] | None:
    """Parse what `recvmsg` returned: (number of the own interface, sender, its interface).

    None for a datagram of somebody else.
    """
    data, control, *_ = received
    with suppress(ValueError, RecursionError, struct.error):
        numbers = [
            PKTINFO.unpack(value[: PKTINFO.size])[1]
            for level, kind, value in control
            if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO)
        ]
        message = json.loads(data)
        if numbers and isinstance(message, list) and len(message) == 3 and message[0] == token:
            return numbers[0], str(message[1]), str(message[2])
    return None


def find_swapped(heard: Mapping[str, Heard]) -> dict[str, dict[str, str]]:
    """Find nodes with rails in another rail's switch: node -> interface -> that rail.

    `heard` is by node.  On a link where one node is plugged wrongly, all others hear each other's
    same rail: most of what a node hears decides, and most nodes of the rail must be right.
    """
    swapped: dict[str, dict[str, str]] = {}
    for node, by_interface in heard.items():
        for name, others in ((name, found) for name, found in by_interface.items() if found):
            rails = Counter(rail for _, rail in others)
            most, count = rails.most_common(1)[0]
            if most != name and count * 2 > len(others) and name not in rails:
                swapped.setdefault(node, {})[name] = most
    odd = {
        node: {name: rail for name, rail in rails.items() if _is_sound(heard, swapped, name, rail)}
        for node, rails in swapped.items()
    }
    return {node: rails for node, rails in odd.items() if rails}


def _is_sound(
    heard: Mapping[str, Heard], swapped: Mapping[str, Mapping[str, str]], name: str, rail: str
) -> bool:
    """Return whether more nodes are right than wrong on both rails: else no node is odd."""
    wrong = sum(name in rails or rail in rails for rails in swapped.values())
    return wrong * 2 < len(heard)


def swapped_findings(swapped: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Make one finding per node whose rails are plugged into other rails' switches."""
    for node, rails in swapped.items():
        texts = [f"{name} is plugged into the switch of {rail}" for name, rail in rails.items()]
        message = f"{node}: {', '.join(texts)}. Expected: each rail on its own switch"
        names = {"interface": next(iter(rails))}
        ports = [port_name(name, node) for name in rails]
        yield finding("FAB-RAILS-SWAPPED", message, suspects(ports), names=names)


HEAR_SECONDS = 3.0  # all nodes send and listen; a busy node begins late
FIRST_PORT, PORTS = 40_000, 20_000  # one of these ports for a run's datagrams


def judge_rails_reach(
    gang: Gang,
    node_names: dict[str, str],
    reach: Mapping[str | None, ReachabilityResult],
    measure: Recorder,
) -> None:
    """Judge the reach of each rail, by its interface; name swapped cables instead of dead ports."""
    swapped: dict[str, dict[str, str]] = {}
    several = len(reach) > 1
    if several and any(find_unreachable(one) for one in reach.values()):
        swapped = hear_swapped(gang, node_names, [*filter(None, reach)])
    for rail, one in reach.items():
        explained = [node for node, rails in swapped.items() if rail in rails]
        judge_reach(one, measure, str(rail) if several else "", explained)
    measure.explain(swapped_findings(swapped))


def record_reach(reach: Mapping[str | None, ReachabilityResult], measure: Recorder) -> None:
    """Record the chart's map of the rail on which most pairs cannot connect."""
    measure.series("pairs", reach_series(max(reach.values(), key=lambda one: len(one.pairs))))


def hear_swapped(
    gang: Gang, node_names: dict[str, str], interfaces: list[str]
) -> dict[str, dict[str, str]]:
    """Find swapped rails; none if a rank does not answer, for then its node is named anyhow."""
    try:
        return find_swapped(listen(gang, node_names, interfaces))
    except GangError:
        return {}


def listen(
    gang: Gang, node_names: dict[str, str], interfaces: list[str]
) -> dict[str, dict[str, list[tuple[str, str]]]]:
    """Let each node note whom it hears on which interface; by node.

    Anyone on the link can send such a datagram: only names that are known here are kept.
    """
    first = first_ranks(gang, node_names)
    port = FIRST_PORT + secrets.randbelow(PORTS)
    arguments = interfaces, port, secrets.token_hex(8), HEAR_SECONDS
    each, timeout_s = {node: [node] for node in first}, call_seconds(len(gang.places))
    heard = ask_first_ranks(gang, first, hear_rails, *arguments, each=each, timeout=timeout_s)
    return {
        node: {
            name: [(peer, rail) for peer, rail in others if peer in first and rail in interfaces]
            for name, others in by_interface.items()
        }
        for node, by_interface in heard.items()
    }


@joins_no_group
def read_rails(root: str = RDMA_SYSFS) -> dict[str, dict[str, Any]]:
    """Read this node's active rails by `device/port`: rate in Gbit/s and bytes sent since boot.

    Ports that NCCL must not use are left out: they are for storage, however fast.
    """
    rails = active_rails(nccl_ports(rdma_ports(root), read_ib_hca()))
    folders = {rail.name: Path(root, rail.name.replace("/", "/ports/")) for rail in rails}
    return {
        rail.name: {"gbps": rail.gbps, "sent": port_bytes(folders[rail.name])} for rail in rails
    }


def count_installed(cluster: Cluster, fabric: str | None, nodes: Container[str]) -> int | None:
    """Count the rails that the best of these nodes has, active or not; None without any."""
    if fabric != "rdma":
        return None
    facts = [fact for fact in cluster.facts if fact["name"] in nodes]
    return count_rails(admitted_facts(facts, cluster.on_each_node(read_ib_hca)))


def bytes_by_interface(
    grown: Mapping[str, int | None], fabric: str | None
) -> dict[str, int | None]:
    """Select what each interface of a fabric sent; empty if the fabric has one."""
    names = interfaces_of(fabric)
    return {name: grown[name] for name in names if name in grown} if len(names) > 1 else {}


def is_own_rail(
    rail: RailRanks, rails: Sequence[RailRanks], grown: Mapping[str, int | None], payload: int
) -> bool:
    """Return whether a rank's bytes left by its own rail, while each rank sent `payload` bytes.

    Devices of several rails count together (RDMA).  If most bytes of one rank took no rail, half of
    them at least were counted elsewhere.  False if a counter cannot be read.
    """
    devices = {one.name: interfaces_of(one.fabric) or [one.fabric or ""] for one in rails}
    every = {name for names in devices.values() for name in names}
    known = {name: count for name, count in grown.items() if count is not None}
    own = sum(known.get(name, 0) for name in devices[rail.name])
    elsewhere = sum(count for name, count in known.items() if name not in every)
    sharing = sum(one.fabric == rail.fabric for one in rails)
    counted = len(known) == len(grown) and own >= (sharing - 0.5) * payload > 0
    return counted and elsewhere < payload / 2


def rail_growth(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, int | None]:
    """Count the bytes that each rail sent between two readings.

    A rail that is gone has sent nothing.  None if a counter cannot be read.
    """
    first = {name: port["sent"] for name, port in before.items()}
    grown = counter_growth(first, {name: {**before, **after}[name]["sent"] for name in first})
    return {name: count if count is None else max(0, count) for name, count in grown.items()}


def rail_shares(sent: Mapping[str, int | None], count: int) -> dict[str, float]:
    """Compute what each of the `count` busiest ports sent, as a ratio of an equal part.

    Further ports are as fast as rails, but were not ordered as such: they are for storage.  Empty
    if a counter cannot be read, because that port may have sent the most.
    """
    known = {name: bytes_sent for name, bytes_sent in sent.items() if bytes_sent is not None}
    if len(known) < len(sent):
        return {}
    busiest = sorted(known, key=lambda name: -known[name])[:count]
    total = sum(known[name] for name in busiest)
    return {name: known[name] * len(busiest) / max(total, 1) for name in busiest}


def find_idle_rails(nodes: Mapping[str, Mapping[str, float]], min_share: float) -> list[Finding]:
    """Make one finding per node with a rail that carried under `min_share` of its part."""
    findings = []
    for node, shares in nodes.items():
        idle = {name: share for name, share in shares.items() if share < min_share}
        if idle:
            each = ", ".join(f"{name} {percent(share)}" for name, share in sorted(idle.items()))
            message = f"the rails of {node} carry unequal loads. "
            message += f"Share of an equal load: {each}"
            names = name_port(min(idle, key=lambda name: idle[name]))
            suspects = [node, *sorted(idle)]
            findings.append(finding("FAB-PARTIAL-RAILS", message, suspects, names=names))
    return findings


def find_missing_rails(
    counts: Mapping[str, int], expected: int, rates: Mapping[str, float], need: float, whose: str
) -> Iterator[Finding]:
    """Make one finding per node with fewer active rails than it should have, or slower ones.

    `rates` are in Gbit/s, of each node's rails; each rail must have `need`, as `whose` have it.
    """
    for node, count in counts.items():
        if count and rates.get(node, need) < need:
            message = f"{node}: each of its {count} rails runs at {rates[node]:g} Gbit/s. "
            message += f"Expected: {need:g} Gbit/s, as {whose}"
        elif count < expected:
            message = f"{node}: {count} of {expected} rails are active and allowed by NCCL_IB_HCA"
        else:
            continue
        yield finding("FAB-PARTIAL-RAILS", message, [node])
