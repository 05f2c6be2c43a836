"""The speed and the room of the shared folder, over simulated nodes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from probes.hosts.storage_judge import agreed_rates, find_pause, judge_failures, judge_together
from probes.hosts.storage_work import CHUNK, Size
from reports.measurement import Limit, Verdict
from tests.probes.hosts.storage.test_judging import ROUND, explained, outcome, timing
from tests.support.controls import recorder
from tests.support.simulated_hosts import findings, not_passed, verdicts
from tests.support.simulated_storage import (
    SHARED,
    SHARING,
    SPEEDS,
    SimulatedStorage,
    agree,
    run_storage,
    statements,
)


def test_of_two_nodes_neither_is_slow(root: Path) -> None:
    cluster = SimulatedStorage(root, 2)
    cluster.changes["id1"] = pausing("write", 0.3)
    result = run_storage(cluster)
    assert {name.split()[0] for name in verdicts(result)} == {*SHARING, "failed_shards"}
    assert result.verdict is Verdict.PASS
    rate = {name: Limit(low=0.01, unit="GB/s", because="agreed") for name in AGREED}
    result = run_storage(cluster, "standard", agree(**rate))
    assert result.verdict is Verdict.PASS, result.problems()
    (control,) = [one for one in result.controls if one.name == "slow node"]
    assert control.proves == [*rate]


def test_raylets_of_one_host_are_not_compared_in_speed(cluster: SimulatedStorage) -> None:
    cluster.kind = "local"
    result = run_storage(cluster)
    assert {name.split()[0] for name in verdicts(result)} == {*SHARING, "failed_shards"}
    assert result.verdict is Verdict.PASS


def test_a_limit_of_the_contract_decides_what_is_slow(cluster: SimulatedStorage) -> None:
    cluster.changes["id1"] = pausing("write", 0.3)
    loose = {name: Limit(low=0.2, unit="ratio", because="agreed") for name in SPEEDS}
    result = run_storage(cluster, contract=agree(**loose))
    assert result.verdict is Verdict.PASS, result.problems()


@pytest.mark.near_miss("HOSTS.checkpoint_room")
def test_room_for_agreed_saves_is_judged(cluster: SimulatedStorage) -> None:
    result = run_storage(cluster, save_gb=0.001)
    assert verdicts(result)[f"checkpoint_room {SHARED}"] is Verdict.PASS
    assert "larger saves" in {one.name for one in result.controls if one.caught}


def test_too_little_room_is_named(cluster: SimulatedStorage) -> None:
    result = run_storage(cluster, save_gb=1e6)
    assert not_passed(result) == {f"checkpoint_room {SHARED}": "FAIL"}
    ((code, suspects),) = findings(result)
    assert code == "HOST-STORAGE-FULL"
    assert suspects[0] in {"n0", "n1", "n2"}
    assert "saves of 1e+06 GB" in statements(result)[0] or "GB" in statements(result)[0]


def pausing(kind: str, seconds: float) -> Any:
    """Make a node slow in one kind of work."""

    def change(name: str, value: Any) -> Any:
        if name == "do_work" and value.kind == kind:
            return dataclasses.replace(value, pause_s=seconds)
        return value

    return change


@pytest.mark.parametrize(
    ("kind", "measure", "seconds"),
    [("write", "shard_write", 0.8), ("read", "shard_read", 0.3), ("random", "random_read", 0.1)],
)
def test_a_slow_node_is_named(
    cluster: SimulatedStorage, kind: str, measure: str, seconds: float
) -> None:
    cluster.changes["id1"] = pausing(kind, seconds)
    result = run_storage(cluster)
    assert not_passed(result) == {f"{measure} n1": "FAIL"}
    assert findings(result) == [("HOST-STORAGE-SLOW", ["n1"])]
    assert "of the other nodes' speed" in statements(result)[0]
    assert {one.caught for one in result.controls} == {True}


@pytest.mark.near_miss("HOSTS.shard_write")
def test_a_node_that_was_slow_once_is_sound(cluster: SimulatedStorage) -> None:
    times: list[int] = []

    def slow_once(name: str, value: Any) -> Any:
        if name == "do_work" and value.kind == "write":
            times.append(1)
            if len(times) == 1:
                return dataclasses.replace(value, pause_s=0.3)
        return value

    cluster.changes["id1"] = slow_once
    result = run_storage(cluster)
    assert len(times) == 2  # it tried again
    assert result.verdict is Verdict.PASS, not_passed(result)


AGREED = {
    name: Limit(low=low, unit="GB/s", because="agreed")
    for name, low in (("write_rate", 1e-6), ("read_rate", 1e-6))
}


@pytest.mark.near_miss("HOSTS.write_rate", "HOSTS.read_rate")
def test_the_speed_of_all_nodes_is_judged_where_agreed_and_not_in_a_quick_run(
    cluster: SimulatedStorage,
) -> None:
    rate = {name: Limit(low=0.02, unit="GB/s", because="agreed") for name in AGREED}
    assert not {*AGREED} & {name.split()[0] for name in verdicts(run_storage(cluster))}
    result = run_storage(cluster, "standard", agree(**rate))
    found = verdicts(result)
    assert {found[f"{name} {SHARED}, 3 nodes at once"] for name in rate} == {Verdict.PASS}
    (control,) = [one for one in result.controls if one.name == "slow node"]
    assert control.proves == [*SPEEDS, *rate]


def test_nodes_that_are_slow_together_are_named(cluster: SimulatedStorage) -> None:
    rate = {name: Limit(low=1000, unit="GB/s", because="agreed") for name in AGREED}
    result = run_storage(cluster, "standard", agree(**rate))
    assert not_passed(result) == {f"{name} {SHARED}, 3 nodes at once": "FAIL" for name in AGREED}
    assert findings(result) == [("HOST-STORAGE-RATE", [])] * 2


# What is judged of failures and of all nodes together.


def test_errors_of_nodes_are_named_by_kind() -> None:
    measure = recorder("HOSTS")
    full = "No space left on device"
    failures = {"id0": full, "id1": "Input/output error", "id2": full}
    judge_failures(ROUND, failures, ["id1", "id3"], measure)
    (one,) = measure.result("finished", 1).measurements
    assert (one.value, one.note) == (3, "n3 did not answer")
    assert outcome(measure) == {"failed_shards": "FAIL"}
    assert [(code, suspects) for code, suspects, _ in explained(measure)] == [
        ("HOST-STORAGE-FULL", ["n0", "n2"]),
        ("HOST-STORAGE-ERROR", ["n1"]),
    ]


@pytest.mark.parametrize(
    ("silent", "value", "note"), [(["id3"], None, "n3 did not answer"), ([], 0, "")]
)
def test_a_silent_node_does_not_count_as_sound(
    silent: list[str], value: int | None, note: str
) -> None:
    measure = recorder("HOSTS")
    judge_failures(ROUND, {}, silent, measure)
    (one,) = measure.result("finished", 1).measurements
    assert (one.value, one.note) == (value, note)


RATE = Limit(low=1, unit="GB/s", because="agreed")


def test_only_agreed_speeds_of_all_nodes_are_judged() -> None:
    measure = recorder("HOSTS", agree(read_rate=RATE))
    assert agreed_rates("standard", measure) == {"read_rate"}
    assert agreed_rates("quick", measure) == set()


@pytest.mark.parametrize(
    ("rows", "verdict", "note"),
    [({}, "UNPROVEN", "no node finished this test"), ({"id0": timing(1, 10**9)}, "PASS", "")],
)
def test_a_speed_that_no_node_has_proves_nothing(rows: Any, verdict: str, note: str) -> None:
    measure = recorder("HOSTS", agree(read_rate=RATE))
    judge_together(ROUND, "read", rows, {"read_rate"}, measure)
    result = measure.result("finished", 1)
    (one,) = result.measurements
    assert (outcome(measure), one.note) == ({"read_rate": verdict}, note)
    assert result.findings == []


# The pause of the control.

WORK = Size(4 * CHUNK, 64, 0)  # 4 chunks, and 64 reads by 8 threads: 8 steps
ROWS = {
    id: {"done": 4 * CHUNK, "seconds": seconds, "error": ""}
    for id, seconds in (("id0", 1.75), ("id1", 1.75), ("id2", 0.1))
}


def pause(kind: str, rows: Any, agreed: set[str], **lowest: float) -> float:
    """Compute the pause of id2 after each step, with these limits."""
    limits = {name: Limit(low=low, because="agreed") for name, low in lowest.items()}
    return find_pause(kind, rows, "id2", WORK, agreed, recorder("HOSTS", agree(**limits)))


def test_the_pauses_of_a_control_take_half_as_long_again_as_is_allowed() -> None:
    assert pause("write", ROWS, set(), shard_write=0.5) == 1.5 * (1.75 + 0.25) / 0.5 / 4
    reads = {id: {**row, "done": 64} for id, row in ROWS.items()}
    assert pause("random", reads, set(), random_read=0.25) == 1.5 * (1.75 + 0.25) / 0.25 / 8
    half = {id: {**row, "done": 2 * CHUNK} for id, row in ROWS.items()}  # cut short
    assert pause("write", half, set(), shard_write=0.5) == 1.5 * (3.5 + 0.25) / 0.5 / 4
    other = agree(shard_write=Limit(high=1, because="agreed"))  # no least speed: as the others'
    assert find_pause("write", ROWS, "id2", WORK, set(), recorder("HOSTS", other)) == 1.5 * 2 / 4


def test_the_pauses_of_a_control_break_the_agreed_speed_of_all_nodes_too() -> None:
    rows = {id: {**row, "done": 2 * 10**9} for id, row in ROWS.items()}
    size = {"shard_write": 1.0, "write_rate": 0.75}
    assert pause("write", rows, {"write_rate"}, **size) == 1.5 * 8 / 4
    assert pause("write", rows, set(), **size) < 1.5 / 4  # a quick run does not judge it


def test_a_control_pauses_for_20_s_at_most() -> None:
    assert pause("write", ROWS, set(), shard_write=0.01) == 20 / 4


def test_a_control_pauses_a_node_that_did_all_its_work(cluster: SimulatedStorage) -> None:
    def read_nothing(name: str, value: Any) -> Any:
        if name == "do_work" and value.kind == "read":
            return dataclasses.replace(value, owner="none")
        return value

    cluster.changes["id2"] = read_nothing
    result = run_storage(cluster)
    assert not_passed(result)[f"failed_shards {SHARED}"] == "FAIL"
    faults = {one.name: one.fault for one in result.controls}
    assert faults["slow node"] == "n1 pauses while it writes and reads"
