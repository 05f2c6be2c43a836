"""Faults of the lab.  Each writes down what it changed, and `clear` heals them all.

A fault is a pair of functions on the lab: `break_` does it and returns one line that says
what changed; `heal` undoes it and returns one line.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from tests.lab import network
from tests.lab.lab import Lab
from tests.lab.node import SHARED, Node
from tests.lab.shell import LabError, sh


def _kill_node(lab: Lab, name: str) -> str:
    node = _not_head(lab, name)
    node.power_off()
    return f"{node.name}: power off, {node.pid or 'no process'} left"


def _start_node(lab: Lab, name: str) -> str:
    node = lab.node(name)
    if node.pid is None:
        lab.start_ray([node])
    return f"{node.name}: on again"


def _cut_node(lab: Lab, name: str) -> str:
    network.set_link(lab.name, lab.node(name).index, "fab0", "down")
    return f"{lab.node(name).name}: fab0 down"


def _join_node(lab: Lab, name: str) -> str:
    network.set_link(lab.name, lab.node(name).index, "fab0", "up")
    return f"{lab.node(name).name}: fab0 up"


def _slow_link(lab: Lab, name: str, rate: str) -> str:
    if not re.fullmatch(r"\d+(\.\d+)?[kmg]bit", rate):
        raise LabError(f"a rate is written as tc does (100mbit, 1gbit), found {rate!r}")
    node = lab.node(name)
    before = network.rate(lab.name, node.index, "fab0")
    network.shape(lab.name, node.index, "fab0", rate)
    return f"{node.name}: fab0 {before} -> {network.rate(lab.name, node.index, 'fab0')}"


def _full_link(lab: Lab, name: str, _rate: str) -> str:
    return _slow_link(lab, name, lab.state["rates"]["fab0"])


def _block_pair(lab: Lab, first: str, second: str) -> str:
    a, b = lab.node(first), lab.node(second)
    if a.index == b.index:
        raise LabError(f"a pair is two nodes, found {a.name} twice")
    for here, there in ((a, b), (b, a)):
        ip = network.address("fab0", there.index)
        rules = (
            f"add table inet block{there.index}\n"
            f"add chain inet block{there.index} in {{ type filter hook input priority 0; }}\n"
            f"add rule inet block{there.index} in iifname fab0 ip saddr {ip} drop\n"
        )
        _nft(lab, here, rules)
    return f"{a.name}, {b.name}: packets between them on fab0 are dropped"


def _open_pair(lab: Lab, first: str, second: str) -> str:
    a, b = lab.node(first), lab.node(second)
    for here, there in ((a, b), (b, a)):
        _nft(lab, here, f"delete table inet block{there.index}\n", quiet=True)
    return f"{a.name}, {b.name}: packets pass again"


def _nft(lab: Lab, node: Node, rules: str, quiet: bool = False) -> None:
    where = f"--net=/run/netns/{network.namespace(lab.name, node.index)}"
    sh("nsenter", where, "nft", "-f", "-", text=rules, quiet=quiet)


def _restart_ray(lab: Lab, interface: str) -> str:
    """Environment is frozen at `ray start`, so another one means another start."""
    for node in lab.nodes:
        node.power_off()
    deadline = time.monotonic() + 20
    while left := [pid for node in lab.nodes for pid in node.group.pids()]:
        if time.monotonic() > deadline:
            raise LabError(f"processes {left} do not die")
        time.sleep(0.05)
    lab.start_ray(lab.nodes, interface)
    return f"all nodes: Ray restarted with GLOO_SOCKET_IFNAME={interface}"


def _hide_shared(lab: Lab, name: str) -> str:
    node = lab.node(name)
    node.run("umount", "-l", SHARED)
    return f"{node.name}: {SHARED} is an empty folder of its own"


def _show_shared(lab: Lab, name: str) -> str:
    node = lab.node(name)
    node.run("mount", "--bind", f"{lab.home}/shared", SHARED)
    return f"{node.name}: {SHARED} is the shared folder again"


def _slow_cpu(lab: Lab, name: str, share: str) -> str:
    try:
        fraction = float(share)
    except ValueError:
        fraction = -1.0
    if not 0.01 <= fraction <= 1:
        raise LabError(f"a share is a fraction of one CPU from 0.01 to 1, found {share!r}")
    node = lab.node(name)
    node.group.limit(fraction)
    return f"{node.name}: at most {fraction:.0%} of one CPU"


def _full_cpu(lab: Lab, name: str, _share: str) -> str:
    node = lab.node(name)
    node.group.limit(None)
    return f"{node.name}: all CPUs again"


def _not_head(lab: Lab, name: str) -> Node:
    node = lab.node(name)
    if node.index == 0:
        raise LabError("node0 runs the head and the driver; kill another node")
    return node


Action = Callable[..., str]

# name: (arguments, explanation, (break, heal))
FAULTS: dict[str, tuple[list[str], str, tuple[Action, Action]]] = {
    "kill-node": (["node"], "Power loss of NODE.", (_kill_node, _start_node)),
    "cut-node": (["node"], "NODE's fabric interface goes down.", (_cut_node, _join_node)),
    "slow-link": (["node", "rate"], "NODE's fabric link runs at RATE.", (_slow_link, _full_link)),
    "block-pair": (
        ["a", "b"],
        "A and B drop each other's fabric packets.",
        (_block_pair, _open_pair),
    ),
    "wrong-interface": (
        [],
        "Workers bind to eth0 instead of the fabric.",
        (lambda lab: _restart_ray(lab, "eth0"), lambda lab: _restart_ray(lab, "fab0")),
    ),
    "hide-shared": (["node"], "NODE does not see the shared folder.", (_hide_shared, _show_shared)),
    "slow-cpu": (["node", "share"], "NODE gets SHARE of one CPU.", (_slow_cpu, _full_cpu)),
}


def inject(lab: Lab, name: str, *arguments: str) -> str:
    """Inject a fault; it is written down before it is done, so that `clear` finds it."""
    lab.write(faults=[*lab.state["faults"], [name, *arguments]])
    try:
        return f"{name}: {FAULTS[name][2][0](lab, *arguments)}"
    except LabError:
        lab.write(faults=lab.state["faults"][:-1])
        raise


def clear(lab: Lab) -> list[str]:
    """Heal all faults, newest first; returns one line for each."""
    lines = []
    for name, *arguments in reversed(lab.state["faults"]):
        lines.append(f"{name}: {FAULTS[name][2][1](lab, *arguments)}")
        lab.write(faults=lab.state["faults"][:-1])
    return lines
