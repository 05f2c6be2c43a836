"""HOSTS at the end of a run: nodes that changed, and GPUs that became sick meanwhile."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from probes.hosts import closing, controls
from probes.hosts.criterion import HEALTH
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


def later(cluster: StandInHosts) -> list[dict[str, Any]]:
    """Return the facts at the end of the run."""
    assert cluster.later is not None
    return cluster.later


def with_gpu(seconds: float = RUN_S, **board: Any) -> StandInHosts:
    """Return a cluster at the end of a run, where GPU 3 of n1 reports this."""
    cluster = ended(seconds=seconds)
    later(cluster)[1]["gpu_health"]["boards"][3] |= board
    return cluster


WEAR = ("heat_time", "pcie_replays", "nvlink_errors", "new_memory_errors")


@pytest.mark.near_miss(
    *("HOSTS.nodes_changed", "HOSTS.gpus_changed", "HOSTS.xids"),
    *(f"HOSTS.{name}" for name in (*HEALTH, *WEAR)),
)
def test_a_run_in_which_nothing_happened() -> None:
    result = run_closing(ended())
    assert result.verdict is Verdict.PASS, not_passed(result)
    assert findings(result) == []
    assert {one.name: one.proves for one in result.controls} == {
        "restarted node": ["nodes_changed"],
        "GPU that sickens": list(HEALTH),
        "worn GPU": list(WEAR),
        "vanished GPU": ["gpus_changed"],
        "fallen GPU": ["xids"],
    }


def test_a_machine_that_was_restarted_is_named() -> None:
    cluster = ended()
    later(cluster)[1]["boot_id"] = "another"
    result = run_closing(cluster)
    assert not_passed(result) == {"nodes_changed cluster": "FAIL"}
    assert findings(result) == [("HOST-CHANGED", ["n1"])]
    assert result.findings[0].statement == "n1: the machine was restarted during the run"
    assert {one.caught for one in result.controls} == {True}


@pytest.mark.parametrize("node", [0, 2])
def test_a_node_that_left_is_named(node: int) -> None:
    cluster = ended()
    del later(cluster)[node]
    del cluster.known[node]
    result = run_closing(cluster)
    assert not_passed(result) == {"nodes_changed cluster": "FAIL"}
    assert findings(result) == [("HOST-CHANGED", [f"n{node}"])]
    assert result.findings[0].statement.endswith("it left the cluster")
    assert {one.caught for one in result.controls} == {True}


def test_a_node_whose_ray_was_restarted_is_named() -> None:
    cluster = ended()
    later(cluster)[1]["node"] = cluster.known[1]["id"] = "id9"
    cluster.by_ray["id9"] = 8
    result = run_closing(cluster)
    assert not_passed(result) == {"nodes_changed cluster": "FAIL", "xids n1": "UNPROVEN"}
    assert result.findings[0].statement == "n1: Ray was restarted during the run"


def test_a_node_that_is_alive_and_silent_proves_nothing() -> None:
    cluster = ended()
    del later(cluster)[2]
    result = run_closing(cluster)
    assert not_passed(result) == {"nodes_changed cluster": "UNPROVEN"}
    assert findings(result) == [("HOST-NO-ANSWER", ["n2"])]


def test_no_node_at_the_end_is_a_fault_of_each() -> None:
    cluster = ended()
    cluster.later, cluster.known = [], []
    result = run_closing(cluster)
    assert not_passed(result) == {"nodes_changed cluster": "FAIL"}
    assert result.controls == []


@pytest.mark.near_miss("HOSTS.nodes_changed", "HOSTS.gpus_changed")
def test_a_node_that_came_later_is_no_fault() -> None:
    cluster = ended()
    del cluster.facts[2]  # n2 was not there when the run began
    result = run_closing(cluster)
    assert result.verdict is Verdict.PASS, not_passed(result)


def test_without_facts_of_the_start_nothing_is_proven() -> None:
    cluster = ended()
    cluster.facts = []
    result = run_closing(cluster)
    assert not_passed(result)["nodes_changed cluster"] == "UNPROVEN"
    assert result.measurements[0].note == "no node answered at the start of the run"


@pytest.mark.parametrize("when", ["facts", "later"])
def test_a_node_without_a_boot_id_proves_nothing(when: str) -> None:
    cluster = ended()
    getattr(cluster, when)[1]["boot_id"] = ""
    result = run_closing(cluster)
    assert not_passed(result) == {"nodes_changed cluster": "UNPROVEN"}


# GPUs that left, or became sick.


def remove_gpu(cluster: StandInHosts) -> None:
    """Take GPU 3 from n1, as NVML does after it fell off the bus and the driver was loaded."""
    fact = later(cluster)[1]
    del fact["gpus"][3]
    del fact["gpu_health"]["boards"][3]


def test_a_gpu_that_left_is_named() -> None:
    cluster = ended()
    remove_gpu(cluster)
    result = run_closing(cluster)
    assert not_passed(result) == {"gpus_changed n1": "FAIL"}
    assert findings(result) == [("HOST-GPU-CHANGED", ["n1"])]
    assert result.findings[0].statement == "GPU-1-3 on n1: missing at the end of the run"


def test_a_gpu_in_place_of_another_is_named() -> None:
    cluster = ended()
    fact = later(cluster)[1]
    fact["gpus"][3]["uuid"] = fact["gpu_health"]["boards"][3]["uuid"] = "GPU-new"
    result = run_closing(cluster)
    assert not_passed(result)["gpus_changed n1"] == "FAIL"
    assert "new GPUs: GPU-new" in result.findings[0].statement
    assert {not_passed(result)[f"{name} n1"] for name in WEAR} == {"UNPROVEN"}


def test_a_gpu_that_was_lost_is_named() -> None:
    cluster = ended()
    fact, error = later(cluster)[1], {"code": 15, "text": "GPU is lost"}
    fact["gpus"][3] |= {"uuid": "", "name": "", "memory_gib": None, "error": error}
    lost = {"index": 3, "uuid": "", "slot": "", "unsupported": [], "failed": {"GPU": error}}
    fact["gpu_health"]["boards"][3] = lost
    result = run_closing(cluster)
    assert not_passed(result)["gpus_changed n1"] == "FAIL"
    assert findings(result) == [("HOST-GPU-CHANGED", ["n1"]), ("HOST-GPU-LOST", ["n1"])]


def test_a_driver_that_died_is_named() -> None:
    cluster = ended()
    error = {"code": 999, "text": "Unknown Error"}
    fact = later(cluster)[1]
    fact |= {"gpus": [], "nvml": {"library": True, "error": error}}
    fact["gpu_health"] |= {"error": error, "boards": []}
    result = run_closing(cluster)
    assert not_passed(result)["gpus_changed n1"] == "FAIL"
    assert ("HOST-NVML-ERROR", ["n1"]) in findings(result)


def test_gpus_without_uuid_prove_no_change() -> None:
    cluster = ended()
    for facts in (cluster.facts, later(cluster)):
        facts[1]["gpus"][3]["uuid"] = ""
    assert not_passed(run_closing(cluster)) == {"gpus_changed n1": "UNPROVEN"}
    later(cluster)[1]["gpus"][3]["uuid"] = "GPU-1-3"  # only the start does not name it
    assert not_passed(run_closing(cluster)) == {"gpus_changed n1": "UNPROVEN"}


@pytest.mark.parametrize(
    ("board", "measures", "code", "says"),
    [
        ({"uncorrected_errors": 1}, ["memory_errors"], "HOST-ECC", "1 uncorrected memory error"),
        (
            *({"lifetime_errors": 6}, ["new_memory_errors"]),
            *("HOST-ECC", "6 uncorrected memory errors in the run"),
        ),
        (
            *({"heat_ns": 30_000_000_000}, ["heat_time"], "HOST-GPU-SLOWED"),
            "heat slowed the clocks for 30 s in 10 min. Expected: <= 5 s",
        ),
        (
            *({"pcie_replays": 100}, ["pcie_replays"], "HOST-PCIE"),
            "PCIe retransmitted 10 packets per minute. Expected: <= 8 1/min",
        ),
        (
            *({"nvlink_errors": 1}, ["nvlink_errors"], "HOST-NVLINK"),
            "1 NVLink error in the run (replays or recoveries). Expected: 0 errors",
        ),
        ({"recovery_action": 1}, ["gpus_to_reset"], "HOST-GPU-RECOVERY", "a reset of the GPU"),
    ],
)
def test_a_gpu_that_became_sick_is_named(
    board: dict[str, Any], measures: list[str], code: str, says: str
) -> None:
    result = run_closing(with_gpu(**board))
    assert not_passed(result) == {f"{name} n1": "FAIL" for name in measures}
    assert findings(result) == [(code, ["n1"])]
    assert says in result.findings[0].statement
    assert "GPU 3 (GPU-1-3" in result.findings[0].statement


@pytest.mark.near_miss("HOSTS.heat_time", "HOSTS.pcie_replays")
@pytest.mark.parametrize(
    ("seconds", "board"),
    [
        (RUN_S, {"heat_ns": 5_000_000_000}),
        (6 * RUN_S, {"heat_ns": 29_000_000_000}),  # an hour
        (60.0, {"heat_ns": 4_900_000_000}),
        (RUN_S, {"pcie_replays": 80}),  # 8 a minute
        (2.0, {"pcie_replays": 8}),  # in a short run, too
    ],
)
def test_what_a_sound_gpu_gains_in_a_run(seconds: float, board: dict[str, Any]) -> None:
    assert run_closing(with_gpu(seconds, **board)).verdict is Verdict.PASS


@pytest.mark.parametrize(("seconds", "heat_s"), [(60.0, 5.1), (RUN_S, 5.1), (6 * RUN_S, 31.0)])
def test_heat_counts_in_proportion_to_the_run(seconds: float, heat_s: float) -> None:
    result = run_closing(with_gpu(seconds, heat_ns=int(heat_s * 1e9)))
    assert not_passed(result) == {"heat_time n1": "FAIL"}


@pytest.mark.near_miss(*(f"HOSTS.{name}" for name in WEAR))
def test_what_a_gpu_gained_before_the_run_does_not_count() -> None:
    cluster = StandInHosts()
    for fact in cluster.facts:
        for board in fact["gpu_health"]["boards"]:
            board |= {"heat_ns": 10**15, "pcie_replays": 10**6}
            board |= {"nvlink_errors": 7, "lifetime_errors": 9}
    assert run_closing(ended(cluster)).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("counter", "measure"),
    [
        *(("heat_ns", "heat_time"), ("pcie_replays", "pcie_replays")),
        *(("nvlink_errors", "nvlink_errors"), ("lifetime_errors", "new_memory_errors")),
    ],
)
@pytest.mark.parametrize("at", ["start", "end", "back"])
def test_a_counter_that_is_missing_or_began_again_proves_nothing(
    counter: str, measure: str, at: str
) -> None:
    cluster = ended()
    first = cluster.facts[1]["gpu_health"]["boards"][3]
    last = later(cluster)[1]["gpu_health"]["boards"][3]
    if at == "back":
        first[counter] = 1
    else:
        del (first if at == "start" else last)[counter]
    assert not_passed(run_closing(cluster)) == {f"{measure} n1": "UNPROVEN"}


def test_a_counter_that_is_missing_does_not_hide_another_gpu() -> None:
    cluster = with_gpu(heat_ns=60_000_000_000)
    del later(cluster)[1]["gpu_health"]["boards"][0]["heat_ns"]
    assert not_passed(run_closing(cluster)) == {"heat_time n1": "FAIL"}


def test_boards_without_a_name_have_no_gain() -> None:
    cluster = ended()
    for facts in (cluster.facts, later(cluster)):
        for board in facts[1]["gpu_health"]["boards"]:
            board |= {"uuid": "", "slot": ""}
    failed = not_passed(run_closing(cluster))
    assert failed == {f"{name} n1": "UNPROVEN" for name in WEAR}


def test_on_emulated_accelerators_only_the_nodes_are_judged() -> None:
    cluster = emulated()
    cluster.later = copy.deepcopy(cluster.facts)
    result = run_closing(cluster)
    assert result.verdict is Verdict.PASS, not_passed(result)
    assert [one.name for one in result.controls] == ["restarted node"]
    assert "NVML is not used" in result.coverage


def test_a_control_that_is_not_answered_proves_nothing() -> None:
    class Silent(StandInHosts):
        def on_each_node(self, function: Any, *_: Any, **how: Any) -> dict[str, Any]:
            return {}

    result = run_closing(ended(Silent()))
    assert {one.saw for one in result.controls} == {"n2 does not answer"}
    assert len(result.controls) == 5
    assert result.verdict is Verdict.UNPROVEN


@pytest.mark.parametrize(
    ("function", "control"),
    [
        ("read_boot_id", "restarted node"),
        ("read_sick_health", "GPU that sickens"),
        ("read_worn_health", "worn GPU"),
        ("read_fewer_gpus", "vanished GPU"),
        ("read_planted_xid", "fallen GPU"),
    ],
)
def test_a_reader_that_sees_no_fault_is_found_out(function: str, control: str) -> None:
    class Blind(StandInHosts):
        def on_each_node(self, asked: Any, *_: Any, **how: Any) -> dict[str, Any]:
            answers = super().on_each_node(asked, **how)
            fact = self.facts[2]
            sound = {
                "read_boot_id": fact["boot_id"],
                "read_sick_health": fact["gpu_health"],
                "read_worn_health": fact["gpu_health"],
                "read_fewer_gpus": fact["gpus"],
                "read_planted_xid": {"error": None, "seconds": 5.0, "events": []},
            }
            return (
                dict.fromkeys(answers, sound[function]) if asked.__name__ == function else answers
            )

    cluster = ended(Blind())
    later(cluster)[0]["boot_id"] = "another"  # a real fault does not stand in
    caught = {one.name: one.caught for one in run_closing(cluster).controls}
    assert [name for name, is_caught in caught.items() if not is_caught] == [control]


def test_the_boot_id_is_read_like_any_file() -> None:
    assert closing.read_boot_id() == closing.read_boot_id() != ""
    changing = closing.NEW_AT_EACH_READ
    assert closing.read_boot_id(changing) != closing.read_boot_id(changing)


def test_a_gpu_without_a_known_slot_keeps_its_counters() -> None:
    board = {"uuid": "GPU-a", "slot": "", "pcie_replays": 3}
    before = {"clock": 0.0, "boards": [board]}
    now = {"clock": 60.0, "boards": [{**board, "pcie_replays": 63}]}
    counter = closing.WEAR["pcie_replays"]
    ((_, gain),) = closing._gains(counter, before, now)
    assert gain == 60
    unknown = [{**board, "uuid": ""}]
    ((_, gain),) = closing._gains(
        counter, {**before, "boards": unknown}, {**now, "boards": unknown}
    )
    assert gain is None


def test_a_planted_event_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Listener:
        reads = 0

        def start(self, _: object) -> dict[str, Any]:
            return {"events": [], "error": None}

        def read(self) -> dict[str, Any]:
            self.reads += 1
            return {"events": ["79"] if self.reads == 2 else [], "error": None}

        def end(self) -> None:
            """End nothing."""

    monkeypatch.setattr(closing, "XidListener", Listener)
    monkeypatch.setattr(closing, "import_nvml", lambda: None)
    assert closing.read_planted_xid(1)["events"] == ["79"]


def test_a_sick_node_is_compared_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(controls, "judge_node_health", lambda *given: seen.append(given[:2]))
    monkeypatch.setattr(controls.Fleet, "of", lambda facts: [fact["node"] for fact in facts])
    trial: Any = None
    controls._judge_sick([{"node": "a"}, {"node": "b"}], {"node": "b"}, "ill", trial)
    assert seen == [({"node": "b", "gpu_health": "ill"}, ["a", "b"])]


@pytest.mark.parametrize(("nodes", "made"), [(1, 0), (2, 1), (3, 1)])
def test_two_nodes_can_have_folders_of_their_own(
    nodes: int, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted: list[Any] = []
    monkeypatch.setattr(controls, "plant", lambda *given, **_: planted.append(given))
    cluster: Any = StandInHosts(nodes)
    measure: Any = None
    controls.control_own_folder(cluster, "/shared", measure)
    assert len(planted) == made
