"""GANG's scenarios as they are, over a simulated scheduler: sound, and with each of its faults."""

from __future__ import annotations

from typing import Any

import pytest

from probes.contract.contract import ClusterTerms
from probes.gang import test_gang as gang
from probes.gang import test_gang_placement as placement
from probes.gang import test_gang_queue as queue
from probes.gang.scenario import NoRoom
from reports.measurement import Verdict
from reports.record import ProbeResult
from tests.support.simulated_gangs import SimulatedScene, simulate
from tests.support.simulated_ray import FAULTS

TERMS = ClusterTerms()
SCENARIOS: dict[str, Any] = {
    "compete": lambda scene: gang.test_two_gangs_compete_and_one_waits_whole(
        scene, TERMS, scene.measure, "quick"
    ),
    "cancelled": gang.test_a_cancelled_gang_leaves_no_trace,
    "dead driver": gang.test_a_dead_driver_gives_its_gang_back,
    "one group": lambda scene: gang.test_one_group_per_job_never_deadlocks(scene, scene.measure),
    "mixed": queue.test_mixed_gangs_of_twice_the_cluster_all_run,
    "too large": lambda scene: queue.test_a_gang_that_does_not_fit_blocks_nobody(
        scene, scene.rig.cluster
    ),
    "stream": lambda scene: queue.test_a_big_gang_under_a_stream_of_small_ones(
        scene, TERMS, scene.measure, "standard"
    ),
    "storm": lambda scene: queue.test_a_storm_of_gangs_leaves_nothing(scene, "standard"),
    "fragments": lambda scene, terms=TERMS: placement.test_fragments_are_not_mistaken_for_room(
        scene, scene.rig.cluster, terms, scene.measure
    ),
    "strategies": lambda scene, terms=TERMS: placement.test_strategies_hold(
        scene, scene.rig.cluster, terms, scene.measure
    ),
    "lost node": placement.test_a_lost_node_harms_its_own_gang_only,
}


TOLD = {"lost node": {"GANG-NODE-LOSS"}}


def run(scene: SimulatedScene, name: str) -> ProbeResult:
    SCENARIOS[name](scene)
    return scene.measure.result("finished", 1.0)


@pytest.mark.parametrize("shape", [(4, 1), (2, 4), (3, 2)], ids=str)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_sound_scheduler_passes(
    monkeypatch: pytest.MonkeyPatch, name: str, shape: tuple[int, int]
) -> None:
    result = run(simulate(monkeypatch, "", *shape), name)
    assert [one.sentence() for one in result.measurements if one.severity] == []
    assert [one.sentence() for one in result.controls if not one.caught] == []
    # While a gang stands that lost a node, Ray places nobody else: that is told, and is no fault.
    assert {one.code for one in result.findings} == TOLD.get(name, set())
    assert result.verdict is Verdict.PASS


