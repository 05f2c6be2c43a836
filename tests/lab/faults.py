"""Injects the lab's faults. Each fault is recorded, and `clear` heals them all.

A fault is a pair of functions on the lab. The first injects it and returns one line that describes
the change. The second undoes it and returns one line.
"""

from __future__ import annotations

from tests.lab import network, nvml, switch
from tests.lab.access_faults import ACCESS_FAULTS
from tests.lab.condition_faults import CONDITION_FAULTS
from tests.lab.image_faults import IMAGE_FAULTS
from tests.lab.lab import Lab
from tests.lab.link_faults import LINK_FAULTS, Action
from tests.lab.name_faults import NAME_FAULTS
from tests.lab.node import SHARED, Node
from tests.lab.rail_faults import RAIL_FAULTS
from tests.lab.shell import LabError
from tests.lab.storage_faults import STORAGE_FAULTS
from tests.lab.system_faults import SYSTEM_FAULTS
from tests.lab.work_faults import WORK_FAULTS


def _kill_node(lab: Lab, name: str) -> str:
    node = _not_head(lab, name)
    node.power_off()
    return f"{node.name}: power off, no process left"


def _start_node(lab: Lab, name: str) -> str:
    node = lab.node(name)
    if node.pid is None:
        lab.start_ray([node])
    return f"{node.name}: on again"


def _cut_node(lab: Lab, name: str) -> str:
    node, fabric = lab.port(name)
    network.set_link(lab.name, node.index, fabric, "down")
    return f"{node.name}: {fabric} down"


def _join_node(lab: Lab, name: str) -> str:
    node, fabric = lab.port(name)
    network.set_link(lab.name, node.index, fabric, "up")
    if lab.size.rails > 1:  # its routes went with it
        switch.connect_rails(lab.name, node.index, lab.size.rails)
    return f"{node.name}: {fabric} up"


def _slow_link(lab: Lab, name: str, rate: str) -> str:
    network.check_rate(rate)
    node, fabric = lab.port(name)
    before = network.rate(lab.name, node.index, fabric)
    network.shape(lab.name, node.index, fabric, rate)
    return f"{node.name}: {fabric} {before} -> {network.rate(lab.name, node.index, fabric)}"


def _full_link(lab: Lab, name: str, _rate: str) -> str:
    return _slow_link(lab, name, lab.state["rates"]["fab0"])


def _slow_way(lab: Lab, name: str, rate: str, way: str) -> str:
    if way not in ("sends", "receives"):
        raise LabError(f"a way is sends or receives, found {way!r}")
    network.check_rate(rate)
    node, fabric = lab.port(name)
    network.shape(lab.name, node.index, fabric, rate, way)
    return f"{node.name}: {fabric} {way} at {rate}, the other way as before"


def _full_way(lab: Lab, name: str, _rate: str, _way: str) -> str:
    return _slow_link(lab, name, lab.state["rates"]["fab0"])


def _slow_pair(lab: Lab, first: str, second: str, rate: str) -> str:
    network.check_rate(rate)
    a, b = lab.pair(first, second)
    for here, there in ((a, b), (b, a)):
        usual = lab.state["rates"]["fab0"]
        network.shape_toward(lab.name, here.index, "fab0", usual, there.index, rate)
    return f"{a.name}, {b.name}: fab0 between them at {rate}"


def _full_pair(lab: Lab, first: str, second: str, _rate: str) -> str:
    return "; ".join(_full_link(lab, name, "") for name in (first, second))


def _half_duplex(lab: Lab, name: str) -> str:
    node, rate = lab.node(name), lab.state["rates"]["fab0"]
    network.share_directions(lab.name, node.index, "fab0", rate)
    return f"{node.name}: fab0 sends and receives {rate} together"


def _full_duplex(lab: Lab, name: str) -> str:
    network.part_directions(lab.name, lab.node(name).index, "fab0")
    return f"{lab.node(name).name}: fab0 has its rate each way"


def _narrow_link(lab: Lab, name: str, mtu: str) -> str:
    if not mtu.isdigit() or not 576 <= int(mtu) < network.USUAL_MTU:
        raise LabError(f"an MTU is 576 to {network.USUAL_MTU - 1} bytes, found {mtu!r}")
    network.limit_packets(lab.name, lab.node(name).index, "fab0", int(mtu))
    return f"{lab.node(name).name}: the switch's port takes packets up to {mtu} bytes"


