"""Runs HOSTS' probe of what jobs load over simulated nodes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

from probes.cluster.network_facts import try_closed_target, try_targets
from probes.cluster.node_facts import list_packages, read_changed_file, read_model_files
from probes.contract.contract import ClusterTerms
from probes.hosts.needs import judge_needs, read_hidden_devices, read_other_image
from reports.record import ProbeResult
from tests.support.simulated_hosts import StandInHosts, run_probe

DEBIAN, UBUNTU = "Debian GNU/Linux 12 (bookworm)", "Ubuntu 22.04.4 LTS"
USUAL = ["numpy 2.1.0", "ray 2.56.1", "torch 2.13.0"]
DEVICES = [f"mlx5_{index}" for index in range(8)]
CLOSED = "/dev/infiniband/uverbs{}: Operation not permitted"
MODEL = {"config.json": "700 aa", "model-1.safetensors": "5000000000 bb"}


class StandInNeeds(StandInHosts):
    """Cluster of healthy nodes; a test changes packages, devices, ways out and models by node.

    What a node lists here is what its worker would; `silent` nodes run no task.
    """

    def __init__(self, nodes: int = 3) -> None:
        super().__init__(nodes)
        self.packages = {fact["node"]: list(USUAL) for fact in self.facts}
        self.problems: dict[str, dict[str, str]] = {fact["node"]: {} for fact in self.facts}
        whole = {"files": MODEL, "error": "", "unknown": ""}
        self.models = {fact["node"]: copy.deepcopy(whole) for fact in self.facts}
        self.silent: set[str] = set()
        self.asked: list[str] = []
        for fact in self.facts:
            fact["image"] = {"os": DEBIAN, "packages": 3, "digest": ""}

    def known_nodes(self) -> list[dict[str, Any]]:
        nodes = super().known_nodes()
        return [{**n, "head": i == 0, "address": f"10.0.0.{i}"} for i, n in enumerate(nodes)]

    def run(self, **terms: Any) -> ProbeResult:
        """Run the probe, unchanged, over the stand-in."""
        for fact in self.facts:
            if fact["image"] and not fact["image"]["digest"]:
                fact["image"]["digest"] = " ".join(self.packages[fact["node"]])
        return run_probe(
            lambda measure: judge_needs(cast(Any, self), ClusterTerms(**terms), measure)
        )

    def on_each_node(
        self, function: Any, *arguments: Any, nodes: Sequence[Any] | None = None, **_: Any
    ) -> dict[str, Any]:
        ids = [node["id"] for node in (self.nodes if nodes is None else nodes)]
        return {id: self._answer(function, id, *arguments) for id in ids if id not in self.silent}

    def _answer(self, function: Any, id: str, *arguments: Any) -> Any:
        (fact,) = [fact for fact in self.facts if fact["node"] == id]
        if function is list_packages:
            self.asked.append(id)
            return self.packages[id]
        if function is read_other_image:
            return {**fact["image"], "digest": "another"}
        if function is read_hidden_devices:
            return dict.fromkeys(fact["rdma_access"], "/tmp/uverbs0: No such file or directory")
        if function is try_targets:
            return {target: self.problems[id].get(target, "") for target in arguments[0]}
        if function is try_closed_target:
            return {
                "https://127.0.0.1:1": "Connection refused",
                "127.0.0.1:1": "Connection refused",
            }
        if function is read_model_files:
            return dict.fromkeys(arguments[0], self.models[id])
        assert function is read_changed_file
        files = {**self.models[id]["files"], "config.json": "700 changed"}
        return {arguments[0]: {"files": files, "error": "", "unknown": ""}}