# A scheduler's fault, the scenario that shows it, what fails, and the finding.  By hand: what each
# fault does is said in `FAULTS`, and what a measure is for in the acceptance table.
RED: list[tuple[str, str, set[str], set[str]]] = [
    # Parts that are held while a gang waits are the very thing that GANG looks for.
    ("takes parts", "compete", {"partially_held"}, {"GANG-PARTIAL"}),
    ("takes parts", "cancelled", {"partially_held"}, {"GANG-PARTIAL"}),
    # A STRICT_PACK gang that takes a part on some node lies there, where it had no room.
    (
        *("takes parts", "fragments", {"partially_held", "placed_in_fragments"}),
        {"GANG-PARTIAL", "GANG-MISPLACED"},
    ),
    # Nine seconds for what has room: the limit is five.
    ("places late", "compete", {"placement_delay"}, {"GANG-SLOW"}),
    ("places late", "one group", {"placement_delay"}, {"GANG-SLOW"}),
    # Whoever waited once waits for ever: no turn, and so no delay either.
    ("never places", "compete", {"never_placed"}, {"GANG-STUCK"}),
    ("never places", "stream", {"never_placed"}, {"GANG-STUCK"}),
    ("never places", "storm", {"never_placed"}, {"GANG-STUCK"}),
    ("never places", "mixed", {"never_placed"}, {"GANG-STUCK"}),
    # Both of two gangs of 75 % run, on accelerators that were promised twice.
    (
        *("places both", "compete", {"placed_concurrently", "overcommitted", "leaked"}),
        {"GANG-OVERCOMMIT", "GANG-LEAK"},
    ),
    ("places both", "storm", {"overcommitted"}, {"GANG-OVERCOMMIT"}),
    # A cancelled gang that stays takes what comes free: nothing is given back at the end.
    (
        *("keeps cancelled", "cancelled", {"not_removed", "not_released"}),
        {"GANG-NOT-REMOVED", "GANG-LEAK"},
    ),
    # What ran and was given back stays, so that the other never has its turn.
    ("keeps running", "compete", {"never_placed", "not_released"}, {"GANG-STUCK", "GANG-LEAK"}),
    (
        *("keeps the dead", "dead driver", {"not_removed", "not_released"}),
        {"GANG-NOT-REMOVED", "GANG-LEAK"},
    ),
    # After ten seconds the dead driver's waiting gang still exists.  What the other ran on
    # is free ten seconds too late.
    (
        *("frees late", "dead driver", {"not_removed", "release_time"}),
        {"GANG-NOT-REMOVED", "GANG-SLOW"},
    ),
    ("disturbs", "cancelled", {"lost_while_running"}, {"GANG-LOST-ACCELERATORS"}),
    ("disturbs", "dead driver", {"lost_while_running"}, {"GANG-LOST-ACCELERATORS"}),
    # One accelerator is neither free nor a gang's, and is missing at the end as well.
    ("loses one", "cancelled", {"leaked", "not_released"}, {"GANG-LEAK"}),
    ("loses one", "storm", {"never_placed", "not_released"}, {"GANG-STUCK", "GANG-LEAK"}),
    ("starts no actors", "compete", {"actors_not_running"}, {"GANG-NO-ACTORS"}),
    ("blocks", "too large", {"blocked_behind"}, {"GANG-BLOCKED"}),
    ("blocks", "fragments", {"blocked_behind"}, {"GANG-BLOCKED"}),
    ("packs anywhere", "fragments", {"placed_in_fragments"}, {"GANG-MISPLACED"}),
    # Two gangs of two where three were asked for: both fit, and each is smaller than it should be.
    ("places smaller", "compete", {"placed_concurrently"}, {"GANG-PARTIAL"}),
    ("places smaller", "strategies", {"misplaced"}, {"GANG-MISPLACED"}),
    # Neither loss is seen, and a gang that lost a node without Ray's knowledge is in nobody's way.
    ("misses a loss", "lost node", {"losses_not_detected"}, {"GANG-LOSS-NOT-DETECTED"}),
    (
        *("blocks", "lost node", {"blocked_behind"}),
        {"GANG-BLOCKED", "GANG-NODE-LOSS"},
    ),
    (
        *("never places", "lost node", {"never_placed"}),
        {"GANG-STUCK", "GANG-NODE-LOSS"},
    ),
]


@pytest.mark.parametrize(
    ("fault", "name", "failed", "codes"), RED, ids=[f"{one[0]}, {one[1]}" for one in RED]
)
def test_a_fault_of_the_scheduler_fails_with_its_finding(
    monkeypatch: pytest.MonkeyPatch, fault: str, name: str, failed: set[str], codes: set[str]
) -> None:
    result = run(simulate(monkeypatch, fault), name)
    assert {one.name for one in result.measurements if one.severity == 3} == failed
    assert {one.code for one in result.findings} == codes
    assert result.verdict is Verdict.FAIL


def near(fault: str, name: str, *measures: str) -> Any:
    marks = pytest.mark.near_miss(*(f"GANG.{measure}" for measure in measures))
    return pytest.param(fault, name, marks=marks, id=f"{fault}, {name}")


# What is near to a fault, the scenario in which it would show, and the measures it is near to.
NEAR = [
    near("places a little late", "compete", "placement_delay", "never_placed"),
    near("places a little late", "too large", "blocked_behind"),
    near("places a little late", "stream", "never_placed"),
    near("withdraws slowly", "cancelled", "not_removed", "not_released", "lost_while_running"),
    near("frees a little late", "dead driver", "not_removed", "release_time", "not_released"),
    near("shows free late", "compete", "leaked", "not_released"),
    near("shows held late", "compete", "overcommitted", "placed_concurrently"),
    near("starts actors slowly", "compete", "actors_not_running"),
    near("looks just often enough", "compete", "sample_rate"),
    near("hands over at once", "one group", "deadlocks", "partially_held"),
    near("hands over at once", "compete", "placed_concurrently", "partially_held"),
    near("shows free late", "fragments", "placed_in_fragments"),
    near("hands over at once", "strategies", "misplaced"),
    near("sees a loss late", "lost node", "losses_not_detected", "lost_while_running"),
    near("places beside a harmed gang", "lost node", "placement_delay"),
]


