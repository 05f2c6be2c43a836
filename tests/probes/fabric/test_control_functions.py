"""FABRIC's controls: each plants its fault where it says, and is caught only there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from probes.contract.contract import Contract, parse
from probes.contract.contract import load as contract
from probes.fabric import controls
from probes.fabric import controls as links
from probes.fabric import controls as settings
from probes.fabric.addresses import RailRanks
from probes.fabric.links import LinkGrowth, PortErrors
from probes.fabric.node_pairs import BadSender, PairSearch
from reference_trainer.launch.gang import GangError
from reports.measurement import Limit
from reports.record import Control
from scaling.collectives.fault_search import FaultSearchResult, Link
from tests.support.controls import MemoryRecorder, recorder, with_limit
from tests.support.sweep_results import sweep_result

LAB = contract("lab")


def only_control(measure: MemoryRecorder) -> Control:
    """Return the control that was recorded."""
    (found,) = measure.result("finished", 1.0).controls
    return found


def fail(*_: Any, **__: Any) -> Any:
    """Fail as a gang does whose ranks do not answer."""
    raise GangError("rank 2 does not answer")


# The environment lint.


class Nodes:
    """Three nodes, each with an environment of its own, added to this process's."""

    def __init__(self, silent: str = "", **own: dict[str, str]) -> None:
        self.names, self.silent, self.own = ["n0", "n1", "n2"], silent, own
        self.nodes = [{"id": f"id of {name}", "name": name} for name in self.names]
        self.node_names = {node["id"]: node["name"] for node in self.nodes}

    def on_each_node(self, function: Any, each: Mapping[str, Any]) -> dict[str, Any]:
        self.asked, answers = each, {}
        for id, name in self.node_names.items():
            answers[id] = function(each[id])
            for variable, value in self.own.get(name, {}).items():
                answers[id]["effective"][variable] = {"value": value, "where": "environment"}
        return {id: facts for id, facts in answers.items() if self.node_names[id] != self.silent}


VARIABLE = "NCCL_P2P_DISABLE"


@pytest.fixture
def plain_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let settings be NCCL's variables of this process, of which there is none."""
    for name in settings.HARMFUL:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(settings, "gpu_models", list)

    def read() -> dict[str, Any]:
        found = {name: value for name, value in os.environ.items() if name in settings.HARMFUL}
        entries = {name: {"value": found[name], "where": "environment"} for name in found}
        return {"effective": entries}

    monkeypatch.setattr(settings, "read_settings", read)


def control_setting(nodes: Any) -> Control:
    """Run the control of the lint."""
    measure = recorder("FABRIC")
    settings.control_harmful_setting(nodes, "fab0", measure)
    return only_control(measure)


@pytest.mark.usefixtures("plain_settings")
def test_a_harmful_variable_of_one_worker_is_caught_there() -> None:
    nodes = Nodes()
    found = control_setting(nodes)
    assert found.caught
    assert nodes.asked == {"id of n0": False, "id of n1": False, "id of n2": True}
    assert found.fault == "NCCL_P2P_DISABLE=1 is set on n2"
    assert settings.HARMFUL.keys().isdisjoint(os.environ)


@pytest.mark.usefixtures("plain_settings")
@pytest.mark.parametrize("own", [{}, {"NCCL_P2P_DISABLE": "0"}, {"NCCL_P2P_DISABLE": "1"}])
def test_on_boards_without_nvlink_another_variable_is_harmful(
    monkeypatch: pytest.MonkeyPatch, own: dict[str, str]
) -> None:
    monkeypatch.setattr(settings, "gpu_models", lambda: ["NVIDIA L40S"])
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    found = control_setting(Nodes())
    assert found.caught
    assert found.fault == "NCCL_COMM_ID=127.0.0.1:29500 is set on n2"


@pytest.mark.usefixtures("plain_settings")
def test_a_victim_that_does_not_answer_proves_nothing_of_the_lint() -> None:
    found = control_setting(Nodes(silent="n2"))
    assert (found.caught, found.saw) == (None, "n2 does not answer")


