"""Injects faults of rails, of what connects the accelerators of a node, and of uplinks.

The faults of a link take `2:fab1` for a rail of a node: `slow-link`, `cut-node`, `lose-packets`.
"""

from __future__ import annotations

from tests.lab import network, switch
from tests.lab.lab import Lab
from tests.lab.link_faults import Action
from tests.lab.shell import LabError


def _swap_rails(lab: Lab, name: str, first: str, second: str) -> str:
    node, one = lab.port(f"{name}:{first}")
    _, other = lab.port(f"{name}:{second}")
    if one == other:
        raise LabError(f"two rails are swapped, found {one} twice")
    _require_one_leaf(lab)
    switch.swap_rails(lab.name, node.index, one, other)
    _ask_anew(lab, one, other)
    return f"{node.name}: the cables of {one} and {other} are in each other's switch"


def _plug_back(lab: Lab, name: str, first: str, second: str) -> str:
    node, one = lab.port(f"{name}:{first}")
    switch.swap_rails(lab.name, node.index, one, second, swapped=False)
    _ask_anew(lab, one, second)
    return f"{node.name}: {one} and {second} are in their own switch"


def _ask_anew(lab: Lab, *interfaces: str) -> None:
    for node in lab.nodes:
        for interface in interfaces:
            network.forget_neighbours(lab.name, node.index, interface)


def _require_one_leaf(lab: Lab) -> None:
    if lab.size.leaves > 1:
        raise LabError("rails are swapped in a lab without leaves")


def _slow_inside(lab: Lab, name: str, rate: str) -> str:
    node = lab.node(name)
    network.check_rate(rate)
    network.limit(network.namespace(lab.name, node.index), "lo", rate)
    return f"{node.name}: its processes reach each other at {rate}"


def _full_inside(lab: Lab, name: str, _rate: str) -> str:
    node = lab.node(name)
    usual = switch.INSIDE_RATE if lab.size.rails > 1 else ""
    network.limit(network.namespace(lab.name, node.index), "lo", usual)
    return f"{node.name}: its processes reach each other as before"


def _slow_uplink(lab: Lab, leaf: str, rate: str) -> str:
    network.check_rate(rate)
    return _set_uplink(lab, leaf, rate)


def _full_uplink(lab: Lab, leaf: str, _rate: str) -> str:
    size = lab.size
    return _set_uplink(
        lab, leaf, switch.full_uplink(size.nodes, size.leaves, lab.state["rates"]["fab0"])
    )


def _set_uplink(lab: Lab, leaf: str, rate: str) -> str:
    size = lab.size
    if size.leaves < 2 or leaf not in map(str, range(size.leaves)):
        raise LabError(f"no leaf {leaf!r} in lab {lab.name!r}: it has {size.leaves}")
    for name in network.interfaces(size.rails)[:-1]:
        switch.shape_uplink(lab.name, name, int(leaf), rate)
    return f"leaf {leaf}: its uplink sends and receives at {rate}"


# name: (arguments, explanation, (break, heal)), as in `faults`
RAIL_FAULTS: dict[str, tuple[list[str], str, tuple[Action, Action]]] = {
    "swap-rails": (
        ["node", "a", "b"],
        "NODE's cables of rails A and B (fab1, fab2) are in each other's switch.",
        (_swap_rails, _plug_back),
    ),
    "slow-inside": (
        ["node", "rate"],
        "Processes of NODE reach each other at RATE (50mbit).",
        (_slow_inside, _full_inside),
    ),
    "slow-uplink": (
        ["leaf", "rate"],
        "The uplink of LEAF (0, 1) has this RATE (100mbit), both ways.",
        (_slow_uplink, _full_uplink),
    ),
}
