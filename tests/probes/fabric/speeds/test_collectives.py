"""FSDP's collectives and all-to-all are judged by the all-reduce of the same size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probes.contract.contract import load, parse
from probes.contract.derived_limits import size_contract
from probes.fabric.controls import control_slow_collective
from probes.fabric.speeds import (
    CollectiveSpeed,
    collective_speeds,
    expected_ratio,
    find_slow_collectives,
    judge_collectives,
    judged_ops,
    measure_collectives,
)
from probes.fabric.sweep import CHECK_SIZE
from reference_trainer.launch.gang import GangError
from reports.measurement import Verdict
from tests.support.controls import MemoryRecorder, recorder
from tests.support.public_series import P5_ALL_REDUCE, P5_ALLTOALL
from tests.support.sweep_results import sweep_result

HEAD = 'schema = 1\ntitle = "t"\ntier = "standard"\n'
LARGE = 64 << 20
FOUR_NODES = ["n0", "n1", "n2", "n3"]
FULL = {"all_gather", "reduce_scatter"}


def row(size: int, busbw: float) -> dict[str, Any]:
    return {"size": size, "busbw": busbw, "spread": 0.01, "samples": 12}


def speed(busbw: float, expected: float = 1.0, name: str = "all_gather") -> CollectiveSpeed:
    return CollectiveSpeed(name, LARGE, busbw, 0.01, 12, expected)


def run_of(backend: str = "nccl", nodes: list[str] | None = None, large: float = 1.0) -> Any:
    """A sweep of two sizes: 0.5 GB/s at the small one, 1 GB/s at the large one."""
    nodes = nodes or FOUR_NODES
    road = "rdma" if backend == "nccl" else "fab0"
    return SimpleNamespace(
        rows=[row(CHECK_SIZE, 0.5), row(LARGE, large)],
        backend=backend,
        rank_nodes=nodes,
        ranks=len(nodes),
        main_device=road,
    )


def eights(nodes: int) -> list[str]:
    """The node of each rank, eight on each."""
    return [f"n{rank // 8}" for rank in range(8 * nodes)]


def judged(*speeds: CollectiveSpeed, agreed: str = "") -> MemoryRecorder:
    measure = recorder("FABRIC", parse(f"{HEAD}{agreed}".encode(), "f"))
    found = {one.name: one for one in speeds}
    judge_collectives(found, (*found,), "", measure)
    return measure


def verdict(measure: MemoryRecorder, name: str) -> Verdict | None:
    rows = measure.result("finished", 1.0).measurements
    return next(one.verdict for one in rows if one.name == name)


# What is expected.


def test_a_ring_has_the_busbw_of_the_all_reduce() -> None:
    assert expected_ratio("all_gather", run_of()) == 1.0
    assert expected_ratio("reduce_scatter", run_of()) == 1.0


def test_gloo_reduces_the_complete_buffer() -> None:
    assert expected_ratio("all_gather", run_of("gloo")) == 1.0
    assert expected_ratio("reduce_scatter", run_of("gloo")) == 0.5


@pytest.mark.parametrize(
    ("nodes", "inside", "ratio"),
    [(4, 1, 1.0), (2, 8, 15 / 8 / 8), (8, 8, 63 / 56 / 8), (1, 8, 1.0)],
)
def test_in_all_to_all_each_rank_has_its_part_of_the_nodes_rate(
    nodes: int, inside: int, ratio: float
) -> None:
    run = run_of(nodes=[f"n{rank // inside}" for rank in range(nodes * inside)])
    assert expected_ratio("alltoall", run) == pytest.approx(ratio)


AT_4_GIB = {nodes: rates[1] for nodes, rates in P5_ALL_REDUCE.items()}
BROKEN = [(354, 36.8), (231, 25)]  # on two nodes: a public report, and NVIDIA/nccl issue 2409


def judged_on(nodes: int, all_reduce: float, all_to_all: float, backend: str = "nccl") -> Any:
    """The verdicts of an all-to-all under the contract of p5, by measure."""
    run = run_of(backend, eights(nodes), all_reduce)
    speeds = collective_speeds({"alltoall": [row(LARGE, all_to_all)]}, run, ("alltoall",), LARGE)
    measure = recorder("FABRIC", size_contract(load("p5-efa"), nodes, 8 * nodes))
    judge_collectives(speeds, ("alltoall",), "", measure)
    result = measure.result("finished", 1.0)
    return {one.name: one.verdict for one in result.measurements}, result.findings


@pytest.mark.near_miss("FABRIC.alltoall_against_all_reduce", "FABRIC.alltoall_busbw")
@pytest.mark.parametrize("nodes", P5_ALLTOALL)
def test_a_public_series_of_all_to_all_passes_at_each_number_of_nodes(nodes: int) -> None:
    found, findings = judged_on(nodes, AT_4_GIB[nodes], P5_ALLTOALL[nodes])
    assert found == dict.fromkeys(("alltoall_against_all_reduce", "alltoall_busbw"), Verdict.PASS)
    assert findings == []


@pytest.mark.parametrize(("all_reduce", "all_to_all"), BROKEN)
def test_fabrics_that_were_broken_fail_by_both_limits(all_reduce: float, all_to_all: float) -> None:
    found, findings = judged_on(2, all_reduce, all_to_all)
    assert set(found.values()) == {Verdict.FAIL}
    assert [one.code for one in findings] == ["FAB-SLOW-COLLECTIVE"]
    # On 32 nodes, 36.8 GB/s is what a sound fabric may have.
    assert judged_on(32, 303, 36.8)[0]["alltoall_busbw"] is Verdict.PASS


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.34, Verdict.FAIL), (0.36, Verdict.MARGINAL), (0.5, Verdict.PASS)]
)
def test_over_tcp_less_is_expected_of_all_to_all(share: float, verdict: Verdict) -> None:
    """With gloo and one rank on a node, all-to-all has the rate of the node, too."""
    run = run_of("gloo")
    speeds = collective_speeds({"alltoall": [row(LARGE, share)]}, run, ("alltoall",), LARGE)
    measure = judged(*speeds.values())
    (found,) = [
        one.verdict
        for one in measure.result("finished", 1.0).measurements
        if one.name == "alltoall_against_all_reduce"
    ]
    assert found is verdict


def test_the_better_placement_at_the_largest_size_is_compared_with_its_all_reduce() -> None:
    rows = {"all_gather": [row(CHECK_SIZE, 9.0), row(LARGE, 0.7), row(LARGE, 0.8)]}
    found = collective_speeds(rows, run_of(), ("all_gather",), LARGE)["all_gather"]
    assert (found.size, found.busbw, found.expected, found.share) == (LARGE, 0.8, 1.0, 0.8)
    small = {"all_gather": [row(CHECK_SIZE, 0.4)]}
    assert (
        collective_speeds(small, run_of(), ("all_gather",), CHECK_SIZE)["all_gather"].share == 0.8
    )
    assert collective_speeds(small, run_of(), ("all_gather",), LARGE) == {}


# What is judged.


EVERY = ("all_gather", "reduce_scatter", "alltoall")


def near(name: str) -> Any:
    return pytest.param(
        name,
        marks=pytest.mark.near_miss(f"FABRIC.{name}_against_all_reduce", f"FABRIC.{name}_busbw"),
    )


def agreed_of(name: str) -> str:
    return f'[FABRIC.{name}_busbw]\nat_least = 300\nunit = "GB/s"\nbecause = "agreed"\n'


@pytest.mark.parametrize("name", EVERY)
def test_a_slow_collective_fails_by_its_share(name: str) -> None:
    for share in (0.3, 0.0):
        measure = judged(speed(share, name=name))
        assert verdict(measure, f"{name}_against_all_reduce") is Verdict.FAIL
        codes = [one.code for one in measure.result("finished", 1.0).findings]
        assert codes == ["FAB-SLOW-COLLECTIVE"]


@pytest.mark.parametrize("name", [near(name) for name in EVERY])
def test_a_collective_that_is_nearly_too_slow_is_kept(name: str) -> None:
    measure = judged(speed(301, 500, name), agreed=agreed_of(name))
    for one in (f"{name}_against_all_reduce", f"{name}_busbw"):
        assert verdict(measure, one) in (Verdict.PASS, Verdict.MARGINAL)
    assert measure.result("finished", 1.0).findings == []
    assert verdict(judged(speed(0.9, name=name)), f"{name}_against_all_reduce") is Verdict.PASS


@pytest.mark.parametrize("name", EVERY)
def test_a_collective_below_the_agreed_figure_is_named(name: str) -> None:
    measure = judged(speed(200, 210, name), agreed=agreed_of(name))
    assert verdict(measure, f"{name}_busbw") is Verdict.FAIL
    (found,) = measure.result("finished", 1.0).findings
    assert found.statement == f"{name} of 64 MiB: 200 GB/s. Expected: 300 GB/s or more"


def test_a_slow_collective_is_named_with_what_was_expected() -> None:
    measure = judged(speed(0.9), speed(0.3, 0.5, "reduce_scatter"), speed(0.1, 0.5, "alltoall"))
    (found,) = measure.result("finished", 1.0).findings
    assert found.code == "FAB-SLOW-COLLECTIVE"
    assert found.statement == (
        "alltoall of 64 MiB: 0.1 GB/s, 20 % of the 0.5 GB/s expected from the all-reduce"
    )


def test_no_all_reduce_means_no_pass() -> None:
    assert verdict(judged(speed(0.9, 0.0)), "all_gather_against_all_reduce") is Verdict.FAIL


def test_without_an_agreed_figure_the_speed_is_a_note() -> None:
    assert verdict(judged(speed(200, 200)), "all_gather_busbw") is None


def test_nothing_slow_is_nothing_found() -> None:
    found = find_slow_collectives(
        {"all_gather": speed(0.9)}, {"all_gather": 0.6}, {"all_gather": 0}
    )
    assert [*found] == []


# What is run.


def timed(seconds: float) -> dict[str, Any]:
    """Return the times of three calls that take so long."""
    return {"times": [seconds] * 3, "slowest": seconds, "first_wrong": None}


class Gang:
    """Ranks that answer every sweep; it keeps sizes and names."""

    size = 4

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[str, ...], int, Any]] = []

    def run(self, _: Any, names: Any, *arguments: Any, timeout: float) -> list[dict[str, Any]]:
        self.asked.append((names, arguments[2], arguments[5]))
        delay = arguments[5]
        keys = {"count": 1, "elements": 4, "placement": "in_place", "calls": 6, "wrong": 0}
        waits = [0.0 if not delay or rank in delay.ranks else delay.seconds for rank in range(4)]
        rows = [{"size": arguments[2], **keys, **timed(0.01 + wait)} for wait in waits]
        return [
            {
                "sweeps": {
                    name: {"operation": name, "rank": rank, "ranks": 4, "rows": [rows[rank]]}
                    for name in names
                }
            }
            for rank in range(self.size)
        ]


@pytest.mark.parametrize("tier", ["quick", "standard", "soak"])
def test_fsdps_own_run_at_full_size_in_every_tier_and_all_to_all_from_standard_on(
    tier: str,
) -> None:
    gang: Any = Gang()
    rows, problem = measure_collectives(gang, run_of(), tier)
    assert problem == ""
    (small, small_size, _), (large, large_size, _) = gang.asked
    assert (len(small), small_size, large_size) == (5, CHECK_SIZE, LARGE)
    assert {*large} == FULL | ({"alltoall"} if tier != "quick" else set())
    assert {*judged_ops(tier)} == {*large}
    assert [[r["size"] for r in rows[name]] for name in sorted(FULL)] == 2 * [[CHECK_SIZE, LARGE]]


def test_a_fabric_whose_sweep_ended_at_the_small_size_is_not_run_twice() -> None:
    gang: Any = Gang()
    run = run_of()
    run.rows = run.rows[:1]
    measure_collectives(gang, run, "soak")
    assert len(gang.asked) == 1


def test_a_fabric_that_never_came_to_the_small_size_runs_what_it_came_to() -> None:
    gang: Any = Gang()
    run = run_of()
    run.rows = [row(CHECK_SIZE // 8, 0.001)]
    rows, problem = measure_collectives(gang, run, "soak")
    assert [size for _, size, _ in gang.asked] == [CHECK_SIZE // 8]
    assert problem == ""
    names = judged_ops("soak")
    assert collective_speeds(rows, run, names, CHECK_SIZE // 8).keys() == {*names}


@pytest.mark.parametrize("how", ["it fails", "it is skipped"])
def test_a_full_size_that_did_not_run_proves_nothing_and_loses_nothing(how: str) -> None:
    gang: Any = Gang()
    answer = gang.run

    def run(function: Any, names: Any, *given: Any, timeout: float) -> Any:
        if given[2] != LARGE:
            return answer(function, names, *given, timeout=timeout)
        if how == "it fails":
            raise GangError("rank 3 does not answer")
        told = answer(function, names, *given, timeout=timeout)
        return [
            {"sweeps": {name: {**sweep, "rows": []} for name, sweep in rank["sweeps"].items()}}
            for rank in told
        ]

    gang.run = run
    rows, problem = measure_collectives(gang, run_of(), "quick")
    assert problem
    assert [len(rows[name]) for name in sorted(FULL)] == [1, 1]
    measure = recorder("FABRIC")
    speeds = collective_speeds(rows, run_of(), judged_ops("quick"), LARGE)
    judge_collectives(speeds, judged_ops("quick"), problem, measure)
    found = measure.result("finished", 1.0)
    assert {(one.verdict, one.note) for one in found.measurements} == {(Verdict.UNPROVEN, problem)}
    assert measure.result("finished", 1.0).findings == []


@pytest.mark.parametrize("works", [True, False])
def test_the_control_finds_collectives_that_begin_late(works: bool) -> None:
    gang: Any = Gang()
    sweep = sweep_result(1.5 * CHECK_SIZE / 0.01 / 1e9, rank_nodes=FOUR_NODES)  # 10 ms a call
    if not works:
        answer = gang.run  # the delay is lost on its way
        gang.run = lambda f, n, *a, timeout: answer(f, n, *a[:5], None, timeout=timeout)
    measure = recorder("FABRIC")
    rig: Any = SimpleNamespace(gang=gang, measure=measure)
    control_slow_collective(rig, sweep)
    (control,) = measure.result("finished", 1.0).controls
    assert (control.name, control.caught) == ("slow collective", works)
    if works:
        (_, _, delay) = gang.asked[0]
        assert (delay.ranks, delay.every_call) == ([2, 3], True)