@pytest.mark.parametrize(
    ("own", "harmful"),
    [
        ({"n0": {VARIABLE: "1"}}, 1),  # the variable, elsewhere
        ({"n0": {VARIABLE: "1"}, "n2": {"NCCL_IB_DISABLE": "1"}}, 2),  # and another
    ],
)
def test_a_harmful_variable_that_the_victim_did_not_show_is_not_caught(
    monkeypatch: pytest.MonkeyPatch, own: dict[str, Any], harmful: int
) -> None:
    monkeypatch.setattr(settings, "read_doctored_settings", lambda _: {"effective": {}})
    found = control_setting(Nodes(**own))
    assert [one.value for one in found.observed] == [harmful]
    assert found.caught is False


@pytest.mark.usefixtures("plain_settings")
@pytest.mark.parametrize("own", [None, "0"])
def test_a_worker_keeps_its_own_value_after_the_control(
    monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    if own is not None:
        monkeypatch.setenv(VARIABLE, own)
    read = settings.read_doctored_settings
    assert read(True)["effective"][VARIABLE]["value"] == "1"
    assert os.environ.get(VARIABLE) == own
    assert read(False)["effective"].get(VARIABLE, {}).get("value") == own


# Data and calls.

NAMES = ["n0", "n1", "n2"]
READING = {"bytes": {}, "tcp": None, "rdma": None}


def wrong_row(rank: int | None) -> dict[str, Any]:
    """Make a row of a collective, with a wrong element on this rank."""
    wrong = [] if rank is None else [(rank, 7)]
    return {"elements": 16, "wrong": len(wrong), "first_wrong": wrong}


@pytest.mark.parametrize(
    ("rows", "caught", "says"),
    [
        ([wrong_row(2), wrong_row(2)], True, "rank 2 on n2 received a wrong element 7 of 16"),
        ([wrong_row(2), wrong_row(None)], False, "rank 2 on n2"),  # one collective hides it
        ([wrong_row(1), wrong_row(1)], False, "rank 1 on n1"),  # another rank
        ([wrong_row(None)], False, "no wrong element"),
    ],
)
def test_a_changed_element_is_caught_where_each_collective_shows_it_on_that_rank(
    monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], caught: bool, says: str
) -> None:
    asked: list[int] = []

    def check(gang: Any, size: int, corrupt: int) -> dict[str, Any]:
        asked.append(corrupt)
        return {"broadcast": rows[:1], "all_gather": rows[1:]}

    monkeypatch.setattr(controls, "check_ops", check)
    gang, measure = SimpleNamespace(size=3), recorder("FABRIC")
    controls.control_wrong_element(gang, NAMES, measure)  # type: ignore[arg-type]
    found = only_control(measure)
    assert found.caught is caught
    assert says in found.saw
    assert asked == [2]


class TimedGang:
    """Three ranks, of which all others wait for one that is late."""

    size = 3

    def __init__(self) -> None:
        self.late: list[tuple[int, float]] = []

    def run(self, function: Any, *call: Any, timeout: float) -> list[dict[str, Any]]:
        self.late.append((*call[-1].ranks, call[-1].seconds))
        bad, late_s = self.late[-1]
        row = {"size": 1 << 20, "count": 4, "elements": 4, "placement": "in_place", "calls": 6}
        row |= {"wrong": 0, "first_wrong": None}
        common = {"operation": "all_reduce", "ranks": 3}
        waits = [0.0 if rank == bad else late_s for rank in range(3)]
        return [
            {"sweeps": {"all_reduce": {**common, "rank": rank, "rows": [row | times(wait)]}}}
            for rank, wait in enumerate(waits)
        ]


def times(wait: float) -> dict[str, Any]:
    """Return the seconds of three calls, of which the second waits."""
    return {"times": [0.01, 0.01 + wait, 0.01], "slowest": 0.01}


