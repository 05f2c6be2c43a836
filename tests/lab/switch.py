"""Builds the lab's switches: a bridge per network, or leaves behind uplinks, and a spine for rails.

All bridges are in the switch's namespace. With leaves, the nodes of a leaf share its bridge, and
its uplink to the network's own bridge is the only way to other leaves. With several rails, the
namespace routes between their networks, as a spine does.
"""

from __future__ import annotations

from tests.lab import network
from tests.lab.shell import sh

GATEWAY = 254  # the spine's address on each rail
TABLE = 100  # of the routes of fab0; the next rails have the next tables
# Between processes of a node, in a lab of several rails: it stands for NVLink, and is far below
# what two cores pass, so that all nodes get it at the same time.
INSIDE_RATE = "400mbit"


def build(lab: str, nodes: int, rates: dict[str, str], rails: int = 1, leaves: int = 1) -> None:
    """Make the switch, the client and the nodes; connect them and limit their rates."""
    members = [network.namespace(lab, node) for node in range(nodes)]
    members += [network.namespace(lab, "x"), network.namespace(lab, network.CLIENT)]
    sh("ip", "-batch", "-", text="".join(f"netns add {name}\n" for name in members))
    _build_bridges(lab, nodes, rates, rails, leaves)
    for node in range(nodes):
        for name in network.interfaces(rails):
            bridge = _leaf(name, leaf_of(node, nodes, leaves)) if _leaves(name, leaves) else ""
            _plug(lab, str(node), name, network.address(name, node), bridge or f"br-{name}")
            network.shape(lab, node, name, rates[name])
        if rails > 1:
            _route_by_source(lab, node, rails)
            connect_rails(lab, node, rails)
            network.limit(network.namespace(lab, node), "lo", INSIDE_RATE)
    _plug(lab, network.CLIENT, "eth0", f"{network.prefix('eth0')}.254", "br-eth0")


def _route_by_source(lab: str, node: int, rails: int) -> None:
    names = network.interfaces(rails)[:-1]
    rules = [
        f"rule add from {network.address(name, node)} table {TABLE + rail}\n"
        for rail, name in enumerate(names)
    ]
    sh("ip", "-n", network.namespace(lab, node), "-batch", "-", text="".join(rules))
    for name in ("all", *names):
        network.set_source_check(lab, node, name, network.LOOSE)
    # Each rail answers for its own address alone, as hosts of several rails are set up.
    for setting, value in (("arp_ignore", "1"), ("arp_announce", "2")):
        path = f"/proc/sys/net/ipv4/conf/all/{setting}"
        sh(*network.inside(lab, node), "tee", path, text=value)


def _plug(lab: str, member: str, interface: str, ip: str, bridge: str) -> None:
    inside, outside = network.namespace(lab, member), network.namespace(lab, "x")
    port = f"{interface}-{member}"
    peer = ("peer", "name", port, "netns", outside)
    sh("ip", "link", "add", interface, "netns", inside, "type", "veth", *peer)
    text = f"link set {port} master {bridge}\nlink set {port} up\n"
    sh("ip", "-n", outside, "-batch", "-", text=text)
    text = f"link set lo up\naddr add {ip}/24 dev {interface}\nlink set {interface} up\n"
    sh("ip", "-n", inside, "-batch", "-", text=text)


def _build_bridges(lab: str, nodes: int, rates: dict[str, str], rails: int, leaves: int) -> None:
    """Make the bridges of all networks; with several rails, also their routes at the spine."""
    switch = network.namespace(lab, "x")
    lines = []
    for name in network.interfaces(rails):
        for bridge in [f"br-{name}", *(_leaf(name, leaf) for leaf in _leaves(name, leaves))]:
            lines += [f"link add {bridge} type bridge", f"link set {bridge} up"]
        for leaf in _leaves(name, leaves):
            upper, lower = uplink_ends(name, leaf)
            lines += [f"link add {lower} type veth peer name {upper}"]
            lines += [f"link set {upper} master br-{name}", f"link set {upper} up"]
            lines += [f"link set {lower} master {_leaf(name, leaf)}", f"link set {lower} up"]
        if rails > 1 and name != "eth0":
            lines += [f"addr add {network.prefix(name)}.{GATEWAY}/24 dev br-{name}"]
    sh("ip", "-n", switch, "-batch", "-", text="\n".join(lines) + "\n")
    if rails > 1:
        sh(*network.inside(lab, "x"), "tee", "/proc/sys/net/ipv4/ip_forward", text="1")
    for name in network.interfaces(rails):
        for leaf in _leaves(name, leaves):
            shape_uplink(lab, name, leaf, full_uplink(nodes, leaves, rates[name]))


def leaf_of(node: int, nodes: int, leaves: int) -> int:
    """Return the leaf of a node: the first nodes are on leaf 0."""
    return node * leaves // nodes


def full_uplink(nodes: int, leaves: int, rate: str) -> str:
    """Return the rate of an uplink that never blocks: that of all nodes of the largest leaf."""
    network.check_rate(rate)
    value, unit = float(rate[:-4]), rate[-4:]
    return f"{-(-nodes // leaves) * value:g}{unit}"


def uplink_ends(name: str, leaf: int) -> tuple[str, str]:
    """Return the devices of an uplink: the spine's end, which sends down, and the leaf's."""
    return f"dn-{name}-{leaf}", f"up-{name}-{leaf}"


def shape_uplink(lab: str, name: str, leaf: int, rate: str) -> None:
    """Limit a leaf's uplink to `rate`, both ways."""
    for device in uplink_ends(name, leaf):
        network.limit(network.namespace(lab, "x"), device, rate)


def connect_rails(lab: str, node: int, rails: int) -> None:
    """Let each address of the node leave by its own rail, and reach other rails by the spine.

    The routes of a rail go when its interface goes down.
    """
    lines = []
    for rail in range(rails):
        name, table = f"fab{rail}", TABLE + rail
        spine = f"{network.prefix(name)}.{GATEWAY}"
        lines += [
            f"route replace {network.prefix(name)}.0/24 dev {name} table {table}",
            f"route replace {network.FABRICS}.0.0/16 via {spine} dev {name} table {table}",
        ]
    sh("ip", "-n", network.namespace(lab, node), "-batch", "-", text="\n".join(lines) + "\n")


def swap_rails(lab: str, node: int, first: str, second: str, swapped: bool = True) -> None:
    """Plug the node's cables of two rails into each other's switch, or back into their own."""
    ip = ("ip", "-n", network.namespace(lab, "x"))
    for name, other in ((first, second), (second, first)):
        bridge = f"br-{other if swapped else name}"
        sh(*ip, "link", "set", f"{name}-{node}", "master", bridge)


def _leaves(name: str, leaves: int) -> range:
    return range(leaves if leaves > 1 and name != "eth0" else 0)


def _leaf(name: str, leaf: int) -> str:
    return f"br-{name}-{leaf}"
