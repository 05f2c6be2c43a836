"""What a sweep shows: shares of the bytes, and witnesses that agree."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.fabric.detect import find_off_fabric
from probes.fabric.sweep import (
    OTHER_OPS,
    SweepResult,
    check_ops,
    init_seconds,
    rail_envs,
    run_sweep,
    sweep_seconds,
)
from probes.fabric.transport import TransportReport
from scaling.collectives.operations import OPERATIONS
from scaling.collectives.sweep import SIZES, sweep


def journey(sent: dict[str, dict[str, int]]) -> SweepResult:
    row = {"size": 1000, "calls": 10, "wrong": 0, "first_wrong": []}
    return SweepResult(ranks=2, backend="gloo", rows=[row], sent=sent)


def witnessed(sent: dict[str, dict[str, int]], **roads: str) -> SweepResult:
    """A journey with the library's word, too."""
    word = TransportReport("gloo's sockets", roads, "" if roads else "nothing is open")
    return dataclasses.replace(journey(sent), library=word)


def test_witnesses_must_say_the_same_of_every_node() -> None:
    sent = {"n0": {"fab0": 9000}, "n1": {"fab0": 9000}}
    assert witnessed(sent, n0="fab0", n1="fab0").witness_disagreement() == ""
    assert (
        "on n1 the byte counters show fab0, but gloo's sockets reported eth0"
        in witnessed(sent, n0="fab0", n1="eth0").witness_disagreement()
    )
    assert "reported nothing" in witnessed(sent, n0="fab0").witness_disagreement()
    assert "nothing is open" in witnessed(sent).witness_disagreement()
    tcp = {"n0": {"eth0": 9000, "rdma": 0}, "n1": {"eth0": 9000}}
    assert witnessed(tcp, n0="tcp", n1="tcp").witness_disagreement() == ""
    assert witnessed(
        {"n0": {"rdma": 9}, "n1": {"rdma": 9}}, n0="tcp", n1="rdma"
    ).witness_disagreement()


def test_shares_are_of_the_bytes_a_ring_must_move() -> None:
    went = journey({"n0": {"fab0": 10_000, "eth0": 500}, "n1": {"fab0": 0, "eth0": 10_000}})
    assert went.expected_bytes == 10_000
    assert went.share("n0", "fab0") == 1.0
    assert went.share_on_other_interfaces("n0", "fab0") == 0.05
    (finding,) = find_off_fabric(went, "fab0")
    assert finding.code == "FAB-WRONG-INTERFACE"
    assert finding.suspects == ["n1"]
    assert [*find_off_fabric(journey({"n0": {"fab0": 9}}), "fab0")] == []


def test_a_node_that_had_nothing_to_send_has_no_share_of_it() -> None:
    run = journey({"n0": {"fab0": 0}})
    run.rows[0]["calls"] = 0
    assert run.share("n0", "fab0") == 0.0


class Gang:
    """Two nodes, of which only the last has rails; collectives of 1 MiB over TCP."""

    def __init__(self, size: int = 2) -> None:
        self.size = size
        self.limits_s: list[tuple[str, float]] = []
        self.rails = {"mlx5_0/1": {"gbps": 400.0, "sent": 0}}
        self.places = [SimpleNamespace(node=f"id{rank}") for rank in range(size)]

    @property
    def limit_s(self) -> float:
        """How long the sweep may take."""
        (limit_s,) = [seconds for name, seconds in self.limits_s if name == "sweep"]
        return limit_s

    def run(self, function: Any, *call: Any, timeout: float, **_: Any) -> list[Any]:
        self.limits_s.append((function.__name__, timeout))
        if function is sweep:
            self.budget_s = call[2]
        row = {"size": 1 << 20, "count": 4, "elements": 4, "placement": "in_place", "calls": 1}
        row |= {"wrong": 0, "first_wrong": None, "times": [0.1]}
        common = {"ranks": self.size, "backend": "gloo", "connections": [], "readings": []}
        timed = {"ranks": self.size, "note": "", "rows": [row]}
        ranks, names = range(self.size), call[0] if function is sweep else ()
        answers: dict[str, list[Any]] = {
            "read_counters": [{"eth0": 0}] * self.size,
            "read_rails": [*[{}] * (self.size - 1), self.rails],
            "read_interfaces": [{}] * self.size,
            "sweep": [
                {
                    **common,
                    "sweeps": {one: {**timed, "operation": one, "rank": rank} for one in names},
                }
                for rank in ranks
            ],
        }
        return answers[function.__name__]


def test_a_node_without_rails_has_no_rate() -> None:
    gang, logs = cast(Any, Gang()), cast(Any, None)
    run = run_sweep(gang, {"id0": "n0", "id1": "n1"}, logs)
    assert run.rail_gbps == {"n0": 0.0, "n1": 400.0}
    assert run.ranks == 2
    alone = run_sweep(cast(Any, Gang(1)), {"id0": "n0"}, logs)
    assert (alone.rail_gbps, alone.ranks, alone.note) == ({"n0": 400.0}, 1, "")