@pytest.mark.parametrize(
    ("limit", "late_s", "caught"),
    [
        (LAB.limit("FABRIC", "longest_stall"), None, True),
        (Limit(low=0, because="it names no longest stall"), 0.0, False),
        (None, 0.0, None),
    ],
)
def test_the_last_rank_is_later_than_the_limit_and_without_a_limit_not_at_all(
    limit: Limit | None, late_s: float | None, caught: bool | None
) -> None:
    gang, measure = TimedGang(), recorder("FABRIC", with_limit(LAB, "longest_stall", limit))
    rig: Any = SimpleNamespace(gang=gang, measure=measure)
    controls.control_late_call(
        rig, sweep_result(0.1, rank_nodes=NAMES, readings=[[READING, READING]] * 3)
    )
    ((rank, seconds),) = gang.late
    assert rank == 2
    if late_s is None:
        assert 0.5 < seconds < 1.0
    else:
        assert seconds == late_s
    assert only_control(measure).caught is caught


@pytest.mark.parametrize("name", ["wrong element", "late call"])
def test_a_gang_that_fails_leaves_the_controls_of_data_unproven(name: str) -> None:
    gang, measure = SimpleNamespace(size=3, run=fail), recorder("FABRIC")
    rig: Any = SimpleNamespace(gang=gang, measure=measure)
    if name == "late call":
        controls.control_late_call(rig, sweep_result(0.1))
    else:
        controls.control_wrong_element(rig.gang, NAMES, measure)
    found = only_control(measure)
    assert (found.name, found.caught, found.saw) == (name, None, "rank 2 does not answer")


# Links.


def control_sender(
    monkeypatch: pytest.MonkeyPatch,
    nodes: int,
    slow: str,
    lossy: str,
    typical: float = 0.1,
    agreed: Contract = LAB,
    was_judged: bool = False,
) -> tuple[Control, BadSender]:
    """Run the control of a bad sender; these nodes look slow and lossy."""
    names = [f"n{at}" for at in range(nodes)]
    pairs = [(a, b) for a in names for b in names if a != b]
    speeds: dict[Link, float] = {(a, b): 0.03 if a == slow else 0.1 for a, b in pairs}
    lost: dict[Link, float | None] = {(a, b): 0.05 if a == lossy else 0.0 for a, b in pairs}
    speed = FaultSearchResult(speeds, typical, {}, [], 1, 0, "")
    rail = RailRanks("", {name: rank for rank, name in enumerate(names)}, "fab0")
    search = PairSearch(speed, speed, {}, lost, {}, [rail])
    planted: list[BadSender] = []

    def few(*_: Any, bad: BadSender) -> PairSearch:
        planted.append(bad)
        return search

    monkeypatch.setattr(links, "run_few_pairs", few)
    measure = recorder("FABRIC", agreed)
    if was_judged:
        measure("lost_packets", 0.0)
    rig: Any = SimpleNamespace(gang=None, node_names={}, measure=measure)
    links.control_bad_sender(rig, sweep_result(0.1, rank_nodes=names), search)
    return only_control(measure), planted[0]


@pytest.mark.parametrize(
    ("slow", "lossy", "caught"),
    [("n2", "n2", True), ("n1", "n2", False), ("n2", "n1", False), ("n1", "n1", False)],
)
def test_a_bad_sender_is_caught_where_it_is_both_slow_and_lossy(
    monkeypatch: pytest.MonkeyPatch, slow: str, lossy: str, caught: bool
) -> None:
    found, planted = control_sender(monkeypatch, 4, slow, lossy)
    assert found.caught is caught
    assert planted.rank == 2


