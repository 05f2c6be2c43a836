"""The cluster under test: how to reach it, what it says of itself, and gangs on it.

`connect("auto" | "local" | "local:N" | "ray://host:port")`.  Nothing falls back to anything:
`auto` without a cluster is a ClusterUnreachable with a hint.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from probes.cluster.cleanup import CleanupProcess
from probes.cluster.dashboard import find_dashboard
from probes.cluster.embedded import LocalCluster
from probes.cluster.node_affinity import on_node
from probes.cluster.node_facts import node_facts
from reference_trainer.launch.gang import Gang

# Ray's runtime environment carries them to the workers.
PACKAGES = ("reports", "reference_trainer", "scaling", "probes")
CONNECT_SECONDS = 5  # bounds one TCP handshake with a host that drops packets
TASK_SECONDS = 90  # bounds a silent node; the first task there waits for our packages and a worker
SPARE_PREFIX = "seatrial_berth_"  # begins the resource that only a spare raylet has
ROOT = Path(__file__).resolve().parents[2]  # holds the packages, in a checkout as in an install


class ClusterUnreachable(RuntimeError):
    """No cluster there.  One sentence and a hint."""


class VersionMismatch(RuntimeError):
    """The driver may not join: its Ray or Python is not the cluster's.  A finding, not a bug."""


def connect(spec: str) -> Cluster:
    """Join the cluster that `spec` names.  Raises ClusterUnreachable or VersionMismatch."""
    if spec == "auto" and os.environ.get("RAY_ADDRESS", "").startswith("ray://"):
        spec = os.environ["RAY_ADDRESS"]
    if spec == "auto":
        return Cluster(_running_address(), "ray")
    if match := re.fullmatch(r"local(?::(\d+))?", spec):
        nodes = int(match[1] or 2)
        if not 1 <= nodes <= 32:
            raise ClusterUnreachable(f"--cluster local:N takes 1 to 32 raylets, found {nodes}")
        try:
            local = LocalCluster(nodes)
        except RuntimeError as error:
            raise ClusterUnreachable(str(error)) from None
        return Cluster(local.info["address"], "local", local)
    if match := re.fullmatch(r"ray://([^:/]+):(\d+)", spec):
        _try_port(match[1], int(match[2]), spec)
        return Cluster(spec, "client")
    raise ClusterUnreachable(f"--cluster takes auto, local[:N] or ray://host:port, found {spec!r}")


def _running_address() -> str:
    """Address of the Ray cluster that this machine is a node of."""
    from ray._private import services

    hint = (
        "run this on a node of the cluster, set RAY_ADDRESS, name it with --cluster "
        "ray://host:10001, or rehearse with --cluster local:4"
    )
    try:
        address = services.canonicalize_bootstrap_address("auto", None)
    except ConnectionError:
        address = None
    if not address:
        raise ClusterUnreachable(f"--cluster auto found no running Ray cluster: {hint}")
    host, _, port = str(address).rpartition(":")
    _try_port(host, int(port), f"the Ray cluster at {address}", hint)
    return str(address)


