"""Builds the lab's networks inside namespaces; nothing is added to the host's own.

A switch namespace `<lab>x` holds the bridges (see `switch`). Each node namespace `<lab><i>` has
`fab0` (10.77.0.<i+1>/24, the fabric) and `eth0` (10.78.0.<i+1>/24, management). With several rails
it has `fab<r>` (10.77.<r>.<i+1>/24) for each. There is no default route and no way out.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import Any

from tests.lab.shell import LabError, sh

FABRICS = "10.77"  # of all rails
RATE = r"\d+(\.\d+)?[kmg]bit"
USUAL_MTU = 1500
TBF = ("tbf", "burst", "128kb", "latency", "50ms")
LOOSE = "2"  # rp_filter: a sender is accepted if any interface leads back to it
CLIENT = "c"  # a client of the lab, on the management network only


def namespace(lab: str, node: int | str) -> str:
    """Return a namespace's name: `sea0`, `sea1`, ...; `seac` is the client, `seax` the switch."""
    return f"{lab}{node}"


def address(interface: str, node: int) -> str:
    """Return the IPv4 address of a node on the network of `interface`."""
    return f"{prefix(interface)}.{node + 1}"


def prefix(interface: str) -> str:
    """Return the network of an interface, without its last number."""
    return "10.78.0" if interface == "eth0" else f"{FABRICS}.{interface.removeprefix('fab')}"


def interfaces(rails: int) -> list[str]:
    """List a node's interfaces: its rails, then management."""
    return [*(f"fab{rail}" for rail in range(rails)), "eth0"]


def existing(lab: str) -> list[str]:
    """List the names of the lab's namespaces that exist now."""
    names = [line.split()[0] for line in sh("ip", "netns", "list", quiet=True).splitlines() if line]
    tails = {name: name.removeprefix(lab) for name in names if name.startswith(lab)}
    return [name for name, tail in tails.items() if tail.isdigit() or tail in ("x", CLIENT)]


def shape(lab: str, node: int, interface: str, rate: str, way: str = "both") -> None:
    """Limit the node's link to `rate` (as tc writes it: 1gbit, 50mbit): both ways, or one.

    `way` is both, sends or receives, as the node sees it.
    """
    ends = {
        "sends": (namespace(lab, node), interface),
        "receives": (namespace(lab, "x"), f"{interface}-{node}"),
    }
    for name, device in ends.values() if way == "both" else [ends[way]]:
        limit(name, device, rate)


def check_rate(rate: str) -> None:
    """Raise LabError if this is no rate as tc writes it."""
    if not re.fullmatch(RATE, rate):
        raise LabError(f"a rate is written as tc does (100mbit, 1gbit), found {rate!r}")


def limit(name: str, device: str, rate: str) -> None:
    """Limit what a device of the namespace `name` sends to `rate`; "" removes the limit."""
    sh("tc", "-n", name, "qdisc", "del", "dev", device, "root", quiet=True)
    if rate:
        sh("tc", "-n", name, "qdisc", "add", "dev", device, "root", *TBF, "rate", rate)


def shape_toward(lab: str, node: int, interface: str, usual: str, peer: int, rate: str) -> None:
    """Limit what the node sends to one peer to `rate`, and all else to `usual` as before.

    `shape` undoes it.
    """
    device = ("dev", interface)
    tc = ("tc", "-n", namespace(lab, node))
    sh(*tc, "qdisc", "replace", *device, "root", "handle", "1:", "htb", "default", "10")
    for kind, held in (("10", usual), ("20", rate)):
        share = ("htb", "rate", held, "burst", "128kb", "quantum", "60000")
        sh(*tc, "class", "add", *device, "parent", "1:", "classid", f"1:{kind}", *share)
    match = ("u32", "match", "ip", "dst", f"{address(interface, peer)}/32", "flowid", "1:20")
    sh(*tc, "filter", "add", *device, "parent", "1:", "protocol", "ip", *match)