def _wide_link(lab: Lab, name: str, _mtu: str) -> str:
    network.limit_packets(lab.name, lab.node(name).index, "fab0", network.USUAL_MTU)
    return f"{lab.node(name).name}: packets of {network.USUAL_MTU} bytes pass again"


def _odd_mtu(lab: Lab, name: str, mtu: str) -> str:
    if not mtu.isdigit() or not 576 <= int(mtu) <= network.USUAL_MTU:
        raise LabError(f"an MTU is 576 to {network.USUAL_MTU} bytes, found {mtu!r}")
    network.set_mtu(lab.name, lab.node(name).index, "fab0", int(mtu))
    return f"{lab.node(name).name}: fab0 has an MTU of {mtu}"


def _usual_mtu(lab: Lab, name: str, _mtu: str) -> str:
    return _odd_mtu(lab, name, str(network.USUAL_MTU))


def _corrupt_data(lab: Lab, name: str) -> str:
    # Byte 10000 of large outgoing TCP segments: no checksum on a veth notices. Only among float32
    # values of usual size, recognised by four such exponents in a row. A changed header of gloo
    # would end the rank, which is another fault than wrong data.
    rules = (
        "add table inet corrupt\n"
        "add chain inet corrupt out { type filter hook output priority 0; }\n"
        "add rule inet corrupt out oifname fab0 meta length > 20000 "
        "@th,79992,8 0x3c-0x4b @th,80024,8 0x3c-0x4b @th,80056,8 0x3c-0x4b @th,80088,8 0x3c-0x4b "
        "@th,80000,8 set 0x7f\n"
    )
    network.filter_packets(lab.name, lab.node(name).index, rules)
    return f"{lab.node(name).name}: a byte of each large packet on fab0 is changed"


def _pure_data(lab: Lab, name: str) -> str:
    network.filter_packets(
        lab.name, lab.node(name).index, "delete table inet corrupt\n", quiet=True
    )
    return f"{lab.node(name).name}: packets leave as they were written"


def _block_pair(lab: Lab, first: str, second: str) -> str:
    a, b = lab.pair(first, second)
    for here, there in ((a, b), (b, a)):
        ip = network.address("fab0", there.index)
        rules = (
            f"add table inet block{there.index}\n"
            f"add chain inet block{there.index} in {{ type filter hook input priority 0; }}\n"
            f"add rule inet block{there.index} in iifname fab0 ip saddr {ip} drop\n"
        )
        network.filter_packets(lab.name, here.index, rules)
    return f"{a.name}, {b.name}: packets between them on fab0 are dropped"


def _open_pair(lab: Lab, first: str, second: str) -> str:
    a, b = lab.node(first), lab.node(second)
    for here, there in ((a, b), (b, a)):
        network.filter_packets(
            lab.name, here.index, f"delete table inet block{there.index}\n", quiet=True
        )
    return f"{a.name}, {b.name}: packets pass again"


def _restart_ray(lab: Lab, nodes: list[Node], interface: str, own_name_at: str = "") -> str:
    """Restart Ray on these nodes: its environment is fixed at `ray start`."""
    for node in nodes:
        node.power_off()
    lab.start_ray(nodes, interface, own_name_at)
    names = ", ".join(node.name for node in nodes)
    own = f", and each name at {own_name_at}" if own_name_at else ""
    return f"{names}: Ray restarted with GLOO_SOCKET_IFNAME={interface or '(not set)'}{own}"


def _misbind(lab: Lab, name: str) -> str:
    return _restart_ray(lab, [_not_head(lab, name)], "eth0")


def _bind(lab: Lab, name: str) -> str:
    return _restart_ray(lab, [_not_head(lab, name)], "fab0")


def _hide_shared(lab: Lab, name: str) -> str:
    node = lab.node(name)
    node.run("umount", "-l", SHARED)
    return f"{node.name}: {SHARED} is an empty folder of its own"


def _show_shared(lab: Lab, name: str) -> str:
    node = lab.node(name)
    node.run("mount", "--bind", f"{lab.home}/shared", SHARED)
    return f"{node.name}: {SHARED} is the shared folder again"


def _plant_nvml(lab: Lab, name: str, what: str) -> str:
    node = _with_nvml(lab, name)
    nvml.plant(node.work, what)
    return f"{node.name}: NVML answers {what}"


def _heal_nvml(lab: Lab, name: str, _what: str) -> str:
    node = _with_nvml(lab, name)
    nvml.make_healthy(node.work, lab.name, node.gpus)
    return f"{node.name}: NVML shows {node.gpus} sound GPUs"


