"""FABRIC's control: the forced interface must look different to all who look."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.check.recorder import Recorder
from probes.contract.contract import load as contract
from probes.fabric import controls
from probes.fabric.node_pairs import PairSearch
from probes.fabric.sweep import SweepResult
from probes.fabric.transport import TransportReport
from scaling.collectives.fault_search import FaultSearchResult
from tests.support.controls import MemoryRecorder
from tests.support.sweep_results import sweep_result

LAB = contract("lab")


LAN = SimpleNamespace(fabric="fab0", management="eth0", management_gbps=None)
RDMA = SimpleNamespace(fabric="rdma", management=None)
BOTH = SimpleNamespace(fabric="rdma", management="eth0")


def astray(road: str, said: str, busbw: float = 10.0) -> SweepResult:
    """The forced run, as the counters and the library show it."""
    word = TransportReport("NCCL's log", {f"n{at}": said for at in range(4)})
    return sweep_result(busbw, road, library=word)


def spread(*roads: str) -> SweepResult:
    """A forced run over several interfaces at once."""
    found = astray("eth0", "tcp")
    for node, sent in list(found.sent.items()):
        part = sum(sent.values()) // len(roads)
        found.sent[node] = dict.fromkeys(roads, part)
    return found


@pytest.mark.parametrize(
    ("forced", "terms", "seen"),
    [
        (astray("eth0", "eth0"), LAN, True),
        (astray("fab0", "fab0"), LAN, False),  # it went where it always goes
        (astray("eth0", "fab0"), LAN, False),  # the library does not show it
        (astray("ib0", "ib0"), LAN, False),  # another road than the one that was forced
        (astray("eth0", "tcp"), RDMA, True),
        (astray("rdma", "rdma"), RDMA, False),
        (spread(*(f"ib{at}" for at in range(8))), RDMA, True),
        (spread(*(f"ens{at}np" for at in range(10))), RDMA, True),
        (spread("eth0", "rdma"), RDMA, False),  # half of it
        (astray("eth0", "tcp"), BOTH, True),
        (spread("eth0", "eth1"), BOTH, False),  # one of them was forced
    ],
)
def test_the_forced_road_must_look_different_to_all_who_look(
    forced: SweepResult, terms: Any, seen: bool
) -> None:
    assert controls.forced_path_observed(forced, terms) is seen


def test_half_of_the_bytes_on_the_forced_road_is_not_seen_as_forced() -> None:
    half = astray("eth0", "eth0")
    half.sent["n2"] = {"eth0": half.sent["n2"]["eth0"] // 2}
    assert not controls.forced_path_observed(half, LAN)


def test_each_node_may_call_its_port_otherwise() -> None:
    found = astray("eth0", "tcp")
    for at, node in enumerate(found.sent):
        found.sent[node] = {f"ens{at}": found.sent[node]["eth0"]}
    assert controls.forced_path_observed(found, RDMA)
    seen = "byte counters: ens0, ens1, ens2, ens3; NCCL's log: tcp"
    assert seen in controls.describe_forced_run(found)


def port(mbits: int | None) -> list[dict[str, Any]]:
    """What a node says of its management port."""
    return [{"host": "n0", "interfaces": {"eth0": {"speed": mbits}}}]


SLOW = SimpleNamespace(fabric="fab0", management="eth0", management_gbps=0.2)


@pytest.mark.parametrize(
    ("forced", "straight", "terms", "speed", "slower", "says"),
    [
        (10.0, 300, RDMA, None, True, "normal run: 300 GB/s"),
        (299.0, 300, RDMA, None, False, "normal run: 300 GB/s"),  # as fast as RDMA
        (10.0, None, RDMA, None, None, "no normal run"),
        (0.024, 0.118, SLOW, None, True, "normal run: 0.118 GB/s"),
        (0.117, 0.118, SLOW, None, False, "normal run: 0.118 GB/s"),  # it cannot have gone there
        (0.024, None, SLOW, None, None, "no normal run"),
        (1.1, 11.0, LAN, 10_000, True, "normal run: 11 GB/s"),
        (10.9, 11.0, LAN, 10_000, False, "normal run: 11 GB/s"),
        (10.9, 11.0, LAN, 100_000, None, "(eth0 may be as fast, so speeds are not compared)"),
        (10.9, 11.0, LAN, None, None, "management_gbps"),
    ],
)
def test_a_slower_road_must_show_less_bandwidth(
    forced: float,
    straight: float | None,
    terms: Any,
    speed: int | None,
    slower: bool | None,
    says: str,
) -> None:
    usual = sweep_result(straight, terms.fabric) if straight else None
    found, said = controls.forced_run_is_slower(
        astray("eth0", "eth0", forced), usual, terms, port(speed)
    )
    assert found is slower
    assert says in said


def link(device: str) -> PairSearch:
    """Two nodes that met over this device."""
    sound = FaultSearchResult({}, 0.0, {}, [], 1, 0, "")
    return PairSearch(sound, sound, {}, {}, {("n0", "n1"): {device: 1 << 20}})


class ChartRecorder(MemoryRecorder):
    """Recorder that also keeps the charts' series."""

    charts: dict[str, Any]

    def series(self, name: str, values: Any) -> None:
        self.charts[name] = values


