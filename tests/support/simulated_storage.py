"""Simulates a cluster for HOSTS' probe of the shared folder: nodes are threads, files are real."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from probes.contract.contract import ClusterTerms, Contract, load
from probes.hosts import storage_judge, storage_round, storage_work
from probes.hosts.storage_work import CHUNK, Size
from probes.hosts.test_hosts import test_all_nodes_use_the_shared_folder_at_once as storage_probe
from reports.measurement import Limit
from reports.record import ProbeResult
from tests.support.controls import recorder

SHARED = "/simulated-share"
# Measures that need several nodes.
SHARING = ("unseen_files", "seen_after", "double_creations", "rename_gaps")
SPEEDS = ("shard_write", "shard_read", "random_read")
SMALL = Size(CHUNK, 32, 5)
NOISE_S = 0.1  # of a simulated node
Change = Callable[[str, Any], Any]  # (name of a function, its argument) -> another argument


class SimulatedStorage:
    """Cluster whose nodes work in folders below `root`, each in a thread.

    Node `id1` sees SHARED at `views["id1"]`.  `changes` and `answers` are by node: what another
    node does in place of its task, and what it answers in place of its answer.
    """

    kind, size = "ray", 3

    def __init__(self, root: Path, nodes: int = 3) -> None:
        self.root, self.size = root, nodes
        (root / "share").mkdir()
        self.nodes = [{"id": f"id{i}", "name": f"n{i}"} for i in range(nodes)]
        self.views = {node["id"]: root / "share" for node in self.nodes}
        self.changes: dict[str, Change] = {}
        self.answers: dict[tuple[str, str], Any] = {}
        self.silent: set[tuple[str, str]] = set()  # (node, function)
        self.errors: dict[str, str] = {}
        self.shared_mounts: dict[str, Any] = {}
        self.cleanup = self
        self.kept: list[str] = []
        self.asked: list[str] = []

    def register(self, kind: str, path: str) -> None:
        assert kind == "folder"
        self.kept.append(path)

    def remove_now(self, path: Path) -> None:
        self.kept.remove(str(path))
        shutil.rmtree(path, ignore_errors=True)

    def on_each_node(
        self,
        function: Any,
        *arguments: Any,
        each: Mapping[str, Any] | None = None,
        nodes: Sequence[Mapping[str, str]] = (),
    ) -> dict[str, Any]:
        name = function.__name__
        if each is None:
            each = {node["id"]: arguments[-1] for node in nodes}
            arguments = arguments[:-1]
        self.asked.append(name)

        def work(id: str) -> Any:
            value = self._relocate(each[id], self.views[id])
            if id in self.changes:
                value = self.changes[id](name, value)
            return function(*arguments, value)

        ids = [id for id in each if (id, name) not in self.silent]
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            done = dict(zip(ids, pool.map(work, ids), strict=True))
        return {id: self.answers.get((id, name), answer) for id, answer in done.items()}

    def _relocate(self, value: Any, view: Path) -> Any:
        """Put this node's view of the share in place of SHARED, in an argument of any kind."""
        if isinstance(value, str):
            return value.replace(SHARED, str(view))
        if isinstance(value, storage_work.Place):
            parent = value.parent or str(self.root)
            return dataclasses.replace(value, parent=parent.replace(SHARED, str(view)))
        if isinstance(value, tuple | list):
            return type(value)(self._relocate(one, view) for one in value)
        if hasattr(value, "place"):
            return dataclasses.replace(value, place=self._relocate(value.place, view))
        return value


def agree(**limits: Limit) -> Contract:
    """Load a contract, with these limits of HOSTS."""
    contract = load("h100-ndr400")
    hosts = {**contract.limits.get("HOSTS", {}), **limits}
    return contract.model_copy(update={"limits": {**contract.limits, "HOSTS": hosts}})


def run_storage(
    cluster: SimulatedStorage,
    tier: str = "quick",
    contract: Contract | None = None,
    shared: str | None = SHARED,
    **terms: Any,
) -> ProbeResult:
    """Run the probe, unchanged, over the simulated nodes; only its waits are shorter."""
    measure = recorder("HOSTS", contract or load("h100-ndr400"))
    with (
        patch.object(storage_judge, "QUICK", SMALL),
        patch.object(storage_judge, "USUAL", CHUNK),
        patch.object(storage_judge, "LONG_READS", SMALL.reads),
        patch.object(storage_judge, "LONG_FILES", SMALL.files),
        patch.object(storage_judge, "SHORT_S", 0.05),
        patch.object(storage_judge, "NOISE_S", NOISE_S),
        patch.object(storage_round, "REPLACE_S", 0.1),
        patch.object(storage_round, "FIRST_S", 0.3),
        patch.object(storage_round, "WAIT_S", 0.3),
        patch.object(storage_work, "SEEN_S", 0.3),
        patch.object(storage_work, "MEET_S", 0.3),
    ):
        storage_probe(cast(Any, cluster), ClusterTerms(shared=shared, **terms), tier, measure)
    result = measure.finish("finished", 1.0)
    return result.model_copy(update={"coverage": "; ".join(measure._coverage)})


def statements(result: ProbeResult) -> list[str]:
    """Return the statements of all findings."""
    return [finding.statement for finding in result.findings]