def share_directions(lab: str, node: int, interface: str, rate: str) -> None:
    """Limit what the node sends and receives, together, to `rate`; the port's own limit stays.

    Both go through one queue at the switch's port. `part_directions` undoes it.
    """
    outside, port, queue = namespace(lab, "x"), f"{interface}-{node}", f"half-{node}"
    sh("ip", "-n", outside, "link", "add", queue, "type", "ifb")
    sh("ip", "-n", outside, "link", "set", queue, "up")
    tc = ("tc", "-n", outside)
    sh(*tc, "qdisc", "add", "dev", queue, "root", *TBF, "rate", rate)
    sh(*tc, "qdisc", "add", "dev", port, "clsact")
    for way in ("ingress", "egress"):
        every = ("protocol", "ip", "u32", "match", "u32", "0", "0")
        redirect = ("action", "mirred", "egress", "redirect", "dev", queue)
        sh(*tc, "filter", "add", "dev", port, way, *every, *redirect)


def part_directions(lab: str, node: int, interface: str) -> None:
    """Restore the full rate in each direction."""
    outside = namespace(lab, "x")
    sh("tc", "-n", outside, "qdisc", "del", "dev", f"{interface}-{node}", "clsact", quiet=True)
    sh("ip", "-n", outside, "link", "del", f"half-{node}", quiet=True)


def rate(lab: str, node: int, interface: str) -> str:
    """Return the rate that tc reports for a node's link, as tc prints it: `1Gbit`."""
    words = sh("tc", "-n", namespace(lab, node), "qdisc", "show", "dev", interface).split()
    return words[words.index("rate") + 1] if "rate" in words else "unshaped"


def limit_packets(lab: str, node: int, interface: str, mtu: int) -> None:
    """Limit packets to `mtu` bytes at the switch's port to the node; the node's own MTU stays."""
    outside, port = namespace(lab, "x"), f"{interface}-{node}"
    sh("ip", "-n", outside, "link", "set", port, "mtu", str(mtu))


def set_mtu(lab: str, node: int, interface: str, mtu: int) -> None:
    """Set the MTU of a node's own interface."""
    sh("ip", "-n", namespace(lab, node), "link", "set", interface, "mtu", str(mtu))


def filter_packets(lab: str, node: int | str, rules: str, quiet: bool = False) -> None:
    """Apply nft rules in a namespace; `quiet` accepts that nft refuses them."""
    sh(*inside(lab, node), "nft", "-f", "-", text=rules, quiet=quiet)


def inside(lab: str, node: int | str) -> list[str]:
    """Return the words before a command that run it in a namespace."""
    return ["nsenter", f"--net=/run/netns/{namespace(lab, node)}"]


def lose_packets(
    lab: str, node: int, interface: str, way: str, percent: float, peers: Sequence[int] = ()
) -> None:
    """Drop `percent` of what the node sends, or receives, at random at the switch's port.

    With `peers`, what it sends to them alone.  `keep_packets` undoes it.
    """
    hook, port = ("ingress" if way == "sends" else "egress"), f"{interface}-{node}"
    keep_packets(lab, node, interface, way)
    table, parts = f"netdev lose-{port}-{way}", round(percent * 10_000)  # per million
    only = (
        f"ip daddr {{ {', '.join(address(interface, peer) for peer in peers)} }} " if peers else ""
    )
    rules = (
        f"add table {table}\n"
        f'add chain {table} {hook} {{ type filter hook {hook} device "{port}" priority 0; }}\n'
        f"add rule {table} {hook} {only}numgen random mod 1000000 < {parts} drop\n"
    )
    filter_packets(lab, "x", rules)


def keep_packets(lab: str, node: int, interface: str, way: str) -> None:
    """Stop dropping packets at the switch's port."""
    table = f"netdev lose-{interface}-{node}-{way}"
    filter_packets(lab, "x", f"delete table {table}\n", quiet=True)


def segments(lab: str, node: int, interface: str) -> int:
    """Return how many TCP segments the node passes to its interface as one packet, at most."""
    found: int = _details(namespace(lab, node), interface)["gso_max_segs"]
    return found


def limit_segments(lab: str, node: int, interface: str, count: int) -> None:
    """Limit the TCP segments that the node passes to its interface as one packet to `count`."""
    name = namespace(lab, node)
    sh("ip", "-n", name, "link", "set", interface, "gso_max_segs", str(count))