def control(
    measure: Recorder, monkeypatch: pytest.MonkeyPatch, forced: SweepResult, pair: str = "eth0"
) -> dict[str, Any]:
    """The controls of the lab's forced run, by name."""
    monkeypatch.setattr(controls, "run_off_fabric", lambda *_: (forced, link(pair)))
    word = TransportReport("gloo", {f"n{at}": "fab0" for at in range(4)})
    logs: Any = SimpleNamespace(cluster=SimpleNamespace(on_gpu=False, facts=port(None)))
    rig: Any = SimpleNamespace(terms=LAB.cluster, measure=measure, watch=True)
    controls.control_off_fabric(rig, sweep_result(0.118, "fab0", library=word), logs)
    return {one.name: one for one in measure.finish("finished", 1.0).controls}


def test_the_control_is_caught_where_all_of_it_shows(
    recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = control(recorder(), monkeypatch, astray("eth0", "eth0", 0.024))
    forced = seen["wrong network"]
    assert forced.caught
    assert "normal run: 0.118 GB/s" in forced.saw
    roads = ("network", "fabric_share", "share_on_other_networks", "links_on_other_networks")
    assert forced.proves == ["busbw", *roads]
    assert seen["other report"].proves == ["agreeing_sources"]


@pytest.mark.parametrize(
    ("forced", "pair"),
    [
        (astray("eth0", "eth0", 0.117), "eth0"),  # as fast as the fabric
        (astray("fab0", "fab0", 0.024), "eth0"),
        (astray("eth0", "fab0", 0.024), "eth0"),
        (astray("eth0", "eth0", 0.024), "fab0"),  # the pair did not leave it
    ],
)
def test_the_control_is_not_caught_where_one_of_them_does_not_show_it(
    recorder: Callable[..., Recorder],
    monkeypatch: pytest.MonkeyPatch,
    forced: SweepResult,
    pair: str,
) -> None:
    assert control(recorder(), monkeypatch, forced, pair)["wrong network"].caught is False


@pytest.mark.parametrize("road", ["eth0", "fab0"])
def test_the_chart_shows_the_forced_sweep_only_if_it_left_the_fabric(
    monkeypatch: pytest.MonkeyPatch, road: str
) -> None:
    measure = ChartRecorder(LAB, "p", "FABRIC")
    measure.charts = {}
    control(measure, monkeypatch, astray(road, road, 0.024))
    if road == "fab0":
        assert measure.charts == {}
        return
    chart = measure.charts["busbw"]
    assert chart["line_rate"] == LAB.cluster.line_gbytes_per_s
    assert chart["judged"] == {"sizes": [1 << 20], "busbw": 0.118}
    assert chart["control"] == {"sizes": [1 << 20], "busbw": [0.024]}
    assert chart["busbw"] == [0.118]


class RecordedGang:
    """A gang that is only there, and what is done with it."""

    def __init__(self, environment: dict[str, str | None] | None, done: list[Any]) -> None:
        self.environment, self.done = environment, done

    def __enter__(self) -> RecordedGang:
        self.done.append(("entered", self.environment))
        return self

    def __exit__(self, *_: object) -> None:
        self.done.append(("left", self.environment))

    def remove(self) -> None:
        self.done.append(("removed", self.environment))


@pytest.mark.parametrize("on_gpu", [True, False])
def test_nccl_gets_another_environment_in_new_processes(
    monkeypatch: pytest.MonkeyPatch, on_gpu: bool
) -> None:
    """NCCL reads its environment once in a process; gloo reads it at each rendezvous."""
    done: list[Any] = []

    def swept(gang: RecordedGang, *given: Any, **_: Any) -> str:
        environment = given[3] if len(given) > 3 else None
        done.append(("swept", {**(gang.environment or {}), **(environment or {})}))
        return "a sweep"

    def met(gang: RecordedGang, *_: Any, environment: Any = None) -> str:
        done.append(("met", {**(gang.environment or {}), **(environment or {})}))
        return "a pair"

    monkeypatch.setattr(controls.sweep, "run_sweep", swept)
    monkeypatch.setattr(controls, "run_few_pairs", met)
    monkeypatch.setattr(controls, "first_rail", lambda *_: None)
    monkeypatch.setattr(controls.sweep, "gang_env", lambda _: {"NCCL_DEBUG": "INFO"})
    cluster = SimpleNamespace(
        on_gpu=on_gpu, node_names={}, gang=lambda environment: RecordedGang(environment, done)
    )
    rig: Any = SimpleNamespace(terms=LAB.cluster, gang=RecordedGang(None, done))
    assert controls.run_off_fabric(rig, cast(Any, SimpleNamespace(cluster=cluster))) == (
        "a sweep",
        "a pair",
    )
    forced = {
        "NCCL_DEBUG": "INFO",
        "NCCL_NET": "Socket",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "=eth0",
    }
    assert {kind: told for kind, told in done if kind in ("swept", "met")} == {
        "swept": forced,
        "met": forced,
    }
    expected = ["removed", "entered", "swept", "met", "left"] if on_gpu else ["swept", "met"]
    assert [kind for kind, _ in done] == expected


def test_a_witness_that_says_what_the_bytes_say_is_no_control(
    recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = control(recorder(), monkeypatch, astray("fab0", "fab0", 0.024))
    assert seen["other report"].caught is False


def test_where_nothing_can_be_forced_nothing_is_caught(recorder: Callable[..., Recorder]) -> None:
    terms = LAB.cluster.model_copy(update={"management": None})
    measure, logs = recorder(), SimpleNamespace(cluster=SimpleNamespace(on_gpu=False))
    rig: Any = SimpleNamespace(terms=terms, measure=measure)
    controls.control_off_fabric(rig, None, cast(Any, logs))
    (missed,) = measure.finish("finished", 1.0).controls
    assert missed.caught is None
    assert "the contract names no interface outside the fabric" in missed.saw
