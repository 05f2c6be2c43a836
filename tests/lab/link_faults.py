"""Injects faults of links, routes and addresses that differ from a slow or narrow link.

The table of `faults` has them too: lost packets, a carrier that comes and goes, a route over the
other network, an address that two nodes have.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab import network
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.shell import LabError

LEAST_LOSS, MOST_LOSS = 0.01, 50.0  # percent
# TCP passes up to 45 segments to a veth as one packet, and a drop loses all of them. A limit of 8
# segments costs no speed (4 MiB in 35 to 40 ms at 1 Gbit/s, as before); 1 segment halves it.
SEGMENTS = 8
LEAST_SECONDS, MOST_SECONDS = 0.1, 3600.0  # limits for a carrier that comes and goes
BLINK_SECONDS = 1.0
# $0 is the switch's port, $1 the file for its process number, $2 and $3 seconds down and up.
FLAP = (
    'echo $$ > "$1"; while :; do '
    'ip link set "$0" down; sleep "$2"; ip link set "$0" up; sleep "$3"; done'
)

Action = Callable[..., str]


def _remember(lab: Lab, key: str, values: Any) -> None:
    """Record what was there before a fault; an earlier record is kept."""
    lab.write(before={key: values, **lab.state.get("before", {})})


def _recall(lab: Lab, key: str) -> Any:
    """Return what was recorded; None where nothing was."""
    return lab.state.get("before", {}).get(key)


def _forget(lab: Lab, key: str) -> None:
    """Remove a record, because its values have been restored."""
    before = lab.state.get("before", {})
    lab.write(before={name: values for name, values in before.items() if name != key})


def _number(word: str) -> float:
    """Parse a plain decimal number; NaN for anything else."""
    return float(word) if re.fullmatch(r"\d+(\.\d+)?", word) else float("nan")


def _lose_packets(lab: Lab, name: str, way: str, percent: str, *to: str) -> str:
    # Do not combine this with half-duplex, which moves packets past these rules, or with
    # corrupt-data, whose packets are larger than these.
    if way not in ("sends", "receives"):
        raise LabError(f"a way is sends or receives, found {way!r}")
    if not LEAST_LOSS <= _number(percent) <= MOST_LOSS:
        said = f"a loss is {LEAST_LOSS} to {MOST_LOSS:.0f} percent, as 3 or 0.5"
        raise LabError(f"{said}, found {percent!r}")
    node, fabric = lab.port(name)
    everyone = [one.index for one in lab.nodes]
    _remember(lab, "segments", [network.segments(lab.name, one, fabric) for one in everyone])
    peers = [lab.node(peer).index for peer in to]
    network.lose_packets(lab.name, node.index, fabric, way, float(percent), peers)
    for one in everyone:
        network.limit_segments(lab.name, one, fabric, SEGMENTS)
    whom = f" to {', '.join(to)}" if to else ""
    return f"{node.name}: {percent} % of what it {way} on {fabric}{whom} is lost"


def _lose_to_two(lab: Lab, name: str, first: str, second: str, percent: str) -> str:
    return _lose_packets(lab, name, "sends", percent, first, second)


def _keep_to_two(lab: Lab, name: str, _first: str, _second: str, percent: str) -> str:
    return _keep_packets(lab, name, "sends", percent)


def _keep_packets(lab: Lab, name: str, way: str, _percent: str) -> str:
    node, fabric = lab.port(name)
    network.keep_packets(lab.name, node.index, fabric, way)
    for one, count in enumerate(_recall(lab, "segments") or []):
        network.limit_segments(lab.name, one, fabric, count)
    _forget(lab, "segments")
    return f"{node.name}: all that it {way} on {fabric} arrives"


def _flap_link(lab: Lab, name: str, seconds: str, period: str) -> str:
    down, up = _number(seconds), _number(period) - _number(seconds)
    if not (down >= LEAST_SECONDS and up >= LEAST_SECONDS and down + up <= MOST_SECONDS):
        said = f"a link is down for {LEAST_SECONDS} s or more of a longer period, up to an hour"
        raise LabError(f"{said}, as 1 of 6, found {seconds!r} of {period!r}")
    node = _with_carrier(lab, name)
    if _flapping(node):
        raise LabError(f"the link of {node.name} comes and goes already")
    (file := _flap_file(node)).unlink(missing_ok=True)
    enter = ["nsenter", f"--net=/run/netns/{network.namespace(lab.name, 'x')}"]
    script = ["sh", "-c", FLAP, f"fab0-{node.index}", str(file), f"{down:g}", f"{up:g}"]
    with open(node.work / "flap.log", "ab") as log:
        subprocess.run(  # in a process group of its own, so that healing ends all of it
            ["setsid", "--fork", *node.join(), *enter, *script],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            check=True,
            cwd="/",
        )
    deadline = time.monotonic() + 10
    while not _flapping(node):
        if time.monotonic() > deadline:
            raise LabError(f"the process that takes the link of {node.name} down did not start")
        time.sleep(0.02)
    return f"{node.name}: fab0 has no carrier for {down:g} s of every {down + up:g} s"


def _flap_file(node: Node) -> Path:
    return node.work / "flap.pid"


def _flapping(node: Node) -> int | None:
    """Return the number of the process that takes the link down and up; None if there is none.

    The number alone may belong to another process by now. Ours is in the node's group, and its
    command line contains the file.
    """
    file = _flap_file(node)
    try:
        pid = int(file.read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if pid in node.group.pids() and str(file).encode() in words else None


def _steady_link(lab: Lab, name: str, _seconds: str, _period: str) -> str:
    node = lab.node(name)
    if pid := _flapping(node):
        os.killpg(pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while left := [one for one in node.group.pids() if _leader(one) == pid]:
            if time.monotonic() > deadline:
                raise LabError(f"processes {left} of a link that comes and goes do not die")
            time.sleep(0.02)
    _flap_file(node).unlink(missing_ok=True)
    return _carrier_back(lab, node)


def _leader(pid: int) -> int | None:
    """Return the process group of a process; None when it is gone."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _blink_link(lab: Lab, name: str) -> str:
    node = _with_carrier(lab, name)
    network.set_port(lab.name, node.index, "fab0", "down")
    time.sleep(BLINK_SECONDS)
    _carrier_back(lab, node)
    return f"{node.name}: fab0 had no carrier for {BLINK_SECONDS:g} s, and has it again"