def test_of_two_nodes_the_lost_packets_alone_show_the_bad_sender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The speeds of two links are not judged: there is no third to compare them with."""
    found, planted = control_sender(monkeypatch, 2, "n1", "n1")
    assert (found.caught, found.proves, planted.rank) == (True, ["lost_packets"], 1)
    found, planted = control_sender(monkeypatch, 3, "n2", "n2")
    assert (found.caught, {*found.proves}) == (True, {"lost_packets", "slowest_pair"})


UNCOUNTED = parse(
    b'schema = 1\n[FABRIC.lost_packets]\nnot_countable = "this driver does not count them"\n'
    b'[FABRIC.link_changes]\nnot_countable = "this driver does not count them"\n',
    "f",
)


@pytest.mark.parametrize(("slow", "caught"), [("n2", True), ("n1", False)])
def test_where_nothing_counts_losses_the_bad_sender_is_slow_alone(
    monkeypatch: pytest.MonkeyPatch, slow: str, caught: bool
) -> None:
    found, _ = control_sender(monkeypatch, 4, slow, "", agreed=UNCOUNTED)
    assert (found.caught, [one.name for one in found.observed]) == (caught, ["slowest_pair"])
    assert "resent" not in found.fault


def test_of_two_nodes_that_count_no_losses_no_bad_sender_is_planted() -> None:
    measure = recorder("FABRIC", UNCOUNTED)
    speed = FaultSearchResult({}, 0.1, {}, [], 1, 0, "")
    search = PairSearch(speed, speed, {}, {}, {}, [RailRanks("", {"n0": 0, "n1": 1}, "fab0")])
    rig: Any = SimpleNamespace(gang=None, measure=measure)
    links.control_bad_sender(rig, sweep_result(0.1), search)
    assert measure.result("finished", 1.0).controls == []


def test_where_a_loss_was_judged_the_bad_sender_must_show_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An agreement that a count contradicts has no effect, on the control either."""
    for lossy, caught in (("n2", True), ("", False)):
        found, _ = control_sender(monkeypatch, 4, "n2", lossy, agreed=UNCOUNTED, was_judged=True)
        assert found.caught is caught


@pytest.mark.parametrize(
    ("agreed", "changes", "caught", "proves"),
    [
        (LAB, 2, True, ["link_changes", "interface_errors"]),
        (LAB, None, False, []),
        (UNCOUNTED, None, True, ["interface_errors"]),
    ],
)
def test_ports_that_count_no_changes_show_their_errors(
    agreed: Contract, changes: int | None, caught: bool, proves: list[str]
) -> None:
    measure = recorder("FABRIC", agreed)
    errors = PortErrors("receives", "mlx5_0/1", 10**4, 10**6)
    grown = {"n0": LinkGrowth({"mlx5_0/1": changes}, errors, {})}
    watch = SimpleNamespace(growth=lambda fabric, doctored: grown)
    rig: Any = SimpleNamespace(watch=watch, measure=measure)
    controls.control_doctored_counters(rig, {"n0": "rdma"})
    found = only_control(measure)
    assert (found.caught, found.proves) == (caught, proves)


# Reachability.


@pytest.mark.parametrize(
    ("pairs", "caught"),
    [
        ([("n0", "n2"), ("n1", "n2")], True),
        ([("n0", "n2"), ("n1", "n2"), ("n0", "n1")], False),  # a pair that has a door
        ([], False),
    ],
)
def test_a_closed_door_is_caught_where_only_its_pairs_fail(
    pairs: list[tuple[str, str]], caught: bool
) -> None:
    measure = recorder("FABRIC")
    nodes: Any = SimpleNamespace(names=NAMES, unreachable_pairs=lambda closed: pairs)
    controls.control_closed_door(nodes, "n2", measure)
    assert only_control(measure).caught is caught


CHOSEN = SimpleNamespace(ports={"n0": None}, names={"n2": "fab0"}, has_ip=True)
BROKEN: Any = SimpleNamespace(
    chosen=CHOSEN, unreachable_pairs=fail, narrow_pairs=fail, doctored=fail
)


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("closed door", lambda measure: controls.control_closed_door(BROKEN, "n2", measure)),
        ("large packets", lambda measure: controls.control_large_packets(BROKEN, measure)),
        (
            "doctored port",
            lambda measure: controls.control_doctored_port(BROKEN, "n2", "n0", measure),
        ),
    ],
)
def test_a_gang_that_fails_leaves_the_controls_of_reachability_unproven(
    name: str, run: Callable[[MemoryRecorder], None]
) -> None:
    measure = recorder("FABRIC")
    run(measure)
    found = only_control(measure)
    assert (found.name, found.caught, found.saw) == (name, None, "rank 2 does not answer")
