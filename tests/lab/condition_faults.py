"""Faults of what a worker inherits or meets, as users reported them; see HOSTS' `conditions.toml`.

A fault is a pair of functions, as in `faults`.
"""

from __future__ import annotations

import os

from tests.lab import network
from tests.lab.lab import Lab
from tests.lab.link_faults import Action
from tests.lab.node import PORT
from tests.lab.shell import LabError
from tests.lab.system_faults import raylet_of, restart_ray

SETTINGS = {"net/ipv4/ip_local_port_range": "32768 60999"}  # by name, what a node has
# Holds a node, which Ray ends only after its actor: it is drained, and alive.
HOLD = """
import sys, ray
ray.init(address=sys.argv[1], namespace="lab", log_to_driver=False)
place = {f"node:{sys.argv[2]}": 0.001}
Holder = ray.remote(type("Holder", (), {"here": lambda self: 1}))
held = Holder.options(name="held", lifetime="detached", num_cpus=0, resources=place).remote()
ray.get(held.here.remote())
alive = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
print(alive[sys.argv[2]])
"""


def _mount_noexec(lab: Lab, name: str) -> str:
    return _remount(lab, name, "noexec")


def _mount_exec(lab: Lab, name: str) -> str:
    return _remount(lab, name, "exec")


def _remount(lab: Lab, name: str, option: str) -> str:
    node = lab.node(name)
    if node.pid:
        node.run("mount", "-o", f"remount,{option}", "/tmp")
    return f"{node.name}: /tmp is mounted with {option}"


def _pin(lab: Lab, name: str, cpus: str) -> str:
    """Bind the raylet's threads to the first CPUs: its next workers inherit that."""
    node, allowed = lab.node(name), set(range(int(cpus)))
    for thread in os.listdir(f"/proc/{raylet_of(node)}/task"):
        os.sched_setaffinity(int(thread), allowed)
    return f"{node.name}: Ray's next workers run on {len(allowed)} CPUs"


def _unpin(lab: Lab, name: str, _cpus: str) -> str:
    return _pin(lab, name, str(os.cpu_count())) if lab.node(name).pid else f"{name}: off"


def _change_setting(lab: Lab, name: str, setting: str, value: str) -> str:
    if setting not in SETTINGS:
        raise LabError(f"a setting is one of {', '.join(SETTINGS)}, found {setting!r}")
    node = lab.node(name)
    if node.pid:
        node.run("sh", "-c", 'printf %s "$2" > "/proc/sys/$1"', "sh", setting, value)
    return f"{node.name}: {setting} is {value}"


def _restore_setting(lab: Lab, name: str, setting: str, _value: str) -> str:
    return _change_setting(lab, name, setting, SETTINGS[setting])


def _set_variable(lab: Lab, name: str, variable: str, value: str) -> str:
    node = lab.node(name)
    node.plant({"environment": {variable: value}})
    restart_ray(lab, node)
    return f"{node.name}: Ray was started with {variable}"


def _unset_variable(lab: Lab, name: str, variable: str, _value: str) -> str:
    node = lab.node(name)
    node.plant({})
    restart_ray(lab, node)
    return f"{node.name}: Ray was started without {variable}"


def _share_name(lab: Lab, first: str, second: str) -> str:
    lab.node(second).run("hostname", lab.node(first).name)
    return f"{second}: its host name is {first}"


def _own_name(lab: Lab, _first: str, second: str) -> str:
    node = lab.node(second)
    if node.pid:
        node.run("hostname", node.name)
    return f"{node.name}: its host name is its own"


def _drain(lab: Lab, name: str) -> str:
    node, head = lab.node(name), lab.nodes[0]
    address = f"{network.address('eth0', 0)}:{PORT}"
    here = network.address("eth0", node.index)
    *_, id = head.run("python", "-c", HOLD, address, here).split()
    reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "maintenance"]
    head.run(*head.ray_program(), "drain-node", "--address", address, "--node-id", id, *reason)
    return f"{node.name}: drained, and alive"


def _end_drain(lab: Lab, name: str) -> str:
    node = lab.node(name)
    restart_ray(lab, node)
    return f"{node.name}: takes work again"


# name: (arguments, explanation, (break, heal)), as in `faults`
CONDITION_FAULTS: dict[str, tuple[list[str], str, tuple[Action, Action]]] = {
    "noexec": (["node"], "No program runs from NODE's /tmp.", (_mount_noexec, _mount_exec)),
    "pin": (["node", "cpus"], "Workers of NODE run on its first CPUS alone.", (_pin, _unpin)),
    "setting": (
        ["node", "name", "value"],
        "NODE's kernel setting NAME (below /proc/sys) has this VALUE.",
        (_change_setting, _restore_setting),
    ),
    "variable": (
        ["node", "name", "value"],
        "NODE's Ray is started again with this variable.",
        (_set_variable, _unset_variable),
    ),
    "same-name": (["a", "b"], "B has A's host name.", (_share_name, _own_name)),
    "drain": (["node"], "NODE is drained, and an actor keeps it alive.", (_drain, _end_drain)),
}
