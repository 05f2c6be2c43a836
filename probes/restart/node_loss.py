"""Removes nodes from a training run: with one spare node, with none, and two at once.

The nodes are spare raylets (probes/faults/spare_nodes.py), because real nodes must not be killed.
Their ranks are real but small, and compute on a CPU.
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
from probes.cluster.room.placement_groups import jobs_of_others
from probes.faults.injection import Fault, FaultScenario
from probes.faults.process_faults import ProcessFault
from probes.faults.spare_nodes import SpareNodes
from probes.findings import finding, join_names
from probes.restart.faulted_run import GANG_NAME
from reference_trainer.launch.gang import Gang

RANKS = 2  # each on a node of its own
WAIT_SECONDS = 90  # Ray counts a lost node for 5 health checks of 3 s; the rest is margin


@dataclass(frozen=True, kw_only=True)
class NodeLoss(FaultScenario):
    """Scenario in which `kills` of the run's nodes are lost at once, out of `spare_count` nodes.

    `must_wait`: no node is to spare, so the run must wait until one has come back.  `whole_node` is
    False: only the raylet is killed, and the ranks must end by themselves.
    """

    spare_count: int
    kills: int = 1
    must_wait: bool = False
    whole_node: bool = True


class NodeKill(ProcessFault):
    """Injector that kills the gang's last nodes.  All spare nodes are on the head's machine."""

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
    """Callback (`notify`) for the messages of a gang that waits.

    It stores the message, counts what the gang holds meanwhile, and adds a node.
    """

    cluster: Cluster
    spares: SpareNodes
    loss: NodeLoss
    messages: list[str] = field(default_factory=list)
    held: int | None = None

    def __call__(self, message: str) -> None:
        """Store a gang's message; if the run must wait, count what it holds and add a node."""
        self.messages.append(message)
        if self.loss.must_wait:  # otherwise the wait ends when Ray sees the lost node
            self.held = sum(self.cluster.groups_named(GANG_NAME))
            self.spares.add(1)


@contextmanager
def spare_nodes(cluster: Cluster, count: int, measure: Recorder) -> Iterator[SpareNodes]:
    """Add spare raylets for the block, and remove them afterwards.

    Fails the probe if other jobs run on the cluster.
    """

    if jobs := jobs_of_others(cluster):
        message = (
            f"other jobs run on this cluster ({join_names(jobs)}), and the test might delay them"
        )
        pytest.fail(f"nodes are only killed while no other job runs: {message}", pytrace=False)
    measure.progress(f"restart: {count} spare raylets join")
    with closing(SpareNodes(cluster, count)) as spares:
        yield spares


def spare_gang(spares: SpareNodes, size: int = RANKS, **options: Any) -> Gang:
    """Make a gang on the spare raylets, one rank on each."""
    strategy = "STRICT_SPREAD"
    return Gang(size, resource=spares.resource, strategy=strategy, timeout=WAIT_SECONDS, **options)


def judge_wait(loss: NodeLoss, repair: NodeRepair, measure: Recorder) -> None:
    """Judge that a run which waits for a node reports it, and holds nothing meanwhile."""
    if not loss.must_wait:
        return
    measure("unreported_waits", int(not repair.messages))
    measure("held_while_waiting", repair.held, note="it never logged that it waits")
    measure.covered(f"it logged: {'; '.join(repair.messages) or 'nothing'}")
    if repair.held:
        statement = f"while the run waited for a node it held {repair.held} of {RANKS}"
        measure.explain(finding("RESTART-LEAK", statement))


def control_silent_wait(loss: NodeLoss, silent: NodeRepair, measure: Recorder) -> None:
    """Check that a gang that holds something and reports nothing fails the judge of waits."""
    trial = measure.trial()
    judge_wait(loss, silent, trial)
    fault = f"a gang that holds {silent.held} and logs nothing is judged as one that waits"
    measure.control("silent wait", fault, trial)
