"""Types of the ladder: its environment (`LadderRig`) and its work (`Plan`)."""

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
    """Environment of a ladder: the gang, node names by Ray's id, and the recorder."""

    gang: Gang
    node_names: dict[str, str]
    measure: Recorder


@dataclass(frozen=True)
class Plan:
    """Work of a ladder: node counts, load, and the collectives of a step in their order.

    `fabric` is the agreed fabric; None if it is not known.  `timeout_s` limits one rung, in
    seconds.
    """

    node_counts: list[int]
    config: TrainConfig
    order: Sequence[ReplayItem]
    fabric: str | None = None
    timeout_s: float = 300

    @property
    def load(self) -> str:
        """Tokens that each GPU takes in a step, as text."""
        return load_text(self.config.batch * self.config.seq)


def node_count_text(count: int) -> str:
    """Format a node count: `1 node`, `4 nodes`."""
    return f"{count} nodes" if count > 1 else "1 node"
