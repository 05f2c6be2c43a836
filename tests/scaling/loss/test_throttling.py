"""Nodes that are slow by themselves: several at once, and one that the others show by waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scaling.ladder.ladder import Rung
from scaling.ladder.step_breakdown import Step
from scaling.loss.causes import LossCause
from scaling.loss.explain import explain
from tests.support.simulated_steps import Cluster, longer

UNKNOWN = "no single node"


def slowed(nodes: int, steps: int = 24, late: tuple[int, ...] = (1,), **more: Any) -> LossCause:
    """What is named where these ranks slow down by 0.3 s a step in the second half, in forward."""
    cluster = Cluster(nodes=nodes, steps=steps, seed=3, **more)
    here = cluster.largest()

    def fallen(rank: int, step: Step) -> Step:
        return longer(step, "forward" if rank in late else "backward", 0.3)

    half = steps // 2
    table = [
        [*one[:half], *(fallen(rank, step) for step in one[half:])]
        for rank, one in enumerate(here.steps)
    ]
    (cause,) = explain(cluster.base(), replace(here, steps=table), cluster.talk).causes
    assert cause.code == "SCALE-THROTTLING"
    return cause


@pytest.mark.parametrize("nodes", [3, 4, 8])
def test_it_is_named_by_those_who_wait(nodes: int) -> None:
    assert slowed(nodes).where == "node1"


def test_what_the_others_wait_for_may_be_its_links() -> None:
    words = "the parts forward, backward, clip of a step on node1 take 1"
    assert slowed(4).statement.startswith(words)
    for cause in (slowed(4), slowed(2)):
        assert "in compute or on links (this run cannot tell which)" in cause.statement
    computed = explain(*tired()).causes[0].statement
    assert computed.startswith("compute ")
    assert "cannot tell which" not in computed


def tired() -> tuple[Rung, Rung]:
    """A node whose own work shows that it computes ever slower."""
    cluster = Cluster(nodes=4, seed=3, slowing=0.2)
    return cluster.base(), cluster.largest()


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
    assert (cause.code, cause.where) == ("SCALE-THROTTLING", "node1")


@pytest.mark.parametrize("since", [12, 16])
@pytest.mark.parametrize("late", [(0, 1, 2, 3), (1,)], ids=["everywhere", "into one node"])
def test_where_waits_are_timed_links_that_degrade_are_no_slower_compute(
    late: tuple[int, ...], since: int
) -> None:
    """All wait for the fabric; or one does, and the others wait for it in the next meeting."""
    for seed in range(5):
        cluster = Cluster(nodes=4, seed=seed, separable=True)
        here = cluster.largest()
        table = [
            [*one[:since], *(longer(step, "forward" if rank in late else "backward", 0.3,
                                    "all-gather") for step in one[since:])]
            for rank, one in enumerate(here.steps)
        ]  # fmt: skip
        found = explain(cluster.base(), replace(here, steps=table), cluster.talk)
        (cause,) = found.causes
        assert (cause.code, cause.where) == ("SCALE-LINK", "fabric"), f"seed {seed}"
        assert cause.share == pytest.approx(0.3 * (1 - since / 24) * (1 - found.lost), rel=0.2)


def test_where_waits_are_timed_both_are_told_apart() -> None:
    cluster = Cluster(nodes=4, seed=3, separable=True, slowing_jump=0.1)
    here = cluster.largest()
    table = [
        [*one[:16], *(longer(step, "backward", 0.4, "all-gather") for step in one[16:])]
        for one in here.steps
    ]
    found = explain(cluster.base(), replace(here, steps=table), cluster.talk)
    places = {cause.code: cause.where for cause in found.causes}
    assert places == {"SCALE-LINK": "fabric", "SCALE-THROTTLING": cluster.tired}
    assert sum(part.share for part in found.parts) == pytest.approx(found.lost)


@pytest.mark.parametrize("steps", [8, 24])
def test_all_nodes_that_are_slow_are_named(steps: int) -> None:
    for seed in range(10):
        cluster = Cluster(nodes=8, seed=seed, steps=steps)
        cluster.pace |= {"node2": 1.3, "node5": 1.2, "node6": 1.01}
        (cause,) = explain(cluster.base(), cluster.largest(), cluster.talk).causes
        assert (cause.code, cause.where) == ("SCALE-SLOW-NODE", "node2, node5"), f"seed {seed}"
        assert "; also slower than the median: node5" in cause.statement
