"""The gang that a probe hands to the next: who gets it, and when it ends."""

from __future__ import annotations

from typing import Any

import pytest

from probes.cluster.kept_gang import GANG_NAME, GangKeeper


class FakeGang:
    """A gang whose processes are numbers."""

    def __init__(self, size: int, name: str = "", **options: Any) -> None:
        self.size, self.name, self.removed, self.groups_left = size, name, False, 0
        self.environment = options.get("environment")
        self.by_local_rank = options.get("by_local_rank", ())
        self.is_running, self.is_sound, self.lost = False, True, list[int]()

    def __enter__(self) -> FakeGang:
        self.is_running = True
        return self

    def silent(self) -> list[int]:
        return self.lost

    def leave_groups(self) -> None:
        self.groups_left += 1

    def remove(self) -> None:
        self.is_running, self.is_sound, self.removed = False, False, True


class FakeCluster:
    def __init__(self, *, on_gpu: bool = False) -> None:
        self.size, self.on_gpu, self.made = 4, on_gpu, list[FakeGang]()
        cluster: Any = self
        self.keeper = GangKeeper(cluster)
        self.said: list[str] = []

    def gang(self, **options: Any) -> FakeGang:
        """As Cluster.gang: a kept gang makes room."""
        self.keeper.release()
        self.made.append(FakeGang(self.size, **options))
        return self.made[-1]

    def use(self, **options: Any) -> FakeGang:
        with self.keeper.lend(self.said.append, **options) as gang:
            found: Any = gang
            assert found.is_running
        return found

    def interrupt(self) -> None:
        with self.keeper.lend(self.said.append):
            raise KeyboardInterrupt


def test_the_next_probe_gets_the_same_ranks_with_its_own_variables() -> None:
    cluster = FakeCluster()
    first = cluster.use(environment={"A": "1"}, by_local_rank=[{"R": "0"}])
    assert (first.name, first.removed) == (GANG_NAME, False)
    second = cluster.use(environment={"B": "2"})
    assert second is first
    assert (second.environment, second.by_local_rank) == ({"B": "2"}, ())
    assert cluster.use() is first
    assert first.environment is None
    assert first.groups_left == 2, "no process group of a probe reaches the next"
    began, *others = cluster.said
    assert began.startswith("ranks: started for this test, in 0.")
    assert others == ["ranks: those of an earlier test, 0 s old"] * 2


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ({"environment": {"NCCL_ALGO": "Ring"}}, {"environment": {"NCCL_ALGO": "Ring"}}, True),
        ({"environment": {"NCCL_ALGO": "Ring"}}, {}, False),
        ({"by_local_rank": [{"NCCL_IB_HCA": "mlx5_0"}]}, {}, False),
        ({}, {}, True),
    ],
)
def test_on_gpus_only_the_same_variables_get_the_same_processes(
    first: dict[str, Any], second: dict[str, Any], same: bool
) -> None:
    """NCCL reads its variables once in a process."""
    cluster = FakeCluster(on_gpu=True)
    gang = cluster.use(**first)
    assert (cluster.use(**second) is gang) is same
    assert gang.removed is not same, "two gangs have no room"


def test_what_is_damaged_is_not_handed_on() -> None:
    for damage in (
        lambda gang: setattr(gang, "is_sound", False),  # a call failed, or still runs
        lambda gang: gang.lost.append(2),  # a process that does not answer, or is gone
        lambda gang: setattr(gang, "size", 3),  # a node joined since
    ):
        cluster = FakeCluster()
        gang = cluster.use()
        damage(gang)
        assert cluster.use() is not gang
        assert gang.removed


def test_a_gang_in_which_something_failed_ends_with_its_probe() -> None:
    cluster = FakeCluster()
    with cluster.keeper.lend(cluster.said.append) as gang:
        failed: Any = gang
        failed.is_sound = False
    assert failed.removed
    with pytest.raises(KeyboardInterrupt):
        cluster.interrupt()
    assert [gang.removed for gang in cluster.made] == [True, True]
    assert cluster.use() is cluster.made[2]


def test_a_gang_that_its_probe_removed_is_not_kept() -> None:
    """FABRIC removes it on GPUs: its control needs new processes."""
    cluster = FakeCluster()
    with cluster.keeper.lend(cluster.said.append) as gang:
        gang.remove()
    assert cluster.use() is not gang


def test_who_takes_it_owns_it() -> None:
    cluster = FakeCluster()
    gang = cluster.use()
    taken: Any = cluster.keeper.take(cluster.said.append)
    assert taken is gang
    cluster.keeper.release()
    assert not gang.removed, "it is no longer kept"
    other: Any = cluster.keeper.take(cluster.said.append)
    assert other is not gang
    assert not other.is_running, "its owner starts it"


def test_another_gang_and_another_probe_find_free_accelerators() -> None:
    for make_room in (FakeCluster.gang, lambda cluster: cluster.keeper.release()):
        cluster = FakeCluster()
        gang = cluster.use()
        make_room(cluster)
        assert gang.removed
        cluster.keeper.release()  # nothing is kept: nothing happens


def test_a_gang_that_is_lent_stays() -> None:
    """A probe may release what is kept while its own ranks work."""
    cluster = FakeCluster()
    with cluster.keeper.lend(cluster.said.append) as gang:
        cluster.keeper.release()
        assert gang.is_running
