"""A training run loses nodes: with one to spare, with none, and two at once.

The nodes are spare raylets (probes/faults/spare_nodes.py), for nobody may do this to real
ones.  The ranks on them are real and small, and compute on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.node_affinity import on_node
from probes.cluster.placement_groups import live_drivers, other_jobs
from probes.faults.injection import Fault, FaultScenario
from probes.faults.process_faults import ProcessFault
from probes.faults.spare_nodes import SpareNodes
from probes.findings import finding, join_names
from probes.restart.faulted_run import GANG_NAME
from reference_trainer.launch.gang import Gang

RANKS = 2  # each on a node of its own
WAIT_SECONDS = 90  # Ray may count a lost node for a while: 5 health checks, each 3 s, and then some


@dataclass(frozen=True, kw_only=True)
class NodeLoss(FaultScenario):
    """`spare_count` nodes are there, and `kills` of the run's are lost at once.

    `must_wait`: none is to spare, so it must wait until one has come back.  Not `whole_node`: only
    Ray's own process is lost, and the ranks must end by themselves.
    """

    spare_count: int
    kills: int = 1
    must_wait: bool = False
    whole_node: bool = True


class NodeKill(ProcessFault):
    """Loses the gang's last nodes.  They are on the head's machine, as all spare ones are."""

    def __init__(self, out: Path, spares: SpareNodes, loss: NodeLoss, fault: Fault) -> None:
        super().__init__(out, RANKS - 1, fault)
        self.spares, self.loss = spares, loss
        self.nodes: list[str] = []

    def _start_agent(self, gang: Gang) -> None:
        super()._start_agent(gang)
        lost = gang.places[-self.loss.kills :]
        self.nodes = [self.spares.node_names[place.node] for place in lost]

    def _inject(self) -> tuple[bool, float]:
        import ray

        if not ray.get(self._agent.wait_for_event.remote(*self._moment)):
            return False, 0.0
        return self.spares.kill_nodes(*self.nodes, whole_nodes=self.loss.whole_node)

    def describe_target(self, node_names: dict[str, str]) -> str:
        """Name the spare raylets that were killed."""
        return join_names(self.nodes)


@dataclass
class NodeRepair:
    """Hears a gang say that it waits, looks what it holds meanwhile, and brings a node back."""

    cluster: Cluster
    spares: SpareNodes
    loss: NodeLoss
    messages: list[str] = field(default_factory=list)
    held: int | None = None

    def __call__(self, message: str) -> None:
        """Hear a gang's message, as its `notify`."""
        self.messages.append(message)
        if self.loss.must_wait:  # else it only takes Ray a while to see that a node is gone
            self.held = sum(self.cluster.groups_named(GANG_NAME))
            self.spares.add(1)


@contextmanager
def spare_nodes(cluster: Cluster, count: int, measure: Recorder) -> Iterator[SpareNodes]:
    """Add spare raylets, gone afterwards; only while no other job lives here."""
    import ray

    jobs = other_jobs(ray.get(on_node(live_drivers, cluster.head_node_id).remote(), timeout=60))
    if jobs:
        message = f"other jobs live on this cluster ({join_names(jobs)}), and it might hold them up"
        pytest.fail(f"nodes are only lost while nobody else is here: {message}", pytrace=False)
    measure.progress(f"restart: {count} spare raylets join")
    with closing(SpareNodes(cluster, count)) as spares:
        yield spares


def spare_gang(spares: SpareNodes, size: int = RANKS, **options: Any) -> Gang:
    """Make a gang on the spare raylets, each rank on one of its own."""
    strategy = "STRICT_SPREAD"
    return Gang(size, resource=spares.resource, strategy=strategy, timeout=WAIT_SECONDS, **options)


def judge_wait(loss: NodeLoss, repair: NodeRepair, measure: Recorder) -> None:
    """Judge that a run which waits for room says so, and holds nothing meanwhile."""
    if not loss.must_wait:
        return
    measure("unreported_waits", int(not repair.messages))
    measure("held_while_waiting", repair.held, note="it never said that it waits")
    measure.covered(f"it said: {'; '.join(repair.messages) or 'nothing'}")
    if repair.held:
        statement = f"while the run waited for a node it held {repair.held} of {RANKS}"
        measure.explain(finding("RESTART-LEAK", statement))


def control_silent_wait(loss: NodeLoss, silent: NodeRepair, measure: Recorder) -> None:
    """A gang that holds something and says nothing is judged as one that waits for room."""
    trial = measure.trial()
    judge_wait(loss, silent, trial)
    fault = f"a gang that holds {silent.held} and says nothing is judged as one that waits"
    measure.control("silent wait", fault, trial)
