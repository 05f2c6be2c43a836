"""Several nodes or ranks hold the others up: each is named, and no sound one is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.scaling.judge import find_stragglers_beyond
from reports.measurement import Limit
from reports.record import Finding
from scaling.ladder.ladder import Rung
from scaling.ladder.step_breakdown import LOCAL_SEGMENTS, Step
from scaling.loss.ladder_result import Ladder
from tests.support.simulated_ladder import ladder, slower, throttled
from tests.support.simulated_steps import Cluster

LIMIT = Limit(high=0.15, marginal_high=0.1, unit="ratio", because="ranks do equal work")
SLOW = ["node1", "node3"]


def stragglers(found: Ladder) -> list[Finding]:
    return [*find_stragglers_beyond(found.rungs, LIMIT)]


def held_up(rung: Rung, seconds: dict[int, float], segment: str = "data") -> Rung:
    """The same rung, where these ranks take so much longer in a segment of their own."""
    steps = [
        [later(step, segment, seconds.get(rank, 0.0)) for step in mine]
        for rank, mine in enumerate(rung.steps)
    ]
    return replace(rung, steps=steps)


def later(step: Step, segment: str, seconds: float) -> Step:
    segments = {**step.segments, segment: step.segments[segment] + seconds}
    return replace(step, seconds=step.seconds + seconds, segments=segments)


def with_largest(found: Ladder, rung: Rung) -> Ladder:
    return replace(found, rungs=[*found.rungs[:-1], rung])


def test_half_of_the_nodes_slow_alone_are_all_named() -> None:
    (slow,) = stragglers(throttled(ladder(), *SLOW, by=1.5))
    assert (slow.code, sorted(slow.suspects)) == ("SCALE-STRAGGLER", SLOW)
    for name in SLOW:
        assert f"{name} alone takes " in slow.statement
    assert slow.statement.count(" longer than that of the median node") == 2


def test_the_slowest_node_is_named_first() -> None:
    found = throttled(throttled(ladder(), "node1", by=1.5), "node3")
    (slow,) = stragglers(found)
    assert slow.suspects == ["node3", "node1"]


def test_a_node_within_the_limit_is_not_named_with_a_slow_one() -> None:
    found = throttled(throttled(ladder(), "node1", by=1.12), "node3", by=1.5)
    (slow,) = stragglers(found)
    assert slow.suspects == ["node3"]
    assert "node1" not in slow.statement


def test_all_ranks_that_hold_the_others_up_are_named_and_their_nodes() -> None:
    found = ladder()
    rung = found.rungs[-1]
    late = with_largest(found, held_up(rung, {1: 0.5, 2: 0.8}))
    (slow,) = stragglers(late)
    assert slow.suspects == ["rank 2", rung.nodes[2], "rank 1", rung.nodes[1]]
    assert (
        f"rank 1 on {rung.nodes[1]} makes the other ranks wait: its part `data` of a "
        in slow.statement
    )


def test_two_ranks_may_hold_up_in_two_segments() -> None:
    found = ladder()
    rung = held_up(held_up(found.rungs[-1], {0: 0.5}), {3: 0.8}, "optimizer")
    (slow,) = stragglers(with_largest(found, rung))
    assert slow.suspects[::2] == ["rank 3", "rank 0"]
    assert "makes the other ranks wait: its part `optimizer`" in slow.statement
    assert "makes the other ranks wait: its part `data`" in slow.statement


@pytest.mark.parametrize("segment", LOCAL_SEGMENTS)
def test_what_all_ranks_take_equally_long_for_accuses_nobody(segment: str) -> None:
    found = ladder()
    rung = found.rungs[-1]
    everyone = dict.fromkeys(range(len(rung.steps)), 0.8)
    assert not stragglers(with_largest(found, held_up(rung, everyone, segment)))


def test_without_a_limit_nobody_is_named() -> None:
    assert not [*find_stragglers_beyond(throttled(ladder(), *SLOW).rungs, None)]


def test_two_nodes_at_half_pace_are_both_the_cause_of_what_is_lost() -> None:
    found = throttled(ladder(), *SLOW)
    (cause,) = [one for one in found.explanations(0.9)[-1].causes if one.code == "SCALE-SLOW-NODE"]
    assert sorted(cause.where.split(", ")) == SLOW


A100, H100 = ("A100", 312e12), ("H100", 989e12)


@pytest.mark.parametrize(
    ("times", "slow"),
    [
        ((1, 1, 1, 1, 0.25, 0.25), []),
        ((4, 4, 4, 4, 1, 1.05), []),
        ((1, 1, 1, 1, 0.4, 0.9), ["node5"]),  # faster than all of the other kind
        ((1, 1, 1, 1, 0.9, 0.4), ["node4"]),
        ((1, 1, 1.4, 1, 0.4, 0.4), ["node2"]),
        ((1, 1.5, 1, 1, 0.4, 0.8), ["node5", "node1"]),
    ],
)
def test_a_node_is_compared_with_the_nodes_of_its_own_kind(
    times: tuple[float, ...], slow: list[str]
) -> None:
    whole = Cluster(nodes=6, steps=8, seed=3)
    gpus: dict[str, tuple[str, float | None]] = {
        f"node{at}": A100 if at < 4 else H100 for at in range(6)
    }
    steps = [
        [slower(step, by) for step in mine]
        for by, mine in zip(times, whole.base().steps, strict=True)
    ]
    base = replace(whole.base(), steps=steps, gpus=gpus)
    found = [*find_stragglers_beyond([base, whole.largest()], LIMIT)]
    assert [one.suspects for one in found] == [slow] * bool(slow)
    if slow:
        assert "longer than that of the median node of its kind" in found[0].statement
