"""Nodes that are slow by themselves: several at once, and one that the others show by waiting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaling.causes import Cause
from scaling.decompose import Step
from scaling.explain import explain
from scaling.ladder import Rung
from tests.simulated_steps import Cluster, longer

UNKNOWN = "not shown by any single node"


def slowed(nodes: int, steps: int = 24, late: tuple[int, ...] = (1,), **more: int) -> Cause:
    """What is named where these ranks slow down by 0.3 s a step in the second half, in forward."""
    cluster = Cluster(nodes=nodes, steps=steps, seed=3, **more)  # type: ignore[arg-type]
    here = cluster.largest()

    def fallen(rank: int, step: Step) -> Step:
        return longer(step, "forward" if rank in late else "backward", 0.3)

    half = steps // 2
    table = [
        [*one[:half], *(fallen(rank, step) for step in one[half:])]
        for rank, one in enumerate(here.steps)
    ]
    (cause,) = explain(cluster.base(), replace(here, steps=table), cluster.talk).causes
    assert cause.code == "SCALE-SLOWING"
    return cause


@pytest.mark.parametrize("nodes", [3, 4, 8])
def test_it_is_named_by_those_who_wait(nodes: int) -> None:
    assert slowed(nodes).where == "node1"


def test_a_rank_and_a_whole_node_of_several_ranks_are_named() -> None:
    assert slowed(4, per_node=2, late=(3,)).where == "node1"
    assert slowed(4, per_node=2, late=(2, 3)).where == "node1"


@pytest.mark.parametrize(
    "unclear",
    [{"nodes": 2}, {"nodes": 4, "late": (1, 2)}, {"nodes": 4, "steps": 8}],
    ids=["two ranks", "two nodes at once", "few steps"],
)
def test_nobody_is_guessed_at(unclear: dict[str, int]) -> None:
    assert slowed(**unclear).where == UNKNOWN


def test_where_waits_are_timed_compute_itself_is_the_witness() -> None:
    cluster = Cluster(nodes=2, seed=3, separable=True)
    here = cluster.largest()
    table = [
        [*one[:12], *(longer(step, "backward", 0.3, None if rank else "all-gather")
                      for step in one[12:])]
        for rank, one in enumerate(here.steps)
    ]  # fmt: skip
    slow: Rung = replace(here, steps=table)
    (cause,) = explain(cluster.base(), slow, cluster.talk).causes
    assert (cause.code, cause.where) == ("SCALE-SLOWING", "node1")


@pytest.mark.parametrize("steps", [8, 24])
def test_all_nodes_that_are_slow_are_named(steps: int) -> None:
    for seed in range(10):
        cluster = Cluster(nodes=8, seed=seed, steps=steps)
        cluster.pace |= {"node2": 1.3, "node5": 1.2, "node6": 1.01}
        (cause,) = explain(cluster.base(), cluster.largest(), cluster.talk).causes
        assert (cause.code, cause.where) == ("SCALE-SLOW-NODE", "node2, node5"), f"seed {seed}"
        assert "; node5 slower too, hidden behind it" in cause.said