def _details(name: str, device: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sh("ip", "-n", name, "-d", "-j", "link", "show", device))[0]
    return found


def set_port(lab: str, node: int, interface: str, state: str) -> None:
    """Set the switch's port `up` or `down`; down takes the node's carrier, and nothing else."""
    sh("ip", "-n", namespace(lab, "x"), "link", "set", f"{interface}-{node}", state)


def has_carrier(lab: str, node: int, interface: str) -> bool:
    """Return whether the node's interface is up, has a carrier, and the switch forwards to it."""
    port = _details(namespace(lab, "x"), f"{interface}-{node}")
    own = _details(namespace(lab, node), interface)
    return "LOWER_UP" in own["flags"] and port["operstate"] == own["operstate"] == "UP"


def wait_for_carrier(lab: str, node: int, interface: str, seconds: float = 10) -> None:
    """Wait until the carrier is back; return at once if the node's own interface is down.

    Raises LabError after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not has_carrier(lab, node, interface):
        if "UP" not in _details(namespace(lab, node), interface)["flags"]:
            return
        if time.monotonic() > deadline:
            raise LabError(f"{interface} of node{node} has no carrier after {seconds:.0f} s")
        time.sleep(0.02)


def detour(lab: str, node: int, peer: int) -> None:
    """Send the node's packets for the peer's fabric address over eth0, from its fabric address."""
    sh(*_detour_route("add", lab, node, peer), "src", address("fab0", node))


def end_detour(lab: str, node: int, peer: int) -> None:
    """Send the node's packets over the fabric again."""
    sh(*_detour_route("del", lab, node, peer), quiet=True)


def _detour_route(verb: str, lab: str, node: int, peer: int) -> list[str]:
    over = ["via", address("eth0", peer), "dev", "eth0"]
    return ["ip", "-n", namespace(lab, node), "route", verb, f"{address('fab0', peer)}/32", *over]


def _source_check_file(interface: str) -> str:
    return f"/proc/sys/net/ipv4/conf/{interface}/rp_filter"


def source_check(lab: str, node: int, interface: str) -> str:
    """Return rp_filter of an interface: 0 accepts every sender, 1 the routed one, 2 a known one."""
    return sh(*inside(lab, node), "cat", _source_check_file(interface)).strip()


def set_source_check(lab: str, node: int, interface: str, value: str) -> None:
    """Set rp_filter of an interface.

    The kernel uses the larger of this value and that of all interfaces.
    """
    sh(*inside(lab, node), "tee", _source_check_file(interface), text=value)


def readdress(lab: str, node: int, interface: str, old: str, new: str) -> None:
    """Replace one address of the node's interface by another; repeated, it changes nothing."""
    ip = ("ip", "-n", namespace(lab, node), "addr")
    sh(*ip, "del", f"{old}/24", "dev", interface, quiet=True)
    sh(*ip, "replace", f"{new}/24", "dev", interface)


def forget_neighbours(lab: str, node: int, interface: str) -> None:
    """Clear the node's neighbour table (ARP) of an interface, so that the node asks again."""
    sh("ip", "-n", namespace(lab, node), "neigh", "flush", "dev", interface)


def add_interface(lab: str, node: int, interface: str, address: str) -> None:
    """Add an interface that leads nowhere to a node, and set it up with this address.

    It is an empty bridge: not every kernel has dummy interfaces.
    """
    ip = ("ip", "-n", namespace(lab, node))
    sh(*ip, "link", "add", interface, "type", "bridge")
    sh(*ip, "addr", "add", address, "dev", interface)
    sh(*ip, "link", "set", interface, "up")


def remove_interface(lab: str, node: int, interface: str) -> None:
    """Remove an interface from a node, if it is there."""
    sh("ip", "-n", namespace(lab, node), "link", "del", interface, quiet=True)


def set_link(lab: str, node: int | str, interface: str, state: str) -> None:
    """Set an interface of a node, or of the client, `up` or `down`, with `ip link set`."""
    sh("ip", "-n", namespace(lab, node), "link", "set", interface, state)


def remove(lab: str) -> None:
    """Remove the lab's namespaces, and with them their links, bridges, rates and rules."""
    for name in existing(lab):
        sh("ip", "netns", "del", name, quiet=True)