def _blinked(lab: Lab, name: str) -> str:
    # The port is down only if the fault was interrupted.
    return _carrier_back(lab, lab.node(name))


def _with_carrier(lab: Lab, name: str) -> Node:
    node = lab.node(name)
    if not (_flapping(node) or network.has_carrier(lab.name, node.index, "fab0")):
        raise LabError(f"fab0 of {node.name} has no carrier to lose")
    return node


def _carrier_back(lab: Lab, node: Node) -> str:
    network.set_port(lab.name, node.index, "fab0", "up")
    network.wait_for_carrier(lab.name, node.index, "fab0")
    return f"{node.name}: the switch's port of fab0 is up"


def _detour(lab: Lab, first: str, second: str) -> str:
    node, peer = lab.pair(first, second)
    # Packets and their answers cross different networks: each end must accept packets whose sender
    # is reached over another interface.
    ends = [(peer.index, "eth0"), (node.index, "fab0")]
    checks = [(*end, network.source_check(lab.name, *end)) for end in ends]
    _remember(lab, f"detour {node.index} {peer.index}", checks)
    network.detour(lab.name, node.index, peer.index)
    for end in ends:
        network.set_source_check(lab.name, *end, network.LOOSE)
    return f"{node.name}: sends to {peer.name}'s fabric address over eth0"


def _straight(lab: Lab, first: str, second: str) -> str:
    node, peer = lab.pair(first, second)
    network.end_detour(lab.name, node.index, peer.index)
    key = f"detour {node.index} {peer.index}"
    for index, interface, value in _recall(lab, key) or []:
        network.set_source_check(lab.name, index, interface, value)
    _forget(lab, key)
    return f"{node.name}: sends to {peer.name} over fab0"


def _duplicate_address(lab: Lab, first: str, second: str) -> str:
    a, b = lab.pair(first, second)
    taken = network.address("fab0", a.index)
    network.readdress(lab.name, b.index, "fab0", network.address("fab0", b.index), taken)
    _ask_anew(lab)
    return f"{b.name}: fab0 has {taken}, as {a.name}"


def _own_address(lab: Lab, first: str, second: str) -> str:
    a, b = lab.pair(first, second)
    own = network.address("fab0", b.index)
    network.readdress(lab.name, b.index, "fab0", network.address("fab0", a.index), own)
    _ask_anew(lab)
    return f"{b.name}: fab0 has its own {own}"


def _ask_anew(lab: Lab) -> None:
    for node in lab.nodes:
        network.forget_neighbours(lab.name, node.index, "fab0")


# name: (arguments, explanation, (break, heal)), as in `faults`
LINK_FAULTS: dict[str, tuple[list[str], str, tuple[Action, Action]]] = {
    "lose-packets": (
        ["node", "way", "percent"],
        "PERCENT of the packets that NODE `sends` or `receives` on the fabric are lost.",
        (_lose_packets, _keep_packets),
    ),
    "lose-to-two": (
        ["node", "a", "b", "percent"],
        "PERCENT of the packets that NODE sends to A and B on the fabric are lost, and no others.",
        (_lose_to_two, _keep_to_two),
    ),
    "flap-link": (
        ["node", "seconds", "period"],
        "NODE's fabric link has no carrier for SECONDS of every PERIOD (seconds), as 1 of 6.",
        (_flap_link, _steady_link),
    ),
    "blink-link": (
        ["node"],
        "NODE's fabric link has no carrier for 1 s, once and now.",
        (_blink_link, _blinked),
    ),
    "detour": (
        ["node", "peer"],
        "NODE sends to PEER's fabric address over the management network.",
        (_detour, _straight),
    ),
    "duplicate-address": (
        ["a", "b"],
        "B has A's address on the fabric, and not its own.",
        (_duplicate_address, _own_address),
    ),
}
