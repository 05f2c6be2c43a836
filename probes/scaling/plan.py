"""What is climbed: node counts, load, collectives, fabric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reference_trainer.config import TrainConfig
from scaling.ladder.ladder import load
from scaling.loss.replay import Moment


@dataclass(frozen=True)
class Plan:
    """What is climbed: node counts, the load, its collectives in order, the agreed fabric (None: it
    is not known), and how long a rung may take, in seconds."""

    nodes: list[int]
    config: TrainConfig
    order: Sequence[Moment]
    fabric: str | None = None
    patience: float = 300

    @property
    def load(self) -> str:
        """What each GPU takes in, in words."""
        return load(self.config.batch * self.config.seq)


def said(count: int) -> str:
    """`1 node`, `4 nodes`."""
    return f"{count} nodes" if count > 1 else "1 node"
