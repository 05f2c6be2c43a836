"""On a clock that tells waits from compute, who keeps the others waiting is no network's fault."""

from __future__ import annotations

from typing import Any

import pytest

from scaling.loss.causes import CollectiveTimes
from scaling.loss.explain import Explanation, explain
from scaling.loss.throttling import find_load_slowdown
from tests.support.simulated_steps import CODES, Cluster

LIMIT = 0.9
REPLAYS = [
    CollectiveTimes(0.04, 0.04),
    CollectiveTimes(0.4, 0.4),
    CollectiveTimes(),
]  # behind compute a replay is far more

every_replay = pytest.mark.parametrize("talk", REPLAYS, ids=["as waited", "hidden", "none"])


def seen(
    seed: int, talk: CollectiveTimes | None = None, **planted: Any
) -> tuple[Cluster, Explanation]:
    """A cluster of GPUs and what is said of its largest rung."""
    cluster = Cluster(nodes=4, seed=seed, separable=True, **planted)
    talk = cluster.talk if talk is None else talk
    return cluster, explain(cluster.base(), cluster.largest(), talk, limit=LIMIT)


@every_replay
def test_a_node_that_is_slow_in_company_only_is_named_and_no_link(talk: CollectiveTimes) -> None:
    for seed in range(10):
        cluster, found = seen(seed, talk, company=0.2)
        (cause,) = found.causes
        assert (cause.code, cause.where) == ("SCALE-STRAGGLER", cluster.slow), f"seed {seed}"
        assert f"waiting for {cluster.slow} (slow only when all nodes run)" in str(found)
        assert 0.12 < cause.share / (1 - found.lost) < 0.2  # 0.86 of a step is in meetings


@every_replay
def test_what_a_node_loses_alone_only_costs_the_others_nothing(talk: CollectiveTimes) -> None:
    for seed in range(10):
        _, found = seen(seed, talk, solo=0.08)
        assert not found.causes, f"seed {seed}: {found}"
        sound = seen(seed, talk)[1]
        assert found.lost == pytest.approx(sound.lost, abs=0.01)
        assert in_collectives(found) == pytest.approx(in_collectives(sound), abs=0.02)


def in_collectives(found: Explanation) -> float:
    """The share of a step that is told to be waiting for collectives."""
    return sum(part.share for part in found.parts if "all-" in part.said or "reduce" in part.said)


def test_a_slow_node_is_one_that_is_slow_with_the_others_too() -> None:
    for seed in range(10):
        cluster, found = seen(seed, slow_node=0.06, solo=0.06)
        (cause,) = found.causes
        assert (cause.code, cause.where) == ("SCALE-SLOW-NODE", cluster.slow), f"seed {seed}"
        assert 0.03 < cause.share / (1 - found.lost) < 0.08  # not the 12 % that it loses alone


def test_a_node_whose_own_links_are_slow_is_a_slow_node() -> None:
    """What it waits for, and the others for it, is not what it computes."""
    for seed in range(10):
        cluster, found = seen(seed, inner=0.1)
        first = found.causes[0]
        assert (first.code, first.where) == ("SCALE-SLOW-NODE", cluster.slow), f"seed {seed}"


def test_a_slow_node_stays_named_while_another_becomes_slower() -> None:
    for seed in range(10):
        cluster = Cluster(nodes=2, seed=seed, separable=True, slow_node=0.1, slowing=0.1)
        (cluster.tired,) = {*cluster.names} - {cluster.slow}
        found = explain(cluster.base(), cluster.largest(), cluster.talk, limit=LIMIT)
        named = {(cause.code, cause.where) for cause in found.causes}
        assert ("SCALE-SLOW-NODE", cluster.slow) in named, f"seed {seed}: {found}"


@every_replay
def test_compute_that_takes_longer_everywhere_is_no_network(talk: CollectiveTimes) -> None:
    for seed in range(10):
        _, found = seen(seed, talk, warm=0.15)
        assert {cause.code for cause in found.causes} == {"SCALE-UNEXPLAINED"}, f"seed {seed}"
        assert found.causes[0].statement.startswith("compute takes longer on every node")


def test_both_are_told_apart() -> None:
    cluster, found = seen(3, company=0.2, warm=0.1)
    places = {(cause.code, cause.where) for cause in found.causes}
    assert {("SCALE-STRAGGLER", cluster.slow), ("SCALE-UNEXPLAINED", "every node")} == places
    assert sum(part.share for part in found.parts) == pytest.approx(found.lost)


@pytest.mark.parametrize("cause", CODES)
def test_what_is_named_without_waits_is_named_with_them(cause: str) -> None:
    for seed in range(5):
        found = seen(seed, **{cause: 0.2 if cause == "tokens" else 0.08})[1]
        assert [one.code for one in found.causes][:1] == [CODES[cause]], f"seed {seed}: {found}"


def test_sound_nodes_name_no_cause() -> None:
    accused = {seed: seen(seed)[1].causes for seed in range(30)}
    assert not {seed: causes for seed, causes in accused.items() if causes}


def test_without_waits_nothing_is_said_of_company() -> None:
    timed, untimed = (Cluster(nodes=4, seed=1, separable=each) for each in (True, False))
    assert find_load_slowdown(timed.base(), timed.largest())
    assert find_load_slowdown(untimed.base(), timed.largest()) is None
    assert find_load_slowdown(timed.base(), untimed.largest()) is None