def _try_port(host: str, port: int, name: str, hint: str = "is it up, and its port open?") -> None:
    try:
        socket.create_connection((host.strip("[]"), port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise ClusterUnreachable(f"{name} does not answer ({error}): {hint}") from None


class Cluster:
    """A joined cluster.  `kind` is ray (auto), client (ray://) or local (embedded)."""

    def __init__(self, address: str, kind: str, local: LocalCluster | None = None) -> None:
        self.address, self.kind, self._local = address, kind, local
        self.cleanup = CleanupProcess()
        # Declared, by the contract or by --cluster local, and never inferred from what is missing.
        self.emulated = kind == "local"
        self._facts: list[dict[str, Any]] | None = None
        self.errors: dict[str, str] = {}  # node id -> why it did not answer
        try:
            self._join()
        except BaseException:
            self.close()
            raise

    def _join(self) -> None:
        import ray

        folders = [str(ROOT / name) for name in PACKAGES]
        try:
            ray.init(
                self.address,
                runtime_env={"py_modules": folders, "excludes": ["**/__pycache__"]},
                log_to_driver=False,
                logging_level="error",
                configure_logging=False,
            )
        except RuntimeError as error:
            if "ersion mismatch" in str(error):
                raise VersionMismatch(" ".join(str(error).split())) from None
            raise
        except (ConnectionError, ValueError) as error:
            message = " ".join(str(error).split())
            raise ClusterUnreachable(f"{self.address} cannot be joined: {message}") from None

    @property
    def embedded_nodes(self) -> int | None:
        """How many raylets were asked for, when the cluster is embedded."""
        return self._local.nodes if self._local else None

    @property
    def rehearsal(self) -> str:
        """Why this is a rehearsal; empty on a real cluster."""
        if self.kind == "local":
            return f"{len(self.nodes)} raylets embedded on one host"
        if self.emulated:
            return "accelerators are emulated: arithmetic is on the CPU"
        return ""

    @property
    def on_gpu(self) -> bool:
        """Whether a rank owns a GPU that is really there."""
        return self.resource == "GPU" and not self.emulated

    @cached_property
    def dashboard(self) -> str:
        """Base address of this cluster's dashboard; empty when there is none."""
        if self._local:
            return str(self._local.info["dashboard"])
        client_host = self.address.removeprefix("ray://").rsplit(":", 1)[0]
        return find_dashboard(client_host if self.kind == "client" else "")

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """Nodes alive that take part: id, name, address, resources.

        In a cluster that has accelerators, a node without any runs no ranks and is left out.
        """
        alive = [node for node in self.known_nodes() if node["alive"]]
        return [node for node in alive if node["resources"].get("GPU")] or alive

    @property
    def bystanders(self) -> list[dict[str, Any]]:
        """Nodes alive that are left out: Ray counts no accelerator there."""
        members = {node["id"] for node in self.nodes}
        return [n for n in self.known_nodes() if n["alive"] and n["id"] not in members]

    def known_nodes(self) -> list[dict[str, Any]]:
        """Every node that Ray has ever counted; a restarted one only as what it is now.

        Spare raylets of ours (probes/faults/spare_nodes.py) are no part of the cluster.
        """
        import ray

        nodes = [
            {
                "id": node["NodeID"],
                "name": node["NodeManagerHostname"],
                "address": node["NodeManagerAddress"],
                "alive": bool(node["Alive"]),
                "head": "node:__internal_head__" in node["Resources"],
                "resources": node["Resources"],
            }
            for node in ray.nodes()
            if not any(name.startswith(SPARE_PREFIX) for name in node["Resources"])
        ]
        alive = {(n["name"], n["address"]) for n in nodes if n["alive"]}
        nodes = [n for n in nodes if n["alive"] or (n["name"], n["address"]) not in alive]
        hosts = [node["name"] for node in nodes if node["alive"]]
        for node in nodes:  # raylets that share a host are told apart by their node id
            if hosts.count(node["name"]) > 1:
                node["name"] = f"{node['name']}/{node['id'][:4]}"
        return nodes

    @property
    def head_node_id(self) -> str:
        """Id of the head's node, where actors live that look on."""
        alive = [node for node in self.known_nodes() if node["alive"]]
        return str(next((node["id"] for node in alive if node["head"]), alive[0]["id"]))

    @property
    def node_names(self) -> dict[str, str]:
        """Node id to the name that findings use: the host name, where that is unique."""
        return {node["id"]: node["name"] for node in self.known_nodes()}

    @property
    def resource(self) -> str:
        """What one rank owns: GPU, or CPU on a cluster that has no GPUs."""
        return "GPU" if any(node["resources"].get("GPU") for node in self.nodes) else "CPU"

    @property
    def size(self) -> int:
        """How many ranks the whole cluster holds."""
        if self.resource == "CPU":
            return len(self.nodes)
        return int(sum(node["resources"].get("GPU", 0) for node in self.nodes))

    @property
    def ray_gpu_count(self) -> int:
        """Accelerators, or CPUs where there are none, that Ray counts in all."""
        return int(sum(node["resources"].get(self.resource, 0) for node in self.nodes))

    @property
    def facts(self) -> list[dict[str, Any]]:
        """`node_facts` of every node, read once per run by a task on each."""
        if self._facts is None:
            self._facts = self.read_facts(self.nodes)
        return self._facts

    def read_facts(self, nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Read `node_facts` of those of these nodes that answer."""
        by_id, names = self.on_each_node(node_facts, nodes=nodes), self.node_names
        order = sorted(by_id, key=lambda id: (by_id[id]["address"], id))
        return [{"name": names[id], **by_id[id]} for id in order]

    @property
    def gpus_by_node(self) -> dict[str, int]:
        """GPUs of each node, by name, as Ray counts them."""
        return {node["name"]: int(node["resources"].get("GPU", 0)) for node in self.nodes}

    def on_each_node(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        each: Mapping[str, Any] | None = None,
        nodes: list[dict[str, Any]] | None = None,
        gpus: int = 0,
    ) -> dict[str, Any]:
        """Run `function(*arguments)` in one worker of each node, or of each of `nodes`.

        `each` has one argument more for each node that is asked, by its id.  The worker owns so
        many `gpus`, and waits for them.  A node that does not answer within 90 s has no entry; the
        caller must say so.
        """
        import ray

        asked = self.nodes if nodes is None else nodes
        ids = [node["id"] for node in asked if each is None or node["id"] in each]
        calls = {}
        for id in ids:
            extra = [each[id]] if each else []
            task = on_node(function, id, max_retries=0, num_gpus=gpus)
            calls[task.remote(*arguments, *extra)] = id
        done, pending = ray.wait(list(calls), num_returns=len(calls), timeout=TASK_SECONDS)
        for call in pending:
            ray.cancel(call, force=True)
        answers = {}
        for call in done:
            try:
                answers[calls[call]] = ray.get(call)
            except ray.exceptions.RayError as error:  # it has no answer: its caller must say so
                self.errors[calls[call]] = (str(error).strip().splitlines() or ["died"])[-1]
        return answers

    def gang(self, size: int | None = None, **options: Any) -> Gang:
        """A gang over the whole cluster, or of `size` ranks spread over its nodes."""
        spread = len(self.nodes) > 1 and (size or self.size) == len(self.nodes)
        strategy = options.pop("strategy", "STRICT_SPREAD" if spread else "PACK")
        return Gang(size or self.size, resource=self.resource, strategy=strategy, **options)

    def groups_named(self, name: str) -> list[int]:
        """How many bundles each placement group of this name holds; removed groups do not count."""
        import ray

        return [
            sum(bool(node.strip("f")) for node in group["bundles_to_node_id"].values())
            for group in ray.util.placement_group_table().values()
            if group["name"] == name and group["state"] != "REMOVED"
        ]

    def close(self) -> None:
        """Leave the cluster, end it when it is ours, and have cleared what is left."""
        import ray

        ray.shutdown()
        if self._local:
            self._local.close()
        self.cleanup.close()
