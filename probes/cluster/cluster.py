"""Joins the cluster under test, and provides its facts and gangs on it.

`connect("auto" | "local" | "local:N" | "ray://host:port")`.  There is no fallback: `auto` without a
cluster raises ClusterUnreachable with a hint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from probes.cluster import address as addresses
from probes.cluster import room
from probes.cluster.address import ClusterUnreachable, follow_auth_mode
from probes.cluster.ask import ask_nodes
from probes.cluster.cleanup import CleanupProcess
from probes.cluster.embedded import LocalCluster
from probes.cluster.endpoints import find_dashboard, own_dashboard
from probes.cluster.gpus import XidWatch
from probes.cluster.kept_gang import GangKeeper
from probes.cluster.node_facts import Facts, node_facts
from probes.cluster.node_watch import NodeState
from probes.cluster.ray_internals import read_draining
from probes.findings import join_names
from reference_trainer.launch.gang import Gang
from reference_trainer.rank_environment import changed_variables
from reports.numbers import quantity
from reports.version import PACKAGES
from scaling.collectives.paths import PathsBefore

# Ray ends a driver whose head is silent for 60 s, with exit code 1 and in the middle of a line, and
# so does a raylet that was started elsewhere.  HeadWatch notices it before: the run writes its end.
# So Ray, in this process alone, waits for a lost head longer than the run does.
PATIENCE = {"RAY_gcs_rpc_server_reconnect_timeout_s": "3600"}
SPARE_PREFIX = "seatrial_spare_"  # prefix of the resource that only a spare raylet has
HEAD_RESOURCE = "node:__internal_head__"  # which only the head's node has
ROOT = Path(__file__).resolve().parents[2]  # holds the packages, in a checkout as in an install


class VersionMismatch(RuntimeError):
    """Raised when the driver's Ray or Python is not the cluster's.  A finding, not a bug."""


def connect(spec: str) -> Cluster:
    """Join the cluster that `spec` names.  Raises ClusterUnreachable or VersionMismatch."""
    addresses.check_spec(spec)
    if raylets := addresses.count_raylets(spec):
        try:
            local = LocalCluster(raylets)
        except RuntimeError as error:
            raise ClusterUnreachable(str(error)) from None
        return Cluster(local.info["address"], "local", local)
    address = addresses.find_address(spec)
    return Cluster(address, "client" if address.startswith("ray://") else "ray")


def gpu_models(facts: Sequence[Facts]) -> list[str]:
    """List the models of the GPUs of all nodes, each once."""
    names = {gpu.get("name") for fact in facts for gpu in fact.get("gpus") or ()}
    return sorted(filter(None, names))


def refuse_amd(cluster: Cluster) -> None:
    """Refuse a cluster whose GPUs are AMD's.  Raises ClusterUnreachable.

    A node of NVIDIA GPUs may have an AMD graphics chip too: it has NVIDIA's driver or library.  If
    one node has, HOSTS judges the others.
    """
    facts = cluster.facts if cluster.resource == "GPU" and not cluster.emulated else []
    if facts and all(map(_has_amd_alone, facts)):
        raise ClusterUnreachable(
            f"the GPUs of {join_names(fact['name'] for fact in facts)} are AMD's, and seatrial "
            "tests NVIDIA GPUs only. `seatrial nccl-log` can read the logs of RCCL"
        )


def _has_amd_alone(fact: Facts) -> bool:
    """Return whether a node has AMD's compute driver, or torch for it, and nothing of NVIDIA's."""
    has_amd = fact.get("amd_driver") or "rocm" in fact.get("software", {}).get("torch", "")
    return bool(has_amd) and not (
        fact["nvml"]["library"] or fact["gpus"] or fact["software"]["driver"]
    )


def is_spare(node: Mapping[str, Any]) -> bool:
    """Return whether an entry of `ray.nodes()` is a spare raylet of ours."""
    return any(name.startswith(SPARE_PREFIX) for name in node["Resources"])


class Cluster:
    """A joined cluster.  `kind` is ray (auto), client (ray://) or local (embedded)."""

    def __init__(self, address: str, kind: str, local: LocalCluster | None = None) -> None:
        self.address, self.kind, self._local = address, kind, local
        self.cleanup = CleanupProcess()
        # Declared by the contract or by --cluster local, never inferred from missing hardware.
        self.emulated = kind == "local"
        self._xids = XidWatch({})
        self.errors: dict[str, str] = {}  # node id -> why it did not answer
        # Node id -> what was mounted at the shared folder, as HOSTS first read it.
        self.shared_mounts: dict[str, Any] = {}
        self.expected_losses: set[str] = set()  # ids of nodes
        self.paths_before: PathsBefore | None = None  # of the run that --paths-from names
        self.kept_gang = GangKeeper(self)
        try:
            self._join()
        except BaseException:
            self.close()
            raise

    @changed_variables(PATIENCE)  # Ray may read its variables when it is imported
    def _join(self) -> None:
        import ray

        if self.kind != "local":  # it has the driver's own variables
            follow_auth_mode(self.address)
        folders = [str(ROOT / name) for name in PACKAGES]
        try:
            environment = {"py_modules": folders, "excludes": ["**/__pycache__"]}
            ray.init(self.address, runtime_env=environment, **addresses.QUIET)
        except RuntimeError as error:
            if "ersion mismatch" in str(error):
                raise VersionMismatch(" ".join(str(error).split())) from None
            raise
        except (ConnectionError, ValueError) as error:
            raise addresses.cannot_join(self.address, error) from None

    @property
    def embedded_nodes(self) -> int | None:
        """Number of raylets that were asked for, if the cluster is embedded; otherwise None."""
        return self._local.nodes if self._local else None

    @property
    def rehearsal(self) -> str:
        """Reason why this is a rehearsal; empty on a real cluster."""
        if self.kind == "local":
            return f"{quantity(len(self.nodes), 'raylets')} embedded on one host"
        return "accelerators are emulated: arithmetic is on the CPU" if self.emulated else ""

    @property
    def on_gpu(self) -> bool:
        """Whether a rank owns a real GPU."""
        return self.resource == "GPU" and not self.emulated

    @cached_property
    def dashboard(self) -> str:
        """Find the base address of this cluster's dashboard; empty if there is none."""
        if self._local:
            return str(self._local.info["dashboard"])
        client_host = self.address.removeprefix("ray://").rsplit(":", 1)[0]
        return find_dashboard(client_host if self.kind == "client" else "")

    @cached_property
    def own_dashboard(self) -> str:
        """Address of the dashboard as the head's node reaches it; empty if there is none."""
        return own_dashboard()

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """Live nodes that take part, as in `known_nodes`.

        In a cluster with accelerators, a node without any runs no ranks and is left out.
        """
        alive = [node for node in self.known_nodes() if node["alive"]]
        return [node for node in alive if node["resources"].get("GPU")] or alive

    @property
    def bystanders(self) -> list[dict[str, Any]]:
        """Live nodes that are left out: Ray counts no accelerator there."""
        members = {node["id"] for node in self.nodes}
        return [n for n in self.known_nodes() if n["alive"] and n["id"] not in members]

    def known_nodes(self) -> list[dict[str, Any]]:
        """List every node that Ray has ever counted; a restarted node only in its present state.

        Each has id, name, host, address, ports, alive, drained, head and resources.  One that is
        drained takes no work, so it does not count as alive.  A node is known by its address: it
        may come back by another name.  Our spare raylets (probes/faults/spare_nodes.py) are no part
        of the cluster.
        """
        import ray

        drained = self._read_drained()
        nodes = [
            {
                "id": (id := node["NodeID"]),
                "name": node["NodeManagerHostname"],
                "host": node["NodeManagerHostname"],
                "address": node["NodeManagerAddress"],
                "ports": {
                    "raylet": node.get("NodeManagerPort"),
                    "object manager": node.get("ObjectManagerPort"),
                    "metrics": node.get("MetricsExportPort"),
                },
                "alive": bool(node["Alive"]) and id not in drained,
                "drained": bool(node["Alive"]) and id in drained,
                "head": HEAD_RESOURCE in node["Resources"],
                "resources": node["Resources"],
            }
            for node in ray.nodes()
            if not is_spare(node)
        ]
        there = {node["address"] for node in nodes if node["alive"] or node["drained"]}
        nodes = [n for n in nodes if n["alive"] or n["drained"] or n["address"] not in there]
        hosts = Counter(node["name"] for node in nodes if node["alive"])
        for node in nodes:  # raylets that share a host get their node id in the name
            if hosts[node["name"]] > 1:
                node["name"] = f"{node['name']}/{node['id'][:4]}"
        return nodes

    def node_states(self) -> list[NodeState]:
        """List every node that Ray has ever counted, as it counts it now, without spare raylets."""
        import ray

        draining = self._read_drained()
        return [
            NodeState(
                id=(id := node["NodeID"]),
                name=node["NodeManagerHostname"],
                address=node["NodeManagerAddress"],
                port=node.get("NodeManagerPort") or 0,
                alive=bool(node["Alive"]),
                head=HEAD_RESOURCE in node["Resources"],
                reason=int(node.get("DeathReason") or 0),
                message=str(node.get("DeathReasonMessage") or ""),
                drained_by=draining.get(id, 0) / 1000 or None,
            )
            for node in ray.nodes()
            if not is_spare(node)
        ]

    def _read_drained(self) -> dict[str, int]:
        """Read the nodes that are drained; Ray's client does not learn of them."""
        return {} if self.kind == "client" else read_draining()

    @contextmanager
    def expecting_loss(self, *ids: str) -> Iterator[None]:
        """Announce that the probe that runs ends these nodes, by id: their loss is no finding.

        The block must last until Ray counts them as dead.
        """
        self.expected_losses.update(ids)
        try:
            yield
        finally:
            with suppress(Exception):  # a head that does not answer: they stay announced
                alive = {state.id for state in self.node_states() if state.alive}
                self.expected_losses -= alive & {*ids}

    @property
    def head_node_id(self) -> str:
        """Id of the head's node (else of the first live node), where observing actors run."""
        alive = [node for node in self.known_nodes() if node["alive"]]
        return str(next((node["id"] for node in alive if node["head"]), alive[0]["id"]))

    @property
    def node_names(self) -> dict[str, str]:
        """Map from node id to the name in findings: the host name, where that is unique."""
        return {node["id"]: node["name"] for node in self.known_nodes()}

    @property
    def resource(self) -> str:
        """Resource that one rank owns: GPU, or CPU on a cluster without GPUs."""
        return "GPU" if any(node["resources"].get("GPU") for node in self.nodes) else "CPU"

    @property
    def size(self) -> int:
        """Number of ranks that the complete cluster holds."""
        if self.resource == "CPU":
            return len(self.nodes)
        return int(sum(node["resources"].get("GPU", 0) for node in self.nodes))

    @property
    def ray_gpu_count(self) -> int:
        """Number of accelerators that Ray counts in all, or of CPUs if there are none."""
        return int(sum(node["resources"].get(self.resource, 0) for node in self.nodes))

    @cached_property
    def facts(self) -> list[dict[str, Any]]:
        """Read `node_facts` of every node that answers, once per run, by a task on each."""
        return self.read_facts(self.nodes)

    def read_facts(self, nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Read `node_facts` of these nodes; nodes that do not answer are left out."""
        by_id, names = self.on_each_node(node_facts, nodes=nodes), self.node_names
        order = sorted(by_id, key=lambda id: (by_id[id]["address"], id))
        return [{"name": names[id], **by_id[id]} for id in order]

    def hear_xids(self) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return what was heard on each node since the first call, and why some do not answer.

        Both are by node id; what was heard is as `XidListener.read`.
        """
        if not self._xids.actors:
            self._xids = XidWatch.start(node["id"] for node in self.nodes)
        return self._xids.read(), self._xids.errors

    def note_kill(
        self, nodes: Iterable[str] | None = None, *, ago: float = 0.0, at: float | None = None
    ) -> None:
        """Note that seatrial ends processes that use GPUs, on nodes by id (None: on all nodes).

        Call it before a kill: the driver may report Xids for it.  After a kill, `ago` is how many
        seconds ago it was, or `at` its time by the node's own clock.
        """
        with suppress(Exception):  # a cluster that does not answer is found by others
            self._xids.note_kill(nodes, ago, at)

    @property
    def gpus_by_node(self) -> dict[str, int]:
        """Number of GPUs of each node as Ray counts them, by node name."""
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

        `each` maps the id of each node to ask to one further argument.  The worker owns `gpus`
        GPUs, and waits for them.  A node that does not answer within 90 s has no entry: the caller
        must report it.  `errors` gets the last line of each error.
        """
        asked = self.nodes if nodes is None else nodes
        ids = [node["id"] for node in asked if each is None or node["id"] in each]
        given = {id: (*arguments, each[id]) if each else arguments for id in ids}
        answers = ask_nodes(function, given, num_gpus=gpus)
        self.errors |= {id: text for id, text in answers.errors.items() if id not in answers.silent}
        return answers.values

    def gang(self, size: int | None = None, **options: Any) -> Gang:
        """Make a gang of `size` ranks, or of all ranks of the cluster; a kept one makes room.

        With one rank per node it is spread over all nodes, otherwise it is packed.
        """
        self.kept_gang.release()
        spread = len(self.nodes) > 1 and (size or self.size) == len(self.nodes)
        strategy = options.pop("strategy", "STRICT_SPREAD" if spread else "PACK")
        held = {"holders": self.describe_holders, "on_kill": self.note_kill, **options}
        return Gang(size or self.size, resource=self.resource, strategy=strategy, **held)

    def describe_holders(self) -> str:
        """Describe what holds accelerators of this cluster; "" for nothing."""
        holders = room.find_holders(self.resource, self.node_names)
        return room.describe_holders(holders, self.resource)

    def groups_named(self, name: str) -> list[int]:
        """Count the bundles of each placement group of this name; removed groups are left out."""
        import ray

        groups = [one for one in ray.util.placement_group_table().values() if one["name"] == name]
        living = [one["bundles_to_node_id"] for one in groups if one["state"] != "REMOVED"]
        return [sum(bool(node.strip("f")) for node in nodes.values()) for nodes in living]

    def describe_busy(self, seconds: float) -> str:
        """Describe what still holds accelerators after so many seconds; "" once all are free."""
        return room.describe_busy(self, seconds)

    def claim(self, started: str, wait_s: float, say: Callable[[str], None]) -> None:
        """Let no other trial begin here until `release`; raises OtherTrial (see room.py).

        An embedded cluster is claimed, too: its address leads another trial there.
        """
        room.claim_cluster(self, started, wait_s, say)

    def release(self) -> None:
        """Let another trial begin here."""
        room.release_cluster()

    def end_claim(self, job: str) -> None:
        """End the claim of a job that is no trial.  Raises OtherTrial where it has none."""
        room.end_claim(job)

    def close(self) -> None:
        """Leave the cluster, end it if it is embedded, and clean up what is left."""
        import ray

        with ExitStack() as then:  # each of them, whatever the one before raises
            then.callback(self.cleanup.close)
            if self._local:
                then.callback(self._local.close)
            ray.shutdown()
