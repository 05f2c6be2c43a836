"""What a ladder is run on, and what is run: node counts, load, collectives, fabric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from probes.acceptance.measure import Recorder
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang
from scaling.ladder.ladder import load_text
from scaling.loss.replay import ReplayItem


@dataclass(frozen=True)
class LadderRig:
    """What a ladder is run on: the gang, its nodes' names by Ray's id, and where it is told."""

    gang: Gang
    node_names: dict[str, str]
    measure: Recorder


@dataclass(frozen=True)
class Plan:
    """What is run: node counts, the load, its collectives in order, the agreed fabric (None: it
    is not known), and how long a rung may take, in seconds."""

    node_counts: list[int]
    config: TrainConfig
    order: Sequence[ReplayItem]
    fabric: str | None = None
    timeout_s: float = 300

    @property
    def load(self) -> str:
        """What each GPU takes in, in words."""
        return load_text(self.config.batch * self.config.seq)


def node_count_text(count: int) -> str:
    """`1 node`, `4 nodes`."""
    return f"{count} nodes" if count > 1 else "1 node"