def _hide_nvml(lab: Lab, name: str) -> str:
    node = _with_nvml(lab, name)
    nvml.hide_library(node.work)
    return f"{node.name}: {nvml.LIBRARY} is gone"


def _show_nvml(lab: Lab, name: str) -> str:
    node = _with_nvml(lab, name)
    nvml.show_library(lab.home, node.work)
    return f"{node.name}: {nvml.LIBRARY} is there again"


def _with_nvml(lab: Lab, name: str) -> Node:
    node = lab.node(name)
    if not node.has_nvml:
        raise LabError(f"lab {lab.name!r} has no NVML: start it with `up --gpus 8 --nvml`")
    return node


def _same_machine(lab: Lab, first: str, second: str) -> str:
    a, b = lab.pair(first, second)
    b.boot_id.write_text(a.boot_id.read_text())
    return f"{b.name}: has the boot id of {a.name}"


def _own_machine(lab: Lab, _first: str, second: str) -> str:
    lab.node(second).new_boot_id()
    return f"{lab.node(second).name}: has a boot id of its own"


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
        (
            lambda lab: _restart_ray(lab, lab.nodes, "eth0"),
            lambda lab: _restart_ray(lab, lab.nodes, "fab0"),
        ),
    ),
    "loopback-names": (
        [],
        "Each node's own name leads to 127.0.1.1, and no interface is chosen for gloo or NCCL.",
        (
            lambda lab: _restart_ray(lab, lab.nodes, "", "127.0.1.1"),
            lambda lab: _restart_ray(lab, lab.nodes, "fab0"),
        ),
    ),
    "wrong-interface-on": (["node"], "NODE's workers bind to eth0.", (_misbind, _bind)),
    "slow-one-way": (
        ["node", "rate", "way"],
        "NODE `sends` or `receives` on the fabric at RATE.",
        (_slow_way, _full_way),
    ),
    "slow-pair": (
        ["a", "b", "rate"],
        "Between A and B, and only there, the fabric runs at RATE.",
        (_slow_pair, _full_pair),
    ),
    "half-duplex": (
        ["node"],
        "NODE's fabric link has its rate for both ways together: a pair that meets is as fast.",
        (_half_duplex, _full_duplex),
    ),
    "narrow-link": (
        ["node", "mtu"],
        "Packets over MTU bytes are dropped on the way to NODE, silently.",
        (_narrow_link, _wide_link),
    ),
    "odd-mtu": (
        ["node", "mtu"],
        "NODE's own fabric interface has another MTU than the others'.",
        (_odd_mtu, _usual_mtu),
    ),
    "corrupt-data": (
        ["node"],
        "NODE's large fabric packets lose a byte to another.",
        (_corrupt_data, _pure_data),
    ),
    "hide-shared": (["node"], "NODE does not see the shared folder.", (_hide_shared, _show_shared)),
    "nvml": (
        ["node", "what"],
        "NODE's NVML answers WHAT, as KEY=VALUE, or of GPU 3 alone as 3.KEY=VALUE.  "
        f"Keys are: {nvml.KEY_TEXT}.",
        (_plant_nvml, _heal_nvml),
    ),
    "hide-nvml": (
        ["node"],
        "NODE's next processes find no NVML library.",
        (_hide_nvml, _show_nvml),
    ),
    "same-machine": (["a", "b"], "B has the boot id of A.", (_same_machine, _own_machine)),
    "slow-cpu": (["node", "share"], "NODE gets SHARE of one CPU.", (_slow_cpu, _full_cpu)),
    **LINK_FAULTS,
    **RAIL_FAULTS,
    **SYSTEM_FAULTS,
    **CONDITION_FAULTS,
    **NAME_FAULTS,
    **IMAGE_FAULTS,
    **STORAGE_FAULTS,
    **WORK_FAULTS,
    **ACCESS_FAULTS,
}


def inject(lab: Lab, name: str, *arguments: str) -> str:
    """Inject a fault; it is recorded before it is injected, so that `clear` finds it."""
    lab.write(faults=[*lab.state["faults"], [name, *arguments]])
    try:
        return f"{name}: {FAULTS[name][2][0](lab, *arguments)}"
    except LabError:
        lab.write(faults=lab.state["faults"][:-1])
        raise


def clear(lab: Lab) -> list[str]:
    """Heal all faults, newest first; return one line for each."""
    lines = []
    for name, *arguments in reversed(lab.state["faults"]):
        lines.append(f"{name}: {FAULTS[name][2][1](lab, *arguments)}")
        lab.write(faults=lab.state["faults"][:-1])
    return lines
