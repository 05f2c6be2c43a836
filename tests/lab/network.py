"""The lab's two networks, wholly inside namespaces: nothing is added to the host's own.

A switch namespace `<lab>x` holds one bridge per network; each node namespace `<lab><i>` has
`fab0` (10.77.0.<i+1>/24, the fabric) and `eth0` (10.78.0.<i+1>/24, management) plugged into
them.  There is no default route and no way out.
"""

from __future__ import annotations

from tests.lab.shell import sh

NETWORKS = {"fab0": "10.77.0", "eth0": "10.78.0"}
RATES = {"fab0": "1gbit", "eth0": "200mbit"}
USUAL_MTU = 1500
TBF = ("tbf", "burst", "128kb", "latency", "50ms")
CLIENT = "c"  # a client of the lab, on the management network only


def namespace(lab: str, node: int | str) -> str:
    """`sea0`, `sea1`, ... and `seac` for the client, `seax` for the switch."""
    return f"{lab}{node}"


def address(interface: str, node: int) -> str:
    """IPv4 address of a node on the network of `interface`."""
    return f"{NETWORKS[interface]}.{node + 1}"


def existing(lab: str) -> list[str]:
    """Names of the lab's namespaces that exist now."""
    names = [line.split()[0] for line in sh("ip", "netns", "list", quiet=True).splitlines() if line]
    tails = {name: name.removeprefix(lab) for name in names if name.startswith(lab)}
    return [name for name, tail in tails.items() if tail.isdigit() or tail in ("x", CLIENT)]


def build(lab: str, nodes: int, rates: dict[str, str]) -> None:
    """Make the switch, the client and the nodes, wire and shape them."""
    switch = namespace(lab, "x")
    members = [namespace(lab, node) for node in range(nodes)] + [namespace(lab, CLIENT)]
    sh("ip", "-batch", "-", text="".join(f"netns add {name}\n" for name in [switch, *members]))
    bridges = "".join(f"link add br-{i} type bridge\nlink set br-{i} up\n" for i in NETWORKS)
    sh("ip", "-n", switch, "-batch", "-", text=bridges)
    for node in range(nodes):
        for interface in NETWORKS:
            _plug(lab, str(node), interface, address(interface, node))
            shape(lab, node, interface, rates[interface])
    _plug(lab, CLIENT, "eth0", f"{NETWORKS['eth0']}.254")


def _plug(lab: str, member: str, interface: str, ip: str) -> None:
    name, switch, port = namespace(lab, member), namespace(lab, "x"), f"{interface}-{member}"
    sh(
        "ip",
        "link",
        "add",
        interface,
        "netns",
        name,
        "type",
        "veth",
        "peer",
        "name",
        port,
        "netns",
        switch,
    )
    sh(
        "ip",
        "-n",
        switch,
        "-batch",
        "-",
        text=f"link set {port} master br-{interface}\nlink set {port} up\n",
    )
    sh(
        "ip",
        "-n",
        name,
        "-batch",
        "-",
        text=f"link set lo up\naddr add {ip}/24 dev {interface}\nlink set {interface} up\n",
    )


def shape(lab: str, node: int, interface: str, rate: str, way: str = "both") -> None:
    """Hold the node's link to `rate` (as tc writes it: 1gbit, 50mbit): both ways, or one.

    `way` is both, sends or receives, as the node sees it.
    """
    ends = {
        "sends": (namespace(lab, node), interface),
        "receives": (namespace(lab, "x"), f"{interface}-{node}"),
    }
    for name, device in ends.values() if way == "both" else [ends[way]]:
        sh("tc", "-n", name, "qdisc", "del", "dev", device, "root", quiet=True)
        sh("tc", "-n", name, "qdisc", "add", "dev", device, "root", *TBF, "rate", rate)


def shape_toward(lab: str, node: int, interface: str, usual: str, peer: int, rate: str) -> None:
    """Hold what the node sends to one peer to `rate`, and all else to `usual` as before.

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
    """Hold what the node sends and what it receives, together, to `rate`; its port's own holds on.

    Both go through one queue at the switch's port.  `part_directions` undoes it.
    """
    switch, port, queue = namespace(lab, "x"), f"{interface}-{node}", f"half-{node}"
    sh("ip", "-n", switch, "link", "add", queue, "type", "ifb")
    sh("ip", "-n", switch, "link", "set", queue, "up")
    tc = ("tc", "-n", switch)
    sh(*tc, "qdisc", "add", "dev", queue, "root", *TBF, "rate", rate)
    sh(*tc, "qdisc", "add", "dev", port, "clsact")
    for way in ("ingress", "egress"):
        every = ("protocol", "ip", "u32", "match", "u32", "0", "0")
        redirect = ("action", "mirred", "egress", "redirect", "dev", queue)
        sh(*tc, "filter", "add", "dev", port, way, *every, *redirect)


def part_directions(lab: str, node: int, interface: str) -> None:
    """Each direction has the whole rate again."""
    switch = namespace(lab, "x")
    sh("tc", "-n", switch, "qdisc", "del", "dev", f"{interface}-{node}", "clsact", quiet=True)
    sh("ip", "-n", switch, "link", "del", f"half-{node}", quiet=True)


def rate(lab: str, node: int, interface: str) -> str:
    """The rate that tc reports for a node's link, as tc prints it: `1Gbit`."""
    words = sh("tc", "-n", namespace(lab, node), "qdisc", "show", "dev", interface).split()
    return words[words.index("rate") + 1] if "rate" in words else "unshaped"


def limit_packets(lab: str, node: int, interface: str, mtu: int) -> None:
    """The switch's port to the node takes packets up to `mtu`; the node does not know of it."""
    switch, port = namespace(lab, "x"), f"{interface}-{node}"
    sh("ip", "-n", switch, "link", "set", port, "mtu", str(mtu))


def set_mtu(lab: str, node: int, interface: str, mtu: int) -> None:
    """The MTU of a node's own interface."""
    sh("ip", "-n", namespace(lab, node), "link", "set", interface, "mtu", str(mtu))


def set_link(lab: str, node: int, interface: str, state: str) -> None:
    """`ip link set <interface> up|down` on a node."""
    sh("ip", "-n", namespace(lab, node), "link", "set", interface, state)


def remove(lab: str) -> None:
    """Delete the lab's namespaces; their links, bridges, shapes and rules go with them."""
    for name in existing(lab):
        sh("ip", "netns", "del", name, quiet=True)