@pytest.mark.parametrize(("fault", "name"), NEAR)
def test_what_is_near_to_a_fault_accuses_nobody(
    monkeypatch: pytest.MonkeyPatch, fault: str, name: str
) -> None:
    result = run(simulate(monkeypatch, fault), name)
    assert [one.sentence() for one in result.measurements if one.severity > 1] == []
    assert {one.code for one in result.findings} <= TOLD.get(name, set())
    assert [one.sentence() for one in result.controls if not one.caught] == []


def test_each_fault_is_seen_by_some_scenario() -> None:
    assert {fault for fault, *_ in RED} | {"looks rarely"} == FAULTS.keys()


@pytest.mark.parametrize("name", SCENARIOS)
def test_who_looks_rarely_proves_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    result = run(simulate(monkeypatch, "looks rarely"), name)
    unproven = {one.name for one in result.measurements if one.severity == 2}
    assert unproven == {"sample_rate"}
    assert result.verdict is Verdict.UNPROVEN


def test_what_is_never_given_back_in_time_has_no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(simulate(monkeypatch, "never places"), "compete")
    (delay,) = [one for one in result.measurements if one.name == "placement_delay"]
    assert (delay.verdict, delay.note) == (
        Verdict.UNPROVEN,
        "Ray did not place the waiting gang within 30 s after the other gang was removed",
    )


def test_jobs_of_others_make_a_failure_unproven_and_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = simulate(monkeypatch, "places late")
    scene.rig.observer.strangers = ["05000000"]
    result = run(scene, "compete")
    (delay,) = [one for one in result.measurements if one.name == "placement_delay"]
    assert (delay.value, delay.note) == (
        None,
        "other jobs (05000000) use this cluster and may have caused the failure. "
        "Test again when they have ended",
    )
    assert result.findings == []


@pytest.mark.parametrize("name", ["cancelled", "dead driver", "compete"])
def test_an_observer_that_goes_blind_catches_no_control(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    scene = simulate(monkeypatch)
    scene.rig.observer.blind_from = 1.2
    result = run(scene, name)
    assert result.verdict is not Verdict.PASS
    assert [one.name for one in result.controls if one.caught] == []


@pytest.mark.parametrize(("free", "name"), [((1, 1), "compete"), ((1, 4), "fragments")])
def test_too_little_room_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, free: tuple[int, int], name: str
) -> None:
    with pytest.raises(NoRoom):
        run(simulate(monkeypatch, "", *free), name)


def test_a_cluster_of_one_accelerator_is_told_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = simulate(monkeypatch, "")
    scene.rig.cluster.size = 1
    with pytest.raises(NoRoom, match=r"^GANG needs 2 GPUs, but this cluster has only 1$"):
        run(scene, "compete")


ONE = ClusterTerms(nodes=1)
ON_ONE = {
    "fragments": "one bundle early, on the only node",
    "strategies": "PACK passed off as STRICT_SPREAD",
}


@pytest.mark.parametrize("each", [2, 8])
@pytest.mark.parametrize("name", ON_ONE)
def test_what_needs_several_nodes_is_judged_on_one_that_was_ordered(
    monkeypatch: pytest.MonkeyPatch, name: str, each: int
) -> None:
    scene = simulate(monkeypatch, "", 1, each)
    SCENARIOS[name](scene, ONE)
    result = scene.measure.result("finished", 1.0)
    assert [one.sentence() for one in result.measurements if one.severity] == []
    assert [(one.name, one.caught) for one in result.controls] == [(ON_ONE[name], True)]
    assert "placed_in_fragments" not in {one.name for one in result.measurements}
    assert result.verdict is Verdict.PASS


@pytest.mark.parametrize("terms", [TERMS, ClusterTerms(nodes=8)], ids=["no order", "eight ordered"])
@pytest.mark.parametrize("name", ON_ONE)
def test_on_one_node_that_was_not_ordered_nothing_is_shown(
    monkeypatch: pytest.MonkeyPatch, name: str, terms: ClusterTerms
) -> None:
    with pytest.raises(NoRoom, match=r"on 2 nodes\. Found: 1"):
        SCENARIOS[name](simulate(monkeypatch, "", 1, 8), terms)


@pytest.mark.parametrize(
    ("fault", "name", "failed"),
    [("blocks", "fragments", "blocked_behind"), ("places smaller", "strategies", "misplaced")],
)
def test_a_fault_on_one_ordered_node_fails(
    monkeypatch: pytest.MonkeyPatch, fault: str, name: str, failed: str
) -> None:
    scene = simulate(monkeypatch, fault, 1, 8)
    SCENARIOS[name](scene, ONE)
    result = scene.measure.result("finished", 1.0)
    assert failed in {one.name for one in result.measurements if one.severity == 3}
