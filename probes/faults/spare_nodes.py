"""Spare raylets with made-up accelerators, for faults nobody may do to real nodes.

A node loss is a matter of Ray's control plane, so it is rehearsed on the cluster's own: a few more
raylets join it from the head's machine, each with one unit of a resource that no job knows, and
one of them is killed.  Nobody's accelerator is touched; as an actor
of another job that needs no CPU could land there, it is only begun while no other job lives.

The raylets belong to a process (`main`, this file) that ends when its input does; its input is
held by an actor of the probe's own job.  So they are gone however the probe ends.
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

if TYPE_CHECKING:  # this file is run as a script too, which needs none of that
    from probes.cluster.cluster import Cluster

START_SECONDS = 90  # for all raylets to be up: some seconds each on a busy machine
REAP_SECONDS = 0.2  # from one look at dead raylets to the next


class SpareNodes:
    """The probe's end: `count` spare raylets, each with one unit of `resource`.

    `names` are what the page calls them, by node id.
    """

    def __init__(self, cluster: Cluster, count: int) -> None:
        import ray

        from probes.cluster.cluster import SPARE_PREFIX
        from probes.cluster.node_affinity import on_node
        from probes.cluster.unique_token import make_unique_token

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
        """Have `count` more of them."""
        import ray

        call = self._host.start.remote(self._address, count, self.resource)
        for node in ray.get(call, timeout=START_SECONDS):
            self.node_names[node] = f"spare{len(self.node_names) + 1}"

    def kill_nodes(self, *names: str, whole_nodes: bool = True) -> tuple[bool, float]:
        """SIGKILL all processes of the nodes of these names, or the raylets alone.

        (Whether all are proven dead, when the first was killed by the head's clock.)
        """
        import ray

        nodes = [node for node, name in self.node_names.items() if name in names]
        return ray.get(self._host.kill_nodes.remote(nodes, whole_nodes), timeout=30)

    def close(self) -> None:
        """End what is left of them; returns when their processes are gone."""
        import ray

        with suppress(ray.exceptions.RayError):  # its end closes the input too
            ray.get(self._host.close.remote(), timeout=30)
        ray.kill(self._host)


class SpareNodeHost:
    """Holds the input of the processes that own the raylets.  A Ray actor on the head node."""

    def __init__(self) -> None:
        self._children: list[subprocess.Popen[str]] = []
        self._raylets: dict[str, int] = {}

    def start(self, address: str, count: int, resource: str) -> list[str]:
        """Start them; their node ids.  Raises RuntimeError with the last words when it fails."""
        import ray

        if address.startswith("ray://"):
            address = ray.get_runtime_context().gcs_address
        ip = ray.util.get_node_ip_address()
        session = ray._private.worker._global_node.get_session_dir_path()
        arguments = [address, ip, str(count), resource, session]
        child = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._children.append(child)
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            assert child.stderr is not None
            last_line = child.stderr.read().strip().splitlines()[-1:]
            raise RuntimeError(f"no spare raylet could be started: {' '.join(last_line)}")
        pids = json.loads(line)
        self._raylets |= pids
        return list(pids)

    def kill_nodes(self, nodes: list[str], whole_nodes: bool) -> tuple[bool, float]:
        """SIGKILL raylets, and as a power loss would all they started; (proven dead, when)."""
        from probes.faults.process_faults import (  # late: this file is run as a script too
            descendant_pids,
            send_signal,
            start_ticks,
        )

        pids = [self._raylets.pop(node) for node in nodes]
        pids += [child for pid in pids if whole_nodes for child in descendant_pids(pid)]
        targets = [(pid, started) for pid in pids if (started := start_ticks(pid)) >= 0]
        results = [send_signal(pid, started, signal.SIGKILL) for pid, started in targets]
        # What dies of its raylet before its own turn is gone as well.
        all_gone = all(start_ticks(pid) != started for pid, started in targets)
        return all_gone and results[0][0], results[0][1]

    def close(self) -> None:
        """End the owners, and with them all raylets."""
        for child in self._children:
            assert child.stdin is not None
            child.stdin.close()
        for child in self._children:
            child.wait(timeout=20)


def main(address: str, ip: str, count: int, resource: str, session: str) -> None:
    """Start the raylets, say node ids and pids, wait for the end of the input, end them."""
    signal.signal(signal.SIGALRM, _raise_timeout)
    signal.alarm(START_SECONDS)  # a start that hangs must not hang the actor
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray's own chatter goes to standard error
    from probes.cluster.cleanup import CleanupProcess

    nodes, paths = list[Any](), list[Path]()
    cleanup = CleanupProcess()  # Ray kills this process when the actor that has it dies
    try:
        for index in range(count):
            folder = f"{resource}_{os.getpid()}_{index}"
            paths.append(Path(session, folder))
            cleanup.register("folder", str(paths[-1]))  # first: this may be killed amid the start
            nodes.append(_start_node(address, ip, resource, folder))
            for path in Path(session).glob(f"*_{nodes[-1].node_id}"):  # its ports
                cleanup.register("folder", str(path))
                paths.append(path)
        signal.alarm(0)
        raylets = {node.node_id: node.all_processes["raylet"][0].process for node in nodes}
        _report_and_reap(raylets, output)
    finally:
        for node in nodes:
            # Gracefully: a raylet that says goodbye is not counted as alive until Ray misses it.
            node.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)
        for path in paths:
            cleanup.remove_now(path)
        cleanup.close()


def _report_and_reap(raylets: dict[str, Any], output: IO[str]) -> None:
    """Say node ids and pids, and reap raylets that die, as init does, until the input ends.

    A worker takes its raylet for alive as long as that is a zombie.
    """
    pids = {node: raylet.pid for node, raylet in raylets.items()}
    print(json.dumps(pids), file=output, flush=True)
    while not select.select([sys.stdin], [], [], REAP_SECONDS)[0]:  # it says nothing but ends
        for raylet in raylets.values():
            raylet.poll()


def _start_node(address: str, ip: str, resource: str, folder: str) -> Any:
    """Start a node without CPUs, so that no task lands there.

    It unpacks jobs' working directories in a `folder` of its own: in the one that raylets of a
    machine share by default it would first remove what the head's jobs run in.
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
    raise TimeoutError(f"the raylets were not up within {START_SECONDS} s")


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5])
