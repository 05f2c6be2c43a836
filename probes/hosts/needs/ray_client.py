"""Judges that a program outside the cluster joins it through the Ray client (ray://)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import closing

from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.findings import finding

# Seconds for a program to import Ray, connect and run one task on a busy machine.
JOIN_SECONDS = 60.0
# Seconds for the control: Ray's client itself tries for half a minute, which shows no more.
CLOSED_SECONDS = 10.0
PROGRAM = """
import sys, ray
ray.init(sys.argv[1], log_to_driver=False)
@ray.remote(num_cpus=0)
def find_node():
    return ray.get_runtime_context().get_node_id()
print("node", ray.get(find_node.remote()))
"""


def judge_ray_client(cluster: Cluster, port: int, measure: Recorder) -> None:
    """Join through the client's port of the head, and judge that a task ran on this cluster."""
    heads = [node for node in cluster.known_nodes() if node["alive"] and node["head"]]
    if not heads:
        measure("ray_client", None, note="Ray lists no head")
        return
    address = f"ray://{heads[0]['address']}:{port}"
    ids = {node["id"] for node in cluster.known_nodes()}
    _judge_answer(address, *try_client(address, JOIN_SECONDS), ids, measure)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        closed = f"ray://127.0.0.1:{server.getsockname()[1]}"
    trial = measure.trial()
    _judge_answer(closed, *try_client(closed, CLOSED_SECONDS), ids, trial)
    measure.control("closed client", f"a program joins {closed}, where nothing listens", trial)


def _judge_answer(address: str, node: str, problem: str, ids: set[str], measure: Recorder) -> None:
    if node and node not in ids:
        problem = f"the task ran on node {node[:8]} of another cluster"
    measure("ray_client", int(bool(problem)))
    if problem:
        statement = f"A program cannot join through {address}: {problem}"
        host, _, port = address.removeprefix("ray://").rpartition(":")
        names = {"address": host.strip("[]"), "port": port}
        measure.explain(finding("HOST-RAY-CLIENT", statement, names=names))


def try_client(address: str, seconds: float) -> tuple[str, str]:
    """Join and run one task in another process; return (id of its node, problem)."""
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, address],
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {seconds:g} s"
    found = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("node ")]
    if found and done.returncode == 0:
        return found[-1], ""
    return "", (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
