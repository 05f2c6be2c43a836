"""All-reduce inside nodes: the slow node is named, by the others or by the agreed figure."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from probes.contract.contract import parse
from probes.fabric.controls import control_slow_inside
from probes.fabric.judge import try_inside
from probes.fabric.node_pairs import (
    UNLIKE,
    InsideSpeeds,
    find_slow_inside,
    judge_inside,
    measure_inside,
)
from reference_trainer.launch.gang import GangError
from reports.measurement import Verdict
from tests.support.controls import MemoryRecorder, recorder
from tests.support.rank_parts import Each, groups_of
from tests.support.sweep_results import sweep_result

AGAINST = "all_reduce_inside_node_against_others"
KINDS = {"n0": "NVIDIA H200", "n1": "NVIDIA H200", "n2": "NVIDIA A100", "n3": "NVIDIA A100"}


def inside(*speeds: float, wrong: int = 0, left_out: list[str] | None = None) -> InsideSpeeds:
    busbw = {f"n{at}": speed for at, speed in enumerate(speeds)}
    ranks = dict.fromkeys(busbw, 2)
    return InsideSpeeds(busbw, dict.fromkeys(busbw, 0) | {"n0": wrong}, left_out or [], ranks)


def judged(found: InsideSpeeds, agreed: str = "") -> MemoryRecorder:
    text = f'schema = 1\ntitle = "t"\n{agreed}'
    measure = recorder("FABRIC", parse(text.encode(), "f"))
    judge_inside(found, measure)
    return measure


def told(measure: MemoryRecorder) -> dict[str, tuple[str, Verdict | None]]:
    rows = measure.result("finished", 1.0).measurements
    return {one.name: (one.subject, one.verdict) for one in rows}


@pytest.mark.parametrize(
    ("speeds", "verdict"),
    [
        ((100, 99, 101, 100), Verdict.PASS),
        pytest.param(
            (100, 86, 101, 100),
            Verdict.PASS,
            marks=pytest.mark.near_miss(f"FABRIC.{AGAINST}"),
        ),
        ((100, 80, 101, 100), Verdict.MARGINAL),
        ((100, 70, 101, 100), Verdict.FAIL),
        ((100, 0, 101, 100), Verdict.FAIL),
        ((100, 100), Verdict.PASS),
        ((100, 50), Verdict.FAIL),
        ((0, 0), Verdict.FAIL),
    ],
)
def test_the_slowest_node_is_judged_by_a_typical_one(speeds: Any, verdict: Verdict) -> None:
    assert told(judged(inside(*speeds)))[AGAINST][1] is verdict


def test_the_slow_node_is_named_and_no_other() -> None:
    measure = judged(inside(100, 100, 50, 98))
    assert told(measure)[AGAINST][0] == "n2"
    (found,) = measure.result("finished", 1.0).findings
    assert (found.code, found.suspects) == ("FAB-SLOW-INSIDE", ["n2"])
    assert found.statement == ("all-reduce inside n2: 50 GB/s, 50 % of a typical node's 100 GB/s")


def test_nodes_that_are_all_slow_alike_are_found_by_the_agreed_figure() -> None:
    agreed = '[FABRIC.all_reduce_inside_node]\nat_least = 300\nunit = "GB/s"\nbecause = "NVLink"\n'
    measure = judged(inside(200, 201), agreed)
    assert told(measure)["all_reduce_inside_node"] == ("n0", Verdict.FAIL)
    (found,) = measure.result("finished", 1.0).findings
    assert found.statement == "all-reduce inside n0, n1: 200 GB/s. Agreed: 300 GB/s"


@pytest.mark.near_miss("FABRIC.all_reduce_inside_node")
def test_nodes_just_above_the_agreed_figure_are_kept() -> None:
    agreed = '[FABRIC.all_reduce_inside_node]\nat_least = 300\nunit = "GB/s"\nbecause = "NVLink"\n'
    measure = judged(inside(301, 311), agreed)
    assert told(measure)["all_reduce_inside_node"] == ("n0", Verdict.PASS)
    assert measure.result("finished", 1.0).findings == []


def test_without_an_agreed_figure_the_speed_is_a_note() -> None:
    assert told(judged(inside(200, 201)))["all_reduce_inside_node"] == ("n0", None)


def test_wrong_elements_are_counted_and_their_node_is_named() -> None:
    measure = judged(inside(100, 100, wrong=3))
    assert told(measure)["wrong_elements"] == ("all-reduce inside nodes", Verdict.FAIL)
    assert [one.suspects for one in measure.result("finished", 1.0).findings] == [["n0"]]


def test_nodes_of_one_rank_are_not_judged() -> None:
    assert told(judged(inside())) == {}
    assert [*find_slow_inside(inside(100, 100, left_out=["n9"]), 0.75, None)] == []


def unequal() -> InsideSpeeds:
    """Two nodes of eight GPUs, and one of two, in which a ring is shorter and faster."""
    busbw = {"n0": 50.0, "n1": 51.0, "n2": 100.0}
    return InsideSpeeds(busbw, dict.fromkeys(busbw, 0), [], {"n0": 8, "n1": 8, "n2": 2})


AGREED = """[FABRIC.all_reduce_inside_node]
at_least = {}
unit = "GB/s"
because = "agreed"
"""


def test_a_node_that_no_other_is_like_needs_the_agreed_figure() -> None:
    result = judged(unequal()).result("finished", 1.0)
    compared = [(one.subject, one.verdict) for one in result.measurements if one.name == AGAINST]
    assert compared == [("n0", Verdict.PASS), ("n2", Verdict.UNPROVEN)]
    assert result.findings == []


@pytest.mark.parametrize(("agreed", "verdict"), [(45, Verdict.PASS), (60, Verdict.FAIL)])
def test_the_agreed_figure_judges_a_node_that_no_other_is_like(
    agreed: int, verdict: Verdict
) -> None:
    said = told(judged(unequal(), AGREED.format(agreed)))
    assert said[AGAINST] == ("n0", Verdict.PASS)
    assert said["all_reduce_inside_node"] == ("n0", verdict)


def test_where_no_two_nodes_have_as_many_nothing_is_proven() -> None:
    found = InsideSpeeds({"n0": 50.0}, {"n0": 0}, ["n1"], {"n0": 8})
    assert told(judged(found))[AGAINST][1] is Verdict.UNPROVEN
    measure = recorder("FABRIC")
    rig: Any = SimpleNamespace(gang=None, measure=measure)
    control_slow_inside(rig, sweep_result(0.1, rank_nodes=8 * ["n0"] + ["n1"]), found)
    (control,) = measure.result("finished", 1.0).controls
    assert (control.caught, control.saw) == (None, UNLIKE)


def test_a_gang_that_fails_inside_nodes_loses_nothing_else() -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise GangError("rank 3 does not answer")

    measure = recorder("FABRIC")
    rig: Any = SimpleNamespace(gang=SimpleNamespace(run=fail, size=4), measure=measure, models={})
    assert try_inside(rig, sweep_result(0.1, rank_nodes=["n0", "n0"])) is None
    (found,) = measure.result("finished", 1.0).measurements
    assert (found.name, found.note) == (AGAINST, "rank 3 does not answer")


@pytest.mark.parametrize(
    ("models", "last", "slowest", "verdict"),
    [
        pytest.param(
            KINDS, 225, "n0", Verdict.PASS, marks=pytest.mark.near_miss(f"FABRIC.{AGAINST}")
        ),
        (KINDS, 150, "n3", Verdict.FAIL),
        ({}, 225, "n2", Verdict.FAIL),
    ],
)
def test_nodes_of_an_ordered_kind_are_compared_with_each_other_alone(
    models: dict[str, str], last: float, slowest: str, verdict: Verdict
) -> None:
    found = replace(inside(330, 330, 225, last), models=models)
    assert told(judged(found))[AGAINST] == (slowest, verdict)


class Gang:
    """Ranks that report these speeds; it keeps what they were asked."""

    def __init__(self, speeds: dict[int, float]) -> None:
        self.speeds, self.size = speeds, len(speeds)
        self.asked: list[tuple[Any, ...]] = []

    def run(
        self, function: Any, *arguments: Any, each: Each, timeout: float
    ) -> list[tuple[float, int]]:
        _, slow = arguments
        groups = groups_of(each)
        self.asked.append((groups, *arguments))
        late = next((group for group in groups if slow and slow[0] in group), [])
        return [(speed / (3 if rank in late else 1), rank) for rank, speed in self.speeds.items()]


def test_each_node_with_several_ranks_is_a_group_and_its_slowest_rank_counts() -> None:
    gang: Any = Gang({0: 5.0, 1: 4.0, 2: 9.0, 3: 6.0, 4: 7.0})
    found = measure_inside(gang, ["n0", "n0", "n1", "n2", "n2"])
    assert found == InsideSpeeds(
        {"n0": 4.0, "n2": 6.0}, {"n0": 1, "n2": 7}, ["n1"], {"n0": 2, "n2": 2}
    )
    assert gang.asked == [([[0, 1], [3, 4]], None, None)]


def test_a_gang_of_one_rank_per_node_is_not_asked() -> None:
    gang: Any = Gang({0: 5.0})
    assert measure_inside(gang, ["n0"]) == InsideSpeeds({}, {}, ["n0"], {})
    assert gang.asked == []


@pytest.mark.parametrize("works", [True, False])
def test_the_control_finds_the_node_whose_rank_is_late(
    works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang: Any = Gang(dict.fromkeys(range(4), 0.1))
    if not works:  # the delay is lost on its way
        monkeypatch.setattr(Gang, "run", lambda *_, **__: [(0.1, 0)] * 4)
    measure = recorder("FABRIC")
    rig: Any = SimpleNamespace(gang=gang, measure=measure)
    run = sweep_result(0.1, rank_nodes=["n0", "n0", "n1", "n1"])
    control_slow_inside(rig, run, inside(0.1, 0.1))
    (control,) = measure.result("finished", 1.0).controls
    assert (control.name, control.caught) == ("slow inside", works)
    if works:
        (_, _, (rank, delay_s)) = gang.asked[0]
        assert rank == 3
        assert delay_s == pytest.approx(2 * (4 << 20) / 0.1e9)


def test_a_node_that_is_exactly_as_fast_as_it_must_be_has_no_finding() -> None:
    inside = InsideSpeeds({"n0": 0.4, "n1": 0.5}, {}, [], {"n0": 2, "n1": 2})
    assert inside.shares() == {"n0": 0.8, "n1": 1.0}
    assert [*find_slow_inside(inside, 0.8, None)] == []
    assert [one.suspects for one in find_slow_inside(inside, 0.81, None)] == [["n0"]]


def test_most_nodes_are_slower_than_the_best() -> None:
    measure = judged(inside(*[182.0] * 7, 330.0))
    assert told(measure)[AGAINST] == ("n0", Verdict.FAIL)
    (found,) = measure.result("finished", 1.0).findings
    assert found.suspects == [f"n{at}" for at in range(7)]
    assert found.statement == (
        "all-reduce inside a node: most are slower than the best, 7 of 8 nodes (n0, n1, n2, n3, "
        "n4, n5, n6): 182 GB/s or less. n7 shows that 330 GB/s is possible"
    )
