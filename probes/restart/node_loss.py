"""A training run loses nodes: with one to spare, with none, and two at once.

The nodes are spare raylets (probes/faults/spare_nodes.py), for nobody may do this to real
ones.  The ranks on them are real and small, and compute on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from probes.acceptance.measure import Ledger
from probes.cluster.cluster import Cluster
from probes.cluster.node_affinity import pinned
from probes.cluster.placement_groups import drivers_now, strangers
from probes.faults.process_faults import Strike
from probes.faults.spare_nodes import Berths
from probes.findings import finding, listed
from probes.restart.faulted_run import NAME, Blow, Scenario
from reference_trainer.launch.gang import Gang

RANKS = 2  # each on a node of its own
ROOM_SECONDS = 90  # Ray may count a lost node for a while: 5 health checks, each 3 s, and then some


@dataclass(frozen=True, kw_only=True)
class Loss(Scenario):
    """`berths` nodes are there, and `fall` of the run's are lost at once.

    `waits`: none is to spare, so it must wait until one has come back.  Not `whole`: only Ray's
    own process is lost, and the ranks must end by themselves.
    """

    berths: int
    fall: int = 1
    waits: bool = False
    whole: bool = True


class Fall(Strike):
    """Loses the gang's last nodes.  They are on the head's machine, where the harbour is."""

    def __init__(self, out: Path, berths: Berths, loss: Loss, blow: Blow) -> None:
        super().__init__(out, RANKS - 1, blow.event, blow.step)
        self.berths, self.loss = berths, loss
        self.nodes: list[str] = []

    def _arm(self, gang: Gang) -> None:
        super()._arm(gang)
        self.nodes = [self.berths.names[place.node] for place in gang.places[-self.loss.fall :]]

    def _act(self) -> tuple[bool, float]:
        import ray

        assert self.victim is not None
        moment = self._hand.await_.remote(
            self.victim.pid, self._started, self.journal, self.event, self.step
        )
        if not ray.get(moment):
            return False, 0.0
        return self.berths.lose(*self.nodes, whole=self.loss.whole)

    def whom(self, names: dict[str, str]) -> str:
        """The spare raylets that were killed."""
        return listed(self.nodes)


class Repair:
    """Hears a gang say that it waits, looks what it holds meanwhile, and brings a node back."""

    def __init__(self, cluster: Cluster, berths: Berths, loss: Loss) -> None:
        self.cluster, self.berths, self.loss = cluster, berths, loss
        self.said: list[str] = []
        self.held: int | None = None

    def __call__(self, words: str) -> None:
        """As `say` of a Gang."""
        self.said.append(words)
        if self.loss.waits:  # else it only takes Ray a while to see that a node is gone
            self.held = sum(self.cluster.groups_named(NAME))
            self.berths.open(1)


@contextmanager
def spare_nodes(cluster: Cluster, count: int, measure: Ledger) -> Iterator[Berths]:
    """Spare raylets, gone afterwards; only while no other job lives here."""
    import ray

    others = strangers(ray.get(pinned(drivers_now, cluster.home).remote(), timeout=60))
    if others:
        said = f"other jobs live on this cluster ({listed(others)}), and it might hold them up"
        pytest.fail(f"nodes are only lost while nobody else is here: {said}", pytrace=False)
    measure.progress(f"restart: {count} spare raylets join")
    berths = Berths(cluster, count)
    try:
        yield berths
    finally:
        berths.close()


def gang_on(berths: Berths, size: int = RANKS, **options: Any) -> Gang:
    """A gang on the spare raylets, each rank on one of its own."""
    strategy = "STRICT_SPREAD"
    return Gang(size, resource=berths.resource, strategy=strategy, timeout=ROOM_SECONDS, **options)


def judge_waiting(loss: Loss, repair: Repair, measure: Ledger) -> None:
    """That a run which waits for room says so, and holds nothing meanwhile."""
    if not loss.waits:
        return
    measure("unsaid_waits", int(not repair.said))
    measure("held_waiting", repair.held, note="it never said that it waits")
    measure.covered(f"it said: {'; '.join(repair.said) or 'nothing'}")
    if repair.held:
        said = f"while the run waited for a node it held {repair.held} of {RANKS}"
        measure.explain(finding("RESTART-LEAK", said))
