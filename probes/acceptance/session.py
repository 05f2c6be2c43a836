"""One acceptance run: the cluster, the contract, the run folder, from first event to exit code."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from probes.acceptance.contract import ClusterTerms, Contract, ContractError, load
from probes.acceptance.derived_limits import derive_contract
from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster, VersionMismatch, connect
from probes.cluster.head_watch import HeadWatch
from reports.record import Finding, RunRecord
from reports.redact import redact_text
from reports.store import Store, run_folder_name, utc_time


class RunSession:
    """Holds what all probes of one run share."""

    def __init__(
        self, spec: str, contract: str | None, tier: str, run_dir: str | None, nodes: int | None
    ) -> None:
        self.spec, self.tier = spec, tier
        # Read before connecting: a typo must not cost a cluster start.
        agreed = load(contract) if contract else None
        if agreed and nodes and agreed.cluster.nodes not in (None, nodes):
            raise ContractError(
                f"{nodes} nodes were asked for (--nodes or SEATRIAL_NODES), but contract "
                f"{agreed.name} orders {agreed.cluster.nodes}: drop one of the two"
            )
        if run_dir and (Path(run_dir) / "events.jsonl").exists():
            raise ContractError(f"--run-dir {run_dir} holds a run already: give a new folder")
        self.contract_arg = contract or ""
        self.cluster: Cluster | None = None
        self.initial_nodes: dict[str, str] = {}
        self.join_error = ""
        try:
            self.cluster = connect(spec)
        except VersionMismatch as error:
            self.join_error = str(error)
        if self.cluster and agreed and agreed.rehearsal:
            self.cluster.emulated = True
        self.contract: Contract = agreed or derive_contract(self.cluster)
        # Whoever writes local:4 has ordered four.
        self.ordered = nodes or (self.cluster.embedded_nodes if self.cluster else None)
        self.store = Store(Path(run_dir) if run_dir else Path("runs") / run_folder_name(self.name))
        self._write_start()
        self._current: Recorder | None = None  # of the probe that runs, or ran last
        self._watch = HeadWatch(self.cluster.address, self._on_head_lost) if self.cluster else None

    @property
    def name(self) -> str:
        """Short name of the cluster: the head's host name, or `local`."""
        if self.cluster is None or self.cluster.kind == "local":
            return "local" if self.cluster else "unjoined"
        return str(self.cluster.facts[0]["name"]) if self.cluster.facts else "silent"

    @property
    def terms(self) -> ClusterTerms:
        """What the contract says of the cluster, with the ordered number of nodes."""
        terms = self.contract.cluster
        return terms.model_copy(update={"nodes": self.ordered}) if self.ordered else terms

    @property
    def command(self) -> str:
        """The command line, as it can be pasted, without secrets."""
        return redact_text(shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]))

    def missing_nodes(self) -> list[str]:
        """Names of nodes that were there when the run began and are not alive now."""
        alive = {node["id"] for node in self.cluster.nodes} if self.cluster else set()
        return [name for id, name in self.initial_nodes.items() if id not in alive]

    def _write_start(self) -> None:
        versions = {
            "python": platform.python_version(),
            **{package: metadata.version(package) for package in ("ray", "torch", "pytest")},
        }
        self.store.event(
            "run_started",
            id=self.store.path.name,
            started=utc_time(),
            command=self.command,
            tier=self.tier,
            versions=versions,
            cluster=self._describe_cluster(),
            rehearsal=self.cluster.rehearsal if self.cluster else "",
            contract=self.contract.facts().model_dump(mode="json"),
        )

    def _describe_cluster(self) -> dict[str, Any]:
        if self.cluster is None:
            return {"name": self.name, "note": self.join_error}
        self.initial_nodes = {node["id"]: node["name"] for node in self.cluster.nodes}
        return {
            "name": self.name,
            "kind": self.cluster.kind,
            "nodes": self.cluster.facts,
            "ranks": self.cluster.size,
            "resource": self.cluster.resource,
            "compute": self._describe_compute(),
            "terms": self.terms.model_dump(exclude_none=True),
        }

    def _describe_compute(self) -> str:
        pace = self.terms.pace_seconds
        if pace:
            return f"paced: each step's compute is padded to {pace} s (an emulated accelerator)"
        return "as fast as the machine goes"

    def header(self) -> list[str]:
        """Cluster, contract with its notices, run."""
        lines = [
            f"contract  {self.contract.name} @ {self.contract.sha256[:8] or 'derived'}"
            + ("" if self.contract.agreed else "  (none was agreed: limits are derived)"),
            *(f"notice    {notice}" for notice in self.contract.notices),
            f"run       {self.store.path}  tier {self.tier}",
        ]
        if self.cluster is None:
            return [f"cluster   could not be joined: {self.join_error}", *lines]
        nodes, resource = len(self.cluster.nodes), self.cluster.resource
        first = f"cluster   {self.name}  {nodes} nodes, {self.cluster.size} {resource}s"
        if self.cluster.rehearsal:
            first += f"  REHEARSAL: {self.cluster.rehearsal}"
        return [first, *lines]

    def begin(self, probe: str, criterion: str, claim: str, say: Callable[[str], None]) -> Recorder:
        """Begin the record of one probe."""
        contract = f" --contract {shlex.quote(self.contract_arg)}" if self.contract_arg else ""
        tier = f" --tier {self.tier}"  # else another tier's probes, and other parts of this one
        reproduce = f"pytest {shlex.quote(probe)} --cluster {self.spec}{tier}{contract}"
        self._current = Recorder(self.store, self.contract, probe, criterion, claim, reproduce, say)
        return self._current

    def _on_head_lost(self, finding: Finding) -> None:
        if self._current:
            self._current.say(finding.statement)
            self._current.explain(finding)

    def finish(self, state: str) -> RunRecord:
        """Write the record and leave the cluster; returns the record."""
        if self._watch:
            self._watch.close()
        self.store.event("run_finished", finished=utc_time(), state=state)
        record = self.store.save()
        if self.cluster:
            self.cluster.close()
            self.cluster = None
        return record
