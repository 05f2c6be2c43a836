"""The trainer on 1, 2, 4, 8 nodes: one rung after the other, in one gang."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from reference_trainer.config import TrainConfig
from reference_trainer.gang import Gang
from reference_trainer.launchers import rank
from scaling.decompose import Step, mean_seconds, steps_of

WARM_UP = 2  # connections, allocator and kernels: not what a step costs


@dataclass(frozen=True)
class Rung:
    """One node count: the timed steps of every rank, by node.

    `steps[r][k]` is rank r's k-th timed step; `nodes[r]` its node's name.  A rung of one node is
    run on every node at once, each a job of its own, so that a slow node is seen as such.
    """

    count: int
    nodes: list[str]
    steps: list[list[Step]]
    tokens_per_step: int
    non_finite: int = 0

    @property
    def seconds(self) -> float:
        """Mean seconds of a step, over steps and ranks."""
        return mean_seconds(self.steps)

    @property
    def tokens_per_second(self) -> float:
        """Tokens that the whole rung takes in per second."""
        return self.tokens_per_step / self.seconds

    def median_node(self) -> list[list[Step]]:
        """The steps of the ranks on the node whose step time is the median: one rung's base."""
        by_node = self.by_node()
        return self.on(sorted(by_node, key=lambda name: by_node[name])[(len(by_node) - 1) // 2])

    def by_node(self) -> dict[str, float]:
        """Mean seconds of a step on each node."""
        return {node: mean_seconds(self.on(node)) for node in dict.fromkeys(self.nodes)}

    def on(self, node: str) -> list[list[Step]]:
        """The steps of the ranks on one node."""
        return [steps for name, steps in zip(self.nodes, self.steps, strict=True) if name == node]


def counts(nodes: int) -> list[int]:
    """1, 2, 4, 8 ... up to `nodes`, and `nodes` itself."""
    found = [1 << power for power in range(nodes.bit_length()) if 1 << power <= nodes]
    return found if found[-1] == nodes else [*found, nodes]


def groups_of(gang: Gang, count: int) -> list[list[int]]:
    """The workers of the gang's first `count` nodes, as one group; of each node, for count 1."""
    order = list(dict.fromkeys(place.node for place in gang.places))
    workers = {node: [w for w, p in enumerate(gang.places) if p.node == node] for node in order}
    if count == 1:
        return [workers[node] for node in order]
    return [[worker for node in order[:count] for worker in workers[node]]]


def climb(
    gang: Gang, names: dict[str, str], count: int, config: TrainConfig, timeout: float = 300
) -> Rung:
    """Run one rung on the gang's first `count` nodes (all of them, one by one, for count 1).

    Weak scaling: every rank keeps its batch.  The first steps are not counted.
    """
    groups = groups_of(gang, count)
    timed = dataclasses.replace(config, steps=config.steps + WARM_UP)
    results: list[dict[str, Any]] = gang.run(rank, timed, groups=groups, timeout=timeout)
    members = [worker for group in groups for worker in group]
    return Rung(
        count=count,
        nodes=[names[gang.places[worker].node] for worker in members],
        steps=[steps_of(result["spans"])[WARM_UP:] for result in results],
        tokens_per_step=results[0]["tokens_per_step"],
        non_finite=sum(not math.isfinite(s["loss"]) for r in results for s in r["steps"]),
    )
