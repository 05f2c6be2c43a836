"""Injects faults of names, addresses and ports of the management network, where Ray lives.

The table of `faults` has them too.  None of them takes a node from Ray: what is connected stays.
"""

from __future__ import annotations

import itertools

from tests.lab import network
from tests.lab.lab import Lab
from tests.lab.link_faults import Action
from tests.lab.node import PORT, Node
from tests.lab.shell import LabError, sh

LOOPBACK = "127.0.1.1"  # where Debian's installer puts a host's own name
TABLE = "inet blockports"
IPOIB, LINK_LOCAL = "ib9", "169.254.9.1/16"  # NCCL prefers interfaces whose name begins so
OTHER_ADDRESS = 100  # added to a node's last number for another address of its eth0
OBJECT_MANAGER = """
import sys
from ray._raylet import GcsClient
for node in GcsClient(address=sys.argv[1]).get_all_node_info().values():
    if node.state == 0 and node.node_manager_address == sys.argv[2]:
        print(node.object_manager_port)
"""


def _block_port(lab: Lab, name: str, port: str) -> str:
    node = lab.node(name)
    ports, text = _ports_to_block(lab, node, port)
    # New connections only: answers to this node's own connections have such ports as well.
    rules = (
        f"add table {TABLE}\n"
        f"add chain {TABLE} in {{ type filter hook input priority 0; }}\n"
        f"add rule {TABLE} in iifname eth0 tcp flags & (syn | ack) == syn tcp dport {ports} drop\n"
    )
    network.filter_packets(lab.name, node.index, rules)
    return f"{node.name}: no new connection to {text} on eth0"


def _ports_to_block(lab: Lab, node: Node, port: str) -> tuple[str, str]:
    """Return ports as nft writes them, and in words."""
    if port == "ephemeral":
        low, high = node.run("cat", "/proc/sys/net/ipv4/ip_local_port_range").split()
        # Ray's own servers have such ports too, and stay open: a cut raylet runs no task.
        used = sorted({one for one in _listening(node) if int(low) <= one <= int(high)})
        edges = [int(low) - 1, *used, int(high) + 1]
        gaps = [(a + 1, b - 1) for a, b in itertools.pairwise(edges) if b - a > 1]
        ranges = ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in gaps)
        return f"{{ {ranges} }}", f"ports {low}-{high} but for the {len(used)} in use"
    if port == "object-manager":
        head, here = (network.address("eth0", index) for index in (0, node.index))
        port = lab.nodes[0].run("python", "-c", OBJECT_MANAGER, f"{head}:{PORT}", here).strip()
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise LabError(f"a port is a number, object-manager or ephemeral, found {port!r}")
    return port, f"port {port}"


