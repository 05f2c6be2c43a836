"""One acceptance run, from first event to exit code: the cluster, the contract, the run folder."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from probes.check.owed import partial_reason
from probes.check.recorder import Recorder
from probes.cluster.address import ClusterUnreachable
from probes.cluster.cluster import Cluster, VersionMismatch, connect, gpu_models, refuse_amd
from probes.cluster.endpoints import HeadWatch
from probes.cluster.node_watch import NodeState, NodeWatch
from probes.cluster.room import wait_for_nodes, wait_for_room
from probes.contract import contract as contracts
from probes.contract.contract import ClusterTerms, Contract
from probes.contract.derived_limits import derive_contract, list_slips, size_contract
from probes.session.signals import SIGNALS
from reports.numbers import quantity
from reports.record import TIERS, Finding, ProbeResult, RunRecord, node_facts
from reports.run_folder import store
from reports.run_folder.event_log import SUBMISSION_VARIABLE, UnreadableRun
from reports.run_folder.store import Store, make_free_folder
from reports.run_folder.times import utc_time
from reports.sanitize import one_line
from reports.version import suite_version
from scaling.collectives.paths import PathsBefore, read_pairs

# Elsewhere a path of a probe may be gone tomorrow: `seatrial submit` removes its environment.
IN_CHECKOUT = (Path(__file__).resolve().parents[2] / "conftest.py").is_file()
# That a probe of a lost cluster has to end.  Without its head nothing can be removed, and Ray ends
# this process soon; where only one node was lost, what the probe made on others is to be removed.
HEADLESS_S, NODELESS_S = 5.0, 90.0
DEFAULT_CONTRACT = "seatrial.toml"  # of the current folder: used where no contract is named


HELD_S = 2.0  # a run that has just ended gives its accelerators back within it


def typed_command(argv: Sequence[str]) -> str:
    """Return the command line of a process, ready to be pasted."""
    path = Path(argv[0])
    by_module = path.name == "__main__.py"  # as in `python -m pytest probes`
    program = ["python", "-m", path.parent.name] if by_module else [path.name]
    return shlex.join([*program, *argv[1:]])


def say_waiting(held: str) -> None:
    """Print what the run waits for: pytest prints nothing yet."""
    with suppress(OSError, ValueError):  # a terminal that is gone ends no run
        print(f"waiting   {one_line(held)}", file=sys.__stderr__, flush=True)


@dataclass(frozen=True)
class RunSettings:
    """What was asked of a run, read and checked before the cluster is contacted."""

    spec: str  # as --cluster
    contract_arg: str = ""  # name or file; "" where limits are derived
    agreed: Contract | None = None
    tier: str = TIERS[0]
    run_dir: str | None = None
    nodes: int | None = None
    only: Sequence[str] = ()
    nonce: str = ""
    operator: str = ""
    wait_for_nodes_s: int = 0
    wait_for_room_s: int = 0
    paths: RunRecord | None = None  # of the run that --paths-from names

    @property
    def terms(self) -> ClusterTerms:
        """Terms of the contract, with the number of nodes that --nodes gives."""
        terms = self.agreed.cluster if self.agreed else ClusterTerms()
        return terms.model_copy(update={"nodes": self.nodes or terms.nodes})


class RunSession:
    """Shared state of all probes of one run."""

    def __init__(self, settings: RunSettings) -> None:
        self.spec, self.only, self.nonce = settings.spec, list(settings.only), settings.nonce
        self.tier, self.contract_arg = settings.tier, settings.contract_arg
        self.settings, agreed, run_dir = settings, settings.agreed, settings.run_dir
        awaited = settings.terms.nodes
        store.prepare_run_folder(Path(run_dir)) if run_dir else store.prepare_parent(Path("runs"))
        self.cluster: Cluster | None = None
        self.initial_nodes: dict[str, str] = {}
        self.join_error, self.was_cut_off = "", False
        self.waited_s, self.held_s, self.held = 0.0, 0.0, ""
        self.contract: Contract
        self.described: dict[str, Any]
        self._watch: HeadWatch | None = None
        self._current: Recorder | None = None  # of the probe that runs, or ran last
        self._begun: float | None = None  # when that probe began; None after its end
        self._loss: Finding | None = None  # of a node, between two probes
        self._nodes: NodeWatch | None = None
        self._lock = threading.RLock()
        # Ends the run: a sentence, and the seconds that the main thread has for that.
        self.on_lost: Callable[[str, float], None] = lambda sentence, seconds: None
        try:
            self._join(agreed, awaited)
            self._describe(agreed)
            self._carry_on(settings.paths)
            SIGNALS.hold()  # until the first event has what writes the last one
        except (KeyboardInterrupt, SystemExit):  # Ray's own handler of SIGTERM raises SystemExit
            self._cut_off(agreed)
        new = Path("runs") / store.run_folder_name(self.name)  # or the next free one
        self.store = Store(Path(run_dir) if run_dir else make_free_folder(new))
        self.store.keep_room()
        self._write_start()
        self._write_owed()
        self._taken = 0  # problems of the process that cleans up
        self._cleanup = self.cluster.cleanup if self.cluster else None
        if self.cluster:
            self._watch_cluster(self.cluster)

    def _watch_cluster(self, cluster: Cluster) -> None:
        """Watch the head and the nodes until the cluster is left."""
        head = self._watch = HeadWatch(
            cluster.address, self._tell, lambda text: self.on_lost(text, HEADLESS_S)
        )

        def read() -> list[NodeState]:
            # A call of Ray to a lost head would not return, and `leave` would wait for it.
            return cluster.node_states() if head.head_answers() else []

        expected = cluster.expected_losses
        self._nodes = NodeWatch(read, self.initial_nodes, self._on_node_lost, expected)

    def _join(self, agreed: Contract | None, awaited: int | None) -> None:
        """Join the cluster, wait for its nodes and for room there, and claim it."""
        settings = self.settings
        try:
            self.cluster = connect(self.spec)
        except VersionMismatch as error:
            self.join_error = str(error)
        SIGNALS.take()  # Ray's handler of SIGTERM would end this process or one probe alone
        if not self.cluster:
            return
        if agreed and agreed.rehearsal:
            self.cluster.emulated = True
        self._claim(self.cluster)
        if awaited and (limit_s := settings.wait_for_nodes_s):
            gpus = min(agreed.cluster.kinds, default=0) if agreed else 0
            self.waited_s = wait_for_nodes(self.cluster, awaited, gpus, limit_s, say_waiting)
        if settings.wait_for_room_s:
            self.held_s = wait_for_room(self.cluster, settings.wait_for_room_s, say_waiting)
        try:
            refuse_amd(self.cluster)
        except ClusterUnreachable:
            self.cluster.close()
            raise
        self.held = self.cluster.describe_busy(HELD_S)

    def _describe(self, agreed: Contract | None) -> None:
        """Set the contract, the ordered nodes, and what is recorded of the cluster."""
        self.contract = agreed or derive_contract(self.cluster)
        # local:4 is an order of four nodes.
        embedded = self.cluster.embedded_nodes if self.cluster else None
        self.ordered = self.settings.nodes or self.contract.cluster.nodes or embedded
        self.described = self._describe_cluster()
        # By the recorded size: a later `seatrial rejudge` and `verify` know no other.
        size = self.described.get("alive", 0), self.described.get("ranks", 0)
        self.contract = size_contract(self.contract, *size)

    def _carry_on(self, before: RunRecord | None) -> None:
        """Let FABRIC test pairs that did not meet in an earlier run.  Raises UnreadableRun."""
        if not before or not self.cluster:
            return
        if before.cluster_name != self.name:
            self.cluster.close()
            found = f"--paths-from: run {before.id} is of cluster {before.cluster_name}"
            raise UnreadableRun(f"{found}. Expected: a run of {self.name}")
        packed = next(one.series["paths"] for one in before.results if "paths" in one.series)
        facts = node_facts(before.cluster), self.cluster.facts
        self.cluster.paths_before = PathsBefore(before.head, read_pairs(packed, *facts))

    def _cut_off(self, agreed: Contract | None) -> None:
        """Leave the cluster after a signal that came before the first probe: the record says so."""
        SIGNALS.wait_for("seatrial has left the cluster")
        SIGNALS.take()
        self.was_cut_off = True
        with suppress(Exception):
            self.leave()
        self.join_error = "the run was interrupted before its first probe"
        self._describe(agreed)

    def _claim(self, cluster: Cluster) -> None:
        """Let no other trial begin on the cluster; leave it if another one runs there."""
        try:
            cluster.claim(utc_time(), self.settings.wait_for_room_s, say_waiting)
        except BaseException:
            cluster.close()
            raise

    @property
    def name(self) -> str:
        """Short name of the cluster: the contract's, `local`, `unjoined`, the head's or `silent`.

        A shipped contract is for many clusters.  The head's name is new where it is a new pod.
        """
        if self.cluster is None or self.cluster.kind == "local":
            return "local" if self.cluster else "unjoined"
        if self.contract.agreed and self.contract.name not in contracts.shipped_contracts():
            return self.contract.name
        return str(self.cluster.facts[0]["name"]) if self.cluster.facts else "silent"

    @property
    def terms(self) -> ClusterTerms:
        """Terms of the contract for the cluster, with the ordered number of nodes."""
        terms = self.contract.cluster
        return terms.model_copy(update={"nodes": self.ordered}) if self.ordered else terms

    def missing_nodes(self) -> list[str]:
        """Return the names of nodes that were alive when the run began and are not alive now."""
        alive = {node["id"] for node in self.cluster.nodes} if self.cluster else set()
        return [name for id, name in self.initial_nodes.items() if id not in alive]

    def _write_start(self) -> None:
        versions = {**suite_version(), "python": platform.python_version()}
        versions |= {name: metadata.version(name) for name in ("ray", "torch", "pytest")}
        alone = contracts.is_one_node(self.terms, self.described)
        self.store.start(
            self.contract.text,
            id=self.store.path.name,
            started=self.store.run_time,
            command=typed_command(sys.argv),
            tier=self.tier,
            versions=versions,
            cluster=self.described,
            rehearsal=self.cluster.rehearsal if self.cluster else "",
            contract=self.contract.facts(alone).model_dump(mode="json"),
            nonce=self.nonce,
            submission=os.environ.get(SUBMISSION_VARIABLE, ""),
            operator=self.settings.operator,
        )

    def _write_owed(self) -> None:
        """Write down what the run must record, before pytest selects any probe."""
        # The cluster is not described again: a node may be lost meanwhile.
        data = self.contract.owed_event(self.tier, self.only, self.terms, self.described)
        self.store.event("run_owes", **data)

    def report_problem(self, kind: str, where: str, text: str) -> None:
        """Record a problem outside the probes: a run with one accepts nothing."""
        self.store.event("run_problem", kind=kind, where=where, text=text)

    def _describe_cluster(self) -> dict[str, Any]:
        if self.cluster is None:
            return {"name": self.name, "note": self.join_error}
        self.initial_nodes = {node["id"]: node["name"] for node in self.cluster.nodes}
        compute = "not extended: steps have their real speed"
        if pace := self.terms.pace_seconds:
            compute = f"extended to {pace} s in each step, as of an accelerator (emulated)"
        return {
            "name": self.name,
            "kind": self.cluster.kind,
            "nodes": self.cluster.facts,
            "alive": len(self.cluster.nodes),
            "ranks": self.cluster.size,
            "resource": self.cluster.resource,
            "on_gpu": self.cluster.on_gpu,
            "compute": compute,
            "terms": self.terms.model_dump(exclude_none=True),
        }

    def header(self) -> list[str]:
        """Return the header lines: cluster, contract, run."""
        from_folder = f"  ({DEFAULT_CONTRACT} of this folder)"
        remark = from_folder if self.contract_arg == DEFAULT_CONTRACT else ""
        if not self.contract.agreed:
            remark = "  (no contract: limits are derived, and the run cannot be accepted)"
        lines = [
            f"contract  {self.contract.name} @ {self.contract.sha256[:8] or 'derived'}{remark}",
            f"run       {self.store.path}  tier {self.tier}",
        ]
        if reason := partial_reason(self.only, self.tier, self.contract.tier):
            lines.append(f"PARTIAL   {reason}, so the run cannot be accepted")
        if self.cluster is None:
            return [f"cluster   could not be joined: {self.join_error}", *lines]
        if self.contract.agreed and not self.cluster.rehearsal:
            gaps = contracts.find_gaps(self.contract, gpu_models(self.cluster.facts), self.ordered)
            lines += [f"UNPROVEN  {contracts.NOT_ACCEPTED}: {text}" for _, text in gaps]
            slips = list_slips(self.contract.cluster, self.cluster.facts)
            lines += [f"CHECK     contract: {text}" for text in slips]
        if self.waited_s:
            lines.append(f"waited    {self.waited_s:.0f} s for nodes to join")
        if self.held_s:
            lines.append(f"waited    {self.held_s:.0f} s for other jobs to free accelerators")
        if self.held:
            lines.append(f"held      {self.held}. Tests that wait too long are UNPROVEN")
        nodes = quantity(len(self.cluster.nodes), "nodes")
        ranks = quantity(self.cluster.size, f"{self.cluster.resource}s")
        first = f"cluster   {self.name}  {nodes}, {ranks}"
        if self.cluster.rehearsal:
            first += f"  REHEARSAL: {self.cluster.rehearsal}"
        return [first, *lines]

    def begin(
        self, probe: str, node_id: str, criterion: str, claim: str, say: Callable[[str], None]
    ) -> Recorder:
        """Begin the record of one probe, whose reproduce command runs this probe alone."""
        # Another tier has other probes, and other parts of this one.
        words = ["--cluster", self.spec, "--tier", self.tier]
        words += ["--contract", self.contract_arg] if self.contract_arg else []
        words += ["--nodes", str(self.settings.nodes)] if self.settings.nodes else []
        options = shlex.join(words)
        reproduce = f"pytest {shlex.quote(node_id)} {options}"
        if not IN_CHECKOUT:
            name = node_id.partition("::")[2].partition("[")[0]
            reproduce = f"seatrial run {options} -k {shlex.quote(name)}"
        self._current = Recorder(self.store, self.contract, probe, criterion, claim, reproduce, say)
        self._current.settle = self._settle
        with self._lock:
            self._begun, loss = time.monotonic(), self._loss
        if loss:
            self._on_node_lost(loss)
        return self._current

    def end(self, recorder: Recorder, state: str, seconds: float, error: str) -> ProbeResult:
        """End the record of a probe; return its result with what it owed and did not record.

        On a full disk the run goes on.  A later event, or the end, shows what was not written.
        """
        if state == "error":
            self._settle()
        with self._lock:
            self._begun = None
        try:
            result = recorder.finish(state, seconds, error)
        except OSError as failure:
            reason = f"the result cannot be written: {failure.strerror or failure}"
            return recorder.result("error", seconds, "; ".join(filter(None, (error, reason))))
        with suppress(OSError):
            for problem in self.take_problems():
                self.report_problem(*problem)
        try:
            results = self.store.save().results
        except OSError:  # the end of the run writes it again, and says where it cannot
            results = self.store.record().results
        return next((one for one in results[::-1] if one.probe == result.probe), result)

    def end_current(self, error: str) -> None:
        """End the probe that runs, if one does, because its cluster is lost."""
        if self._current and self._begun is not None:
            self.end(self._current, "error", time.monotonic() - self._begun, error)

    def _tell(self, finding: Finding) -> None:
        """Add what happened to the cluster to the probe that runs, or ran last."""
        if self._current:
            self._current.say(finding.statement)
            self._current.explain(finding)

    def _on_node_lost(self, finding: Finding) -> None:
        """End the run and its probe; between two probes wait for the next, if one comes."""
        with self._lock:
            if SIGNALS.ends_run or self._begun is None or not self._current:
                self._loss = finding
                return
            self._tell(finding)
        self.on_lost(finding.statement, NODELESS_S)

    def _settle(self) -> None:
        """Wait until it is known whether a node was lost."""
        if self._nodes and not SIGNALS.ends_run:
            self._nodes.settle()

    def take_problems(self) -> list[tuple[str, str, str]]:
        """Return, once, what happened to the process that cleans up: kind, place and text."""
        if self._cleanup is None:
            return []
        taken = [("cleanup", where, text) for where, text in self._cleanup.problems[self._taken :]]
        self._taken += len(taken)
        return taken

    def leave(self) -> None:
        """Leave the cluster; safe to repeat."""
        if self._nodes:
            self._nodes.close()
        if self._watch:
            self._watch.close()
        cluster, self.cluster = self.cluster, None
        if cluster:
            if self._watch and self._watch.head_answers():  # otherwise the claim ends with our job
                cluster.release()
            cluster.close()
