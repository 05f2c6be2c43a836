"""The speed and the room of the shared folder, over simulated nodes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from reports.measurement import Limit, Verdict
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
    assert "of the others' speed" in statements(result)[0]
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