def _listening(node: Node) -> list[int]:
    rows = [
        line.split()
        for kind in ("tcp", "tcp6")
        for line in node.run("cat", f"/proc/net/{kind}").splitlines()[1:]
    ]
    return [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"]


def _open_port(lab: Lab, name: str, _port: str) -> str:
    node = lab.node(name)
    network.filter_packets(lab.name, node.index, f"delete table {TABLE}\n", quiet=True)
    return f"{node.name}: all ports on eth0 are open"


def _loopback_name(lab: Lab, name: str) -> str:
    _restart_node(lab, name, "", LOOPBACK)
    return f"{lab.node(name).name}: its own name is at {LOOPBACK}, gloo has no interface"


def _own_name(lab: Lab, name: str) -> str:
    _restart_node(lab, name, "fab0", "")
    return f"{lab.node(name).name}: its own name is at its address, gloo has fab0"


def _restart_node(lab: Lab, name: str, interface: str, own_name_at: str) -> None:
    node = lab.node(name)
    if node.index == 0:
        raise LabError("node0 runs the head; choose another node")
    node.power_off()
    lab.start_ray([node], interface, own_name_at)


def _link_local_ib(lab: Lab, name: str) -> str:
    _restart_node(lab, name, "", "")
    network.add_interface(lab.name, lab.node(name).index, IPOIB, LINK_LOCAL)
    return f"{lab.node(name).name}: {IPOIB} has {LINK_LOCAL}, and NCCL has no interface chosen"


def _no_ib(lab: Lab, name: str) -> str:
    network.remove_interface(lab.name, lab.node(name).index, IPOIB)
    _restart_node(lab, name, "fab0", "")
    return f"{lab.node(name).name}: {IPOIB} is gone, NCCL has fab0"


def _debian_name(lab: Lab, name: str) -> str:
    node = lab.node(name)
    _change_hosts(node, [f"{LOOPBACK} {node.name}"], [])
    return f"{node.name}: its own name is at {LOOPBACK}, gloo has its interface"


def _usual_name(lab: Lab, name: str) -> str:
    node = lab.node(name)
    _change_hosts(node, [], [f"{LOOPBACK} {node.name}"])
    return f"{node.name}: its own name is at its address"


def _unknown_name(lab: Lab, name: str) -> str:
    node = lab.node(name)
    for other in _others(lab, node):
        _change_hosts(other, [], [_hosts_line(node)])
    return f"{node.name}: no other node knows its name"


def _known_name(lab: Lab, name: str) -> str:
    node = lab.node(name)
    for other in _others(lab, node):
        _change_hosts(other, [_hosts_line(node)], [])
    return f"{node.name}: every node knows its name"


def _others(lab: Lab, node: Node) -> list[Node]:
    return [other for other in lab.nodes if other.index != node.index]


def _hosts_line(node: Node) -> str:
    return f"{network.address('eth0', node.index)} {node.name}"


def _change_hosts(node: Node, more: list[str], less: list[str]) -> None:
    """Change the node's /etc/hosts in place: a node that is up sees this file."""
    file = node.work / "hosts"
    lines = [line for line in file.read_text().splitlines() if line not in (*more, *less)]
    file.write_text("\n".join([*more, *lines]) + "\n")


def _lost_address(lab: Lab, name: str) -> str:
    node = lab.node(name)
    own, other = _eth0_addresses(node)
    # The node still takes packets for its old address, and sends from it, as behind a load
    # balancer: a local route without an interface's address.
    _change_eth0(
        lab,
        node,
        f"addr del {own}/24 dev eth0",
        f"addr add {other}/24 dev eth0",
        f"route add local {own} dev lo",
        _prefer(own),
    )
    return f"{node.name}: eth0 has {other}, and Ray {own}, which is on no interface"


def _found_address(lab: Lab, name: str) -> str:
    node = lab.node(name)
    own, other = _eth0_addresses(node)
    for line in (f"route del local {own} dev lo", f"addr del {other}/24 dev eth0"):
        sh("ip", "-n", network.namespace(lab.name, node.index), *line.split(), quiet=True)
    _change_eth0(lab, node, f"addr replace {own}/24 dev eth0")
    return f"{node.name}: eth0 has its own {own}"


def _second_address(lab: Lab, name: str) -> str:
    node = lab.node(name)
    own, other = _eth0_addresses(node)
    _change_eth0(
        lab,
        node,
        f"addr del {own}/24 dev eth0",
        f"addr add {other}/24 dev eth0",
        f"addr add {own}/24 dev eth0",
        _prefer(own),
    )
    return f"{node.name}: {own} is the second address of eth0, after {other}"


def _eth0_addresses(node: Node) -> tuple[str, str]:
    return network.address("eth0", node.index), network.address("eth0", node.index + OTHER_ADDRESS)


def _prefer(own: str) -> str:
    return f"route replace {network.prefix('eth0')}.0/24 dev eth0 src {own}"


def _change_eth0(lab: Lab, node: Node, *lines: str) -> None:
    """Run lines of ip(8) in the node in one go, so that Ray's connections last."""
    name = network.namespace(lab.name, node.index)
    sh("ip", "-n", name, "-batch", "-", text="\n".join(lines) + "\n")


# name: (arguments, explanation, (break, heal)), as in `faults`
NAME_FAULTS: dict[str, tuple[list[str], str, tuple[Action, Action]]] = {
    "block-port": (
        ["node", "port"],
        "New connections to PORT of NODE are dropped on the management network.  PORT is a number, "
        "`object-manager`, or `ephemeral`: the ports that the kernel picks and that are not used.",
        (_block_port, _open_port),
    ),
    "loopback-name": (
        ["node"],
        "NODE's own name leads to 127.0.1.1, and no interface is chosen for gloo or NCCL.",
        (_loopback_name, _own_name),
    ),
    "link-local-ib": (
        ["node"],
        f"NODE has an interface {IPOIB} with a link-local address, and none is chosen for NCCL.",
        (_link_local_ib, _no_ib),
    ),
    "debian-name": (
        ["node"],
        "NODE's own name leads to 127.0.1.1; gloo has its interface, so that nothing is wrong.",
        (_debian_name, _usual_name),
    ),
    "unknown-name": (
        ["node"],
        "NODE's name is gone from the hosts files of the other nodes.",
        (_unknown_name, _known_name),
    ),
    "lost-address": (
        ["node"],
        "NODE's address in Ray is on none of its interfaces, and still works.",
        (_lost_address, _found_address),
    ),
    "second-address": (
        ["node"],
        "NODE's address in Ray is the second of its interface, so that nothing is wrong.",
        (_second_address, _found_address),
    ),
}