def test_a_part_of_the_ranks_sweeps_as_a_job_of_its_own() -> None:
    """As the ranks of one NVLink domain do; no other node's counters are read."""

    class Part(Gang):
        def run(self, function: Any, *call: Any, timeout: float, **more: Any) -> list[Any]:
            assert more.pop("groups") == [[2, 3]]
            return super().run(function, *call, timeout=timeout, **more)

    gang = Part()
    gang.places = [SimpleNamespace(node=f"id{rank}") for rank in range(4)]
    names = {f"id{rank}": f"n{rank}" for rank in range(4)}
    run = run_sweep(cast(Any, gang), names, cast(Any, None), ranks=[2, 3])
    assert ([*run.sent], run.rank_nodes, run.ranks) == (["n2", "n3"], ["n2", "n3"], 2)
    assert run.library.transports == {}
    assert gang.limit_s == sweep_seconds(2)


def test_a_nodes_rate_is_that_of_its_fastest_rail() -> None:
    """A port for storage may be slower."""
    gang = Gang()
    gang.rails["mlx5_1/1"] = {"gbps": 100.0, "sent": 0}
    run = run_sweep(cast(Any, gang), {"id0": "n0", "id1": "n1"}, cast(Any, None))
    assert run.rail_gbps == {"n0": 0.0, "n1": 400.0}


def test_other_collectives_have_rows_by_their_names() -> None:
    found = check_ops(cast(Any, Gang()), 1 << 20)
    assert tuple(found) == OTHER_OPS
    assert "all_reduce" not in OTHER_OPS
    assert [row["size"] for rows in found.values() for row in rows] == [1 << 20] * len(OTHER_OPS)


@pytest.mark.parametrize(
    ("fabric", "on_gpu", "interfaces"),
    [
        ("eth1,eth2", False, ["eth1", "eth2"]),
        ("eth1,eth2", True, []),  # NCCL finds them
        ("eth1", False, []),
        ("rdma", False, []),
        (None, False, []),
    ],
)
def test_ranks_of_gloo_bind_the_interfaces_of_a_fabric_in_turn(
    fabric: str | None, on_gpu: bool, interfaces: list[str]
) -> None:
    assert rail_envs(fabric, on_gpu) == [{"GLOO_SOCKET_IFNAME": name} for name in interfaces]


def test_the_calls_of_all_sizes_take_at_most_half_of_a_sweeps_time() -> None:
    """The other half is for the checks of their data."""
    gang, logs = cast(Any, Gang()), cast(Any, None)
    run_sweep(gang, {"id0": "n0", "id1": "n1"}, logs)
    calls_s = gang.budget_s * len(SIZES) * len(OPERATIONS["all_reduce"].placements)
    assert 2 * calls_s < gang.limit_s - init_seconds(2)


@pytest.mark.parametrize(("ranks", "seconds"), [(2, 90.2), (1000, 190.0)])
def test_ranks_have_90_s_to_connect_and_a_tenth_more_for_each(ranks: int, seconds: float) -> None:
    assert init_seconds(ranks) == pytest.approx(seconds)
    assert sweep_seconds(ranks) == pytest.approx(seconds + 60)


@pytest.mark.parametrize(("ranks", "seconds"), [(1, 60.1), (2, 60.2), (4096, 469.6)])
def test_deadlines_of_short_calls_grow_with_the_ranks(ranks: int, seconds: float) -> None:
    """A minute to read counters, and the interfaces for the report of gloo."""
    gang = Gang(ranks)
    run_sweep(cast(Any, gang), {f"id{at}": f"n{at}" for at in range(ranks)}, cast(Any, None))
    short = {name: limit_s for name, limit_s in gang.limits_s if name != "sweep"}
    assert short == dict.fromkeys(
        ("read_counters", "read_rails", "read_interfaces"), pytest.approx(seconds)
    )


def test_the_other_collectives_take_less_time_than_a_sweep() -> None:
    """One size of each takes a few seconds in all."""
    gang = Gang()
    check_ops(cast(Any, gang), 1 << 20)
    calls = sum(len(OPERATIONS[name].placements) for name in OTHER_OPS)
    assert gang.budget_s * calls < 5 < gang.limit_s - init_seconds(2)


def test_each_rank_has_a_typical_call_and_a_longest_one() -> None:
    row = {"size": 8, "rank_worst": [0.1, 0.5], "rank_seconds": [0.1, 0.1]}
    run = dataclasses.replace(journey({}), rows=[row])
    assert (run.longest_stall.rank, run.longest_stall.seconds) == (1, pytest.approx(0.3))
    row["rank_seconds"] = [0.1]
    with pytest.raises(ValueError, match="is shorter than"):
        _ = run.longest_stall
