"""Starts spare raylets with a made-up resource, for faults that must not hit real nodes.

A node loss only concerns Ray's control plane, so the rehearsal uses the cluster's own one. Some
more raylets join it from the head's machine. Each has one unit of a resource that no job knows. One
of them is killed, and no user's accelerator is affected. An actor of another job that needs no CPU
could be placed on a spare raylet. So probes start them only while no other job is on the cluster.

The raylets belong to a process (`main`, this file) that ends when its standard input ends. An actor
of the probe's own job holds that input. So the raylets end no matter how the probe ends.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:  # the file also runs as a script, which does not need this
    from probes.cluster.cluster import Cluster

START_SECONDS = 90  # for all raylets to start: some seconds each on a busy machine
REAP_SECONDS = 0.2  # between two checks for dead raylets


class SpareNodes:
    """The probe's handle of `count` spare raylets, each with one unit of `resource`.

    `node_names` maps their node ids to the names used in reports.
    """

    def __init__(self, cluster: Cluster, count: int) -> None:
        import ray

        from probes.cluster.ask import make_unique_token, on_node
        from probes.cluster.cluster import SPARE_PREFIX

        self.resource = f"{SPARE_PREFIX}{make_unique_token()}"
        self._address = cluster.address
        self._host = on_node(SpareNodeHost, cluster.head_node_id).remote()
        self.node_names: dict[str, str] = {}
        try:
            self.add(count)
        except BaseException:
            ray.kill(self._host)
            raise

    def add(self, count: int) -> None:
        """Add `count` more spare raylets."""
        import ray

        call = self._host.start.remote(self._address, count, self.resource)
        for node in ray.get(call, timeout=START_SECONDS):
            self.node_names[node] = f"spare{len(self.node_names) + 1}"

    def kill_nodes(self, *names: str, whole_nodes: bool = True) -> tuple[bool, float]:
        """Kill (SIGKILL) all processes of named nodes; without `whole_nodes` only the raylets.

        Returns (whether all are proven dead, when the first was killed by the head's clock).
        """
        import ray

        nodes = [node for node, name in self.node_names.items() if name in names]
        return ray.get(self._host.kill_nodes.remote(nodes, whole_nodes), timeout=30)

    def close(self) -> None:
        """End the remaining raylets; return when their processes are gone."""
        import ray

        with suppress(ray.exceptions.RayError):  # the end of the actor closes the input too
            ray.get(self._host.close.remote(), timeout=30)
        ray.kill(self._host)


class SpareNodeHost:
    """Ray actor on the head node that holds the input of the processes that own the raylets."""

    def __init__(self) -> None:
        # Their pipes are there: the type of a process says that they may be None.
        self._children: list[Any] = []
        self._raylets: dict[str, int] = {}

    def start(self, address: str, count: int, resource: str) -> list[str]:
        """Start the raylets and return their node ids.

        Raises RuntimeError with the last line of standard error if the start fails.
        """
        import ray

        from probes.cluster.ray_internals import read_session

        if address.startswith("ray://"):
            address = ray.get_runtime_context().gcs_address
        ip = ray.util.get_node_ip_address()
        _, session = read_session()
        script = str(Path(__file__).resolve())
        command = [sys.executable, script, address, ip, str(count), resource, session]
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        child: Any = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
        self._children.append(child)
        line = child.stdout.readline()
        if not line:
            last_line = child.stderr.read().strip().splitlines()[-1:]
            raise RuntimeError(f"seatrial could not start a spare Ray node: {' '.join(last_line)}")
        pids = json.loads(line)
        self._raylets |= pids
        return list(pids)

    def kill_nodes(self, nodes: list[str], whole_nodes: bool) -> tuple[bool, float]:
        """Kill (SIGKILL) raylets; with `whole_nodes` also their descendants, as in a power loss.

        Returns (whether all are proven dead, when the first was killed).
        """
        from probes.faults.process_faults import descendant_pids, send_signal, start_ticks

        pids = [self._raylets.pop(node) for node in nodes]
        pids += [child for pid in pids if whole_nodes for child in descendant_pids(pid)]
        targets = [(pid, start_ticks(pid)) for pid in pids]
        alive = [(pid, started) for pid, started in targets if started >= 0 or pid == pids[0]]
        return send_signal(alive, signal.SIGKILL)

    def close(self) -> None:
        """End the owner processes, and with them all raylets."""
        for child in self._children:
            child.stdin.close()
        for child in self._children:
            child.wait(timeout=20)


def main(address: str, ip: str, count: int, resource: str, session: str) -> None:
    """Start the raylets, print {node id: pid}, wait for the end of the input, then end them."""
    signal.signal(signal.SIGALRM, _raise_timeout)
    signal.alarm(START_SECONDS)  # a start that hangs must not hang the actor
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray's own output goes to standard error
    from probes.cluster.cleanup import CleanupProcess

    nodes, paths = list[Any](), list[Path]()
    cleanup = CleanupProcess()  # Ray kills this process when its actor dies
    try:
        for index in range(count):
            folder = f"{resource}_{os.getpid()}_{index}"
            paths.append(Path(session, folder))
            cleanup.register("folder", str(paths[-1]))  # first: a kill may come during the start
            nodes.append(_start_node(address, ip, resource, folder))
            for path in Path(session).glob(f"*_{nodes[-1].node_id}"):  # files with its ports
                cleanup.register("folder", str(path))
                paths.append(path)
        signal.alarm(0)
        raylets = {node.node_id: node.all_processes["raylet"][0].process for node in nodes}
        _report_and_reap(raylets, output)
    finally:
        for node in nodes:
            # Graceful: otherwise Ray counts the raylet as alive until its health checks fail.
            node.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)
        for path in paths:
            cleanup.remove_now(path)
        cleanup.close()


def _report_and_reap(raylets: dict[str, Any], output: IO[str]) -> None:
    """Print {node id: pid} as JSON, then reap dead raylets, as init does, until the input ends.

    Without that, a worker would count its raylet as alive while it is a zombie.
    """
    pids = {node: raylet.pid for node, raylet in raylets.items()}
    print(json.dumps(pids), file=output, flush=True)
    while not select.select([sys.stdin], [], [], REAP_SECONDS)[0]:  # it carries no data, just ends
        for raylet in raylets.values():
            raylet.poll()


def _start_node(address: str, ip: str, resource: str, folder: str) -> Any:
    """Start a node without CPUs, so that no task is placed there.

    It unpacks the working directories of jobs in its own `folder`. By default the raylets of one
    machine share a folder. A new raylet would first remove from it what the head's jobs run in.
    """
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    params = RayParams(
        gcs_address=address,
        node_ip_address=ip,
        num_cpus=0,
        num_gpus=0,
        resources={resource: 1},
        object_store_memory=80 * 1024 * 1024,
        min_worker_port=0,
        max_worker_port=0,
        node_manager_port=0,
        include_log_monitor=False,
        dashboard_agent_listen_port=None,
        runtime_env_dir_name=folder,
    )
    return Node(params, head=False)


def _raise_timeout(*_: object) -> None:
    raise TimeoutError(f"the raylets did not start within {START_SECONDS} s")


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5])
