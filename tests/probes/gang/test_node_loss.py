"""What is measured when a node is lost, over the simulated scheduler."""

from __future__ import annotations

import pytest

from probes.gang.test_gang_placement import test_a_lost_node_harms_its_own_gang_only as lose_nodes
from reports.record import ProbeResult
from tests.support.simulated_gangs import simulate


def lost_on(
    monkeypatch: pytest.MonkeyPatch, fault: str = "", nodes: int = 4, each: int = 1
) -> ProbeResult:
    """Run the scenario; return its result."""
    scene = simulate(monkeypatch, fault, nodes, each)
    lose_nodes(scene)
    return scene.measure.result("finished", 1.0)


def test_both_losses_happen_and_are_timed_from_the_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    result = lost_on(monkeypatch)
    killed = [
        (one.value, one.severity) for one in result.measurements if one.name == "nodes_killed"
    ]
    assert killed == [(1, 0), (1, 0)]
    seen = [one for one in result.measurements if one.name == "loss_seen_after"]
    assert [one.value for one in seen] == [pytest.approx(3.0, abs=0.1)] * 2
    assert len({one.subject for one in seen}) == 2


def test_each_loss_that_ray_does_not_see_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    result = lost_on(monkeypatch, "misses a loss")
    unseen = [one.subject for one in result.measurements if one.name == "losses_not_detected"]
    found = [one.suspects for one in result.findings if one.code == "GANG-LOSS-NOT-DETECTED"]
    assert len(set(unseen)) == 2
    assert found == [[node] for node in unseen]


def test_one_free_accelerator_is_room_enough_to_see_who_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two accelerators one stays lost: that is a leak, and no gang waits for it."""
    result = lost_on(monkeypatch, "loses one", 2)
    failed = {one.name for one in result.measurements if one.severity == 3}
    assert failed == {"leaked", "not_released"}
