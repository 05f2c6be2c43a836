"""Living placement groups, read one by one and yet as of one moment (a mock of Ray's accessor)."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from ray.core.generated.gcs_pb2 import PlacementGroupTableData

from probes.cluster import ray_internals
from probes.cluster.room import LivePlacementGroups, live_drivers, other_jobs

States = dict[str, tuple[str, int]]  # name -> (state, how many of its two bundles are placed)


def entry(name: str, state: str, placed: int) -> bytes:
    """A group as Ray sends it."""
    group = PlacementGroupTableData(
        placement_group_id=name.encode().ljust(18, b"."),
        name=name,
        state=PlacementGroupTableData.PlacementGroupState.Value(state),
    )
    for at in range(2):
        group.bundles.add(node_id=b"n" * 28 if at < placed else b"")
    return bytes(group.SerializeToString())


class Ray:
    """Answers as the accessor does; after `turns` answers its groups are `later`."""

    def __init__(self, now: States, later: States | None = None, turns: int = 10**9) -> None:
        self.now, self.later, self.turns, self.told = now, later or now, turns, 0

    def states(self) -> States:
        self.told += 1
        return self.now if self.told <= self.turns else self.later

    def get_placement_group_table(self) -> list[bytes]:
        return [entry(name, *state) for name, state in self.now.items()]

    def get_placement_group_info(self, id: Any) -> bytes | None:
        name = id.binary().rstrip(b".").decode()
        state = self.states().get(name)
        return entry(name, *state) if state else None


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Any:
    """seen(ray) -> LivingGroups that ask it."""

    def made(ray: Ray) -> LivePlacementGroups:
        monkeypatch.setattr(ray_internals, "gcs_accessor", lambda: ray)
        return LivePlacementGroups()

    return made


def placed(groups: list[Any]) -> dict[str, int]:
    """How many bundles of each group have a node."""
    return {group.name: sum(bool(b.node_id) for b in group.bundles) for group in groups}


def test_what_is_removed_is_left_out_and_not_read_again(seen: Any) -> None:
    ray = Ray({"a": ("CREATED", 2), "old": ("REMOVED", 0), "b": ("PENDING", 0)})
    assert placed(seen(ray).snapshot()) == {"a": 2, "b": 0}
    assert ray.told == 2


@pytest.mark.parametrize("turns", range(6))
def test_room_that_changes_hands_is_never_seen_in_both(seen: Any, turns: int) -> None:
    first: States = {"a": ("CREATED", 2), "b": ("PENDING", 0)}
    then: States = {"a": ("REMOVED", 2), "b": ("CREATED", 2)}
    found = placed(seen(Ray(first, then, turns)).snapshot())
    assert sum(found.values()) <= 2, found


def test_a_new_group_is_found(seen: Any) -> None:
    ray = Ray({"a": ("CREATED", 2)})
    living = seen(ray)
    ray.now = ray.later = {"a": ("CREATED", 2), "late": ("PENDING", 0)}
    deadline = time.monotonic() + 30
    while set(placed(living.snapshot())) != {"a", "late"}:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_group_that_is_gone_is_not_asked_for_again(
    seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = Ray({"a": ("CREATED", 2), "b": ("CREATED", 1)})
    living = seen(ray)
    monkeypatch.setattr(ray, "get_placement_group_table", list)
    ray.now = ray.later = {"a": ("REMOVED", 2)}
    assert placed(living.snapshot()) == {}
    before = ray.told
    assert placed(living.snapshot()) == {}
    assert ray.told == before


def test_drivers_that_live_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import state

    jobs = [
        {"JobID": "01", "IsDead": False, "Entrypoint": "python train.py"},
        {"JobID": "02", "IsDead": True, "Entrypoint": "python old.py"},
        {"JobID": "03", "IsDead": False},
    ]
    monkeypatch.setattr(state, "jobs", lambda: jobs)
    assert live_drivers() == {"01": "python train.py", "03": ""}


def test_jobs_of_others_are_neither_ours_nor_rays(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    context = SimpleNamespace(get_job_id=lambda: "02")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    drivers = {
        "05": "python train.py",
        "01": "python serve.py",
        "02": "pytest probes",
        "03": "python ours.py",
        "04": "/x/ray/dashboard/agent.py",
        "06": "ray::DashboardAgent",
    }
    assert other_jobs(drivers, ["03"]) == ["01", "05"]


def test_a_table_that_cannot_be_read_is_told(seen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Ray({"a": ("CREATED", 2)})
    living = seen(ray)
    monkeypatch.setattr(ray, "get_placement_group_table", lambda: 1 / 0)
    deadline = time.monotonic() + 30
    while not living._error and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(RuntimeError, match="placement groups cannot be listed: division"):
        living.snapshot()
