"""Control of HOSTS: a process with low limits and no room, which looks like another raylet."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from probes.acceptance.control_targets import CONTROLS
from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.facts.system import read_node_system
from probes.hosts.system.limits import GIB, MIB, judge_system

Facts = Mapping[str, Any]
NO_ROOM = "/proc"  # a folder in which no file can be written, on every node
OTHER_SESSION = "seatrial_control"
END_SECONDS = 10.0  # for one small process to end on a busy node
# Lowers its own soft limits, leaves root (whom some limits do not bind), takes the name of a
# raylet, and waits until its input ends.
CHILD = """
import json, os, resource, sys
for name, soft in json.loads(sys.argv[1]).items():
    kind = getattr(resource, name)
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
with open("/proc/self/comm", "w") as file:
    file.write("raylet")
if os.geteuid() == 0:
    try:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    except OSError:
        pass
print("ready", flush=True)
sys.stdin.read()
"""


def read_strained_system(limits: Mapping[str, int]) -> dict[str, Any]:
    """Read this node's system as a process with these soft limits, and without room, has it."""
    option = f"--session-name={OTHER_SESSION}"
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", CHILD, json.dumps(dict(limits)), option],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        if not child.stdout.readline():
            raise RuntimeError("the process with low limits did not start")
        return read_node_system(str(child.pid), NO_ROOM)
    finally:
        end_child(child)


def end_child(child: subprocess.Popen[str]) -> None:
    """End the input of a process, and so the process."""
    try:
        child.communicate(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()


def control_strained_process(
    cluster: Cluster,
    facts: Sequence[Facts],
    ranks: Mapping[str, int],
    measures: Sequence[str],
    measure: Recorder,
) -> None:
    """Check that low limits, missing room and a foreign raylet on the last node are detected."""
    victim = facts[-1]
    fault = (
        f"a process on {victim['name']} has half of each agreed limit, uses the folder {NO_ROOM}, "
        "and is named as a raylet of another cluster"
    )
    planted = halve_limits(ranks.get(victim["node"], 1), measure)
    answers = cluster.on_each_node(read_strained_system, each={victim["node"]: planted})
    if victim["node"] not in answers:
        why = cluster.errors.get(victim["node"], "no answer in time")
        measure.control("strained process", fault, None, saw=f"{victim['name']}: {why}")
        return
    system = answers[victim["node"]]
    trial = measure.trial()
    judge_system([{**victim, "system": system}], ranks, measures, trial)
    without = {name for name in CONTROLS["HOSTS"]["strained process"] if name not in measures}
    if limits := system["limits"]:
        without |= {"locked_memory"} if limits.get("locks_any") else set()
        without |= {"processes"} if limits.get("starts_any") else set()
    measure.control("strained process", fault, trial, without=without)


def halve_limits(ranks: int, measure: Recorder) -> dict[str, int]:
    """Compute soft limits that are half of what is owed, by their names in `resource`."""
    owed = {
        "RLIMIT_NOFILE": ("open_files", 1),
        "RLIMIT_MEMLOCK": ("locked_memory", GIB),
        "RLIMIT_STACK": ("stack", MIB),
        "RLIMIT_NPROC": ("processes", ranks),
    }
    lows = {
        name: (limit.low, factor)
        for name, (target, factor) in owed.items()
        if (limit := measure.contract.limit("HOSTS", target))
    }
    return {name: int(low * factor / 2) for name, (low, factor) in lows.items() if low is not None}
