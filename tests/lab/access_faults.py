"""Injects faults of who may give orders to Ray: a proxy that adds the token, a public address.

The table of `faults` has them too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.lab import network
from tests.lab.lab import Lab
from tests.lab.link_faults import Action
from tests.lab.node import AUTH_TOKEN, Node, token_file
from tests.lab.shell import LabError, sh

DASHBOARD_PORT, PROXY_PORT = 8265, 8266
PROXY = str(Path(__file__).with_name("token_proxy.py"))
PROXY_SECONDS = 20  # for the proxy to listen on a busy machine
PUBLIC = "5.6.7.8"  # globally routable; a lab has no way out
ADDRESS = "RAY_API_SERVER_ADDRESS"


def _head(lab: Lab) -> Node:
    if lab.size.auth != AUTH_TOKEN:
        raise LabError(f"lab {lab.name!r} asks for no token: start it with `up --auth token`")
    return lab.nodes[0]


def _open_dashboard(lab: Lab) -> str:
    head, address = _head(lab), network.address("eth0", 0)
    url = f"http://{address}:{PROXY_PORT}"
    words = [address, str(PROXY_PORT), f"http://{address}:{DASHBOARD_PORT}"]
    command = [sys.executable, PROXY, *words, str(token_file(lab.home))]
    subprocess.run(  # it outlives this command
        ["setsid", "--fork", *head.command(*command, cwd="/")],
        env=head.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    _wait_for_proxy(head, address)
    head.plant({"environment": {ADDRESS: url}})  # as the operator's documents name it
    return f"node0: {url} leads to the dashboard, and adds the token to each request"


def _wait_for_proxy(head: Node, address: str) -> None:
    connect = f"import socket; socket.create_connection(({address!r}, {PROXY_PORT}), 1).close()"
    deadline = time.monotonic() + PROXY_SECONDS
    while True:
        try:
            head.run(sys.executable, "-c", connect)
        except LabError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _close_dashboard(lab: Lab) -> str:
    head = lab.nodes[0]
    for pid in head.group.pids():
        with contextlib.suppress(OSError):
            if PROXY.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
    head.plant({})
    return "node0: only the dashboard itself answers"


def _add_public(lab: Lab, name: str) -> str:
    node = lab.node(name)
    sh(*_public_words(lab, node, "add"))
    return f"{node.name}: eth0 has the public address {PUBLIC} too"


def _remove_public(lab: Lab, name: str) -> str:
    node = lab.node(name)
    sh(*_public_words(lab, node, "del"), quiet=True)
    return f"{node.name}: eth0 has no public address"


def _public_words(lab: Lab, node: Node, verb: str) -> list[str]:
    name = network.namespace(lab.name, node.index)
    return ["ip", "-n", name, "addr", verb, f"{PUBLIC}/32", "dev", "eth0"]


# name: (arguments, explanation, (break, heal)), as in `faults`
ACCESS_FAULTS: dict[str, tuple[list[str], str, tuple[Action, Action]]] = {
    "open-dashboard": (
        [],
        "A proxy in front of the dashboard adds the token to each request, from anyone.",
        (_open_dashboard, _close_dashboard),
    ),
    "public-address": (
        ["node"],
        "NODE has a globally routable address on eth0.",
        (_add_public, _remove_public),
    ),
}
