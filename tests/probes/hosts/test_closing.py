"""HOSTS at the end of a run: nodes that changed, and GPUs that became sick meanwhile."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from probes.acceptance.criteria.hosts import HEALTH
from probes.hosts import closing
from probes.hosts.gpu_health import add_rates
from reports.measurement import Verdict
from tests.support.simulated_hosts import (
    StandInHosts,
    emulated,
    findings,
    not_passed,
    run_closing,
)

RUN_S = 600.0  # from the first facts to the last


def ended(cluster: StandInHosts | None = None, seconds: float = RUN_S) -> StandInHosts:
    """Return a cluster at the end of a run in which nothing happened."""
    cluster = cluster or StandInHosts()
    cluster.later = copy.deepcopy(cluster.facts)
    for fact in cluster.later:
        fact["gpu_health"]["clock"] += seconds
    return cluster


def with_gpu(seconds: float = RUN_S, **board: Any) -> StandInHosts:
    """Return a cluster at the end of a run, where GPU 3 of n1 reports this."""
    cluster = ended(seconds=seconds)
    assert cluster.later
    cluster.later[1]["gpu_health"]["boards"][3] |= board
    return cluster


@pytest.mark.near_miss("HOSTS.nodes_changed", *(f"HOSTS.{name}" for name in HEALTH))
def test_a_run_in_which_nothing_happened() -> None:
    result = run_closing(ended())
    assert result.verdict is Verdict.PASS, not_passed(result)
    assert findings(result) == []
    assert {one.name: one.proves for one in result.controls} == {
        "restarted node": ["nodes_changed"],
        "GPU that sickens": list(HEALTH),
    }


def test_a_machine_that_was_restarted_is_named() -> None:
    cluster = ended()
    assert cluster.later
    cluster.later[1]["boot_id"] = "another"
    result = run_closing(cluster)
    assert not_passed(result) == {"nodes_changed cluster": "FAIL"}
    assert findings(result) == [("HOST-CHANGED", ["n1"])]
    assert result.findings[0].statement == "n1: the machine was restarted during the run"


def test_a_node_that_left_is_named() -> None:
    cluster = ended()
    assert cluster.later
    del cluster.later[2]
    result = run_closing(cluster)
    assert not_passed(result) == {"nodes_changed cluster": "FAIL"}
    assert findings(result) == [("HOST-CHANGED", ["n2"])]
    assert "does not answer now" in result.findings[0].statement


def test_no_node_at_the_end_is_a_fault_of_each() -> None:
    cluster = ended()
    cluster.later = []
    result = run_closing(cluster)
    assert not_passed(result) == {"nodes_changed cluster": "FAIL"}
    assert result.controls == []


def test_a_node_that_came_later_is_no_fault() -> None:
    cluster = ended()
    del cluster.facts[2]  # n2 was not there when the run began
    assert not_passed(run_closing(cluster)) == {}


def test_without_facts_of_the_start_nothing_is_proven() -> None:
    cluster = ended()
    cluster.facts = []
    result = run_closing(cluster)
    assert not_passed(result)["nodes_changed cluster"] == "UNPROVEN"


@pytest.mark.parametrize("when", ["facts", "later"])
def test_a_node_without_a_boot_id_proves_nothing(when: str) -> None:
    cluster = ended()
    getattr(cluster, when)[1]["boot_id"] = ""
    result = run_closing(cluster)
    assert not_passed(result) == {"nodes_changed cluster": "UNPROVEN"}


@pytest.mark.parametrize(
    ("board", "measure", "code", "says"),
    [
        ({"uncorrected_errors": 1}, "memory_errors", "HOST-ECC", "1 uncorrected memory error"),
        (
            {"heat_ns": 60_000_000_000},
            *("slowed_gpus", "HOST-GPU-SLOWED", "heat slowed the clocks for 10 % of the run"),
        ),
        (
            {"pcie_replays": 100},
            *("pcie_faults", "HOST-PCIE", "PCIe repeated 10 packets per minute"),
        ),
        ({"recovery_action": 1}, "gpus_to_reset", "HOST-GPU-RECOVERY", "a reset of the GPU"),
    ],
)
def test_a_gpu_that_became_sick_is_named(
    board: dict[str, Any], measure: str, code: str, says: str
) -> None:
    result = run_closing(with_gpu(**board))
    assert not_passed(result) == {f"{measure} n1": "FAIL"}
    assert findings(result) == [(code, ["n1"])]
    assert says in result.findings[0].statement


@pytest.mark.near_miss("HOSTS.slowed_gpus", "HOSTS.pcie_faults")
@pytest.mark.parametrize(
    ("seconds", "board"),
    [
        (RUN_S, {"heat_ns": 5_900_000_000}),  # 0.98 %
        (RUN_S, {"pcie_replays": 80}),  # 8 a minute
        (2.0, {"pcie_replays": 8}),  # in a short run, too
        (2.0, {"heat_ns": 500_000_000}),
    ],
)
def test_what_a_sound_gpu_gains_in_a_run(seconds: float, board: dict[str, Any]) -> None:
    assert run_closing(with_gpu(seconds, **board)).verdict is Verdict.PASS


def test_what_a_gpu_gained_before_the_run_does_not_count() -> None:
    cluster = StandInHosts()
    for fact in cluster.facts:
        for board in fact["gpu_health"]["boards"]:
            board |= {"heat_ns": 10**15, "pcie_replays": 10**6}
    assert run_closing(ended(cluster)).verdict is Verdict.PASS


def test_a_counter_that_went_back_or_is_missing_has_no_rate() -> None:
    def facts(clock: float, **board: Any) -> dict[str, Any]:
        boards = [{"uuid": "GPU-1", **board}]
        return {"node": "id1", "gpu_health": {"error": None, "boards": boards, "clock": clock}}

    before = [facts(0, heat_ns=5, pcie_replays=9)]
    assert add_rates([facts(60, heat_ns=4)], before) == [facts(60, heat_ns=4)]
    assert add_rates([facts(60, pcie_replays=9)], before) == [facts(60, pcie_replays=9)]
    assert add_rates([facts(60, heat_ns=10**10)], []) == [facts(60, heat_ns=10**10)]
    other = [{**before[0], "node": "id2"}]
    assert add_rates([facts(60, heat_ns=10**10)], other) == [facts(60, heat_ns=10**10)]
    (rated,) = add_rates([facts(120, heat_ns=6_000_000_005, pcie_replays=29)], before)
    (board,) = rated["gpu_health"]["boards"]
    assert (board["heat_share"], board["replays_per_minute"]) == (0.05, 10.0)


def test_on_emulated_accelerators_only_the_nodes_are_judged() -> None:
    cluster = emulated()
    cluster.later = copy.deepcopy(cluster.facts)
    result = run_closing(cluster)
    assert result.verdict is Verdict.PASS, not_passed(result)
    assert [one.name for one in result.controls] == ["restarted node"]
    assert "NVML is not asked" in result.coverage


def test_a_control_that_is_not_answered_proves_nothing() -> None:
    class Silent(StandInHosts):
        def on_each_node(self, function: Any, *_: Any, **how: Any) -> dict[str, Any]:
            return {}

    result = run_closing(ended(Silent()))
    assert {one.name: one.saw for one in result.controls} == {
        "restarted node": "n2 does not answer",
        "GPU that sickens": "n2 does not answer",
    }
    assert result.verdict is Verdict.UNPROVEN


def test_a_really_restarted_node_does_not_stand_in_for_the_control() -> None:
    class Blind(StandInHosts):
        def on_each_node(self, function: Any, *_: Any, **how: Any) -> dict[str, Any]:
            answers = super().on_each_node(function, **how)
            if function is closing.read_boot_id:  # a reader that never sees a change
                return dict.fromkeys(answers, "boot-2")
            return answers

    cluster = ended(Blind())
    assert cluster.later
    cluster.later[0]["boot_id"] = "another"
    (control, _) = run_closing(cluster).controls
    assert (control.name, control.caught) == ("restarted node", False)


def test_the_boot_id_is_read_like_any_file() -> None:
    assert closing.read_boot_id() == closing.read_boot_id() != ""
    changing = closing.NEW_AT_EACH_READ
    assert closing.read_boot_id(changing) != closing.read_boot_id(changing)
