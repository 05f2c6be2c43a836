"""FABRIC's control: the forced interface must look different to all who look."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from probes.acceptance.contract import load as contract
from probes.acceptance.measure import Recorder
from probes.fabric import controls
from probes.fabric.library_report import TransportReport
from probes.fabric.sweep import SweepResult
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
    assert "bytes on ens0, ens1, ens2, ens3, NCCL's log: tcp" in controls.describe_forced_run(found)


def port(mbits: int | None) -> list[dict[str, Any]]:
    """What a node says of its management port."""
    return [{"host": "n0", "interfaces": {"eth0": {"speed": mbits}}}]


SLOW = SimpleNamespace(fabric="fab0", management="eth0", management_gbps=0.2)


@pytest.mark.parametrize(
    ("forced", "straight", "terms", "speed", "slower", "says"),
    [
        (10.0, 300, RDMA, None, True, "straight 300.000 GB/s"),
        (299.0, 300, RDMA, None, False, "straight 300.000 GB/s"),  # as fast as RDMA
        (10.0, None, RDMA, None, False, "no straight run"),
        (0.024, 0.118, SLOW, None, True, "straight 0.118 GB/s"),
        (0.117, 0.118, SLOW, None, False, "straight 0.118 GB/s"),  # it cannot have gone there
        (0.024, None, SLOW, None, False, "no straight run"),
        (1.1, 11.0, LAN, 10_000, True, "straight 11.000 GB/s"),
        (10.9, 11.0, LAN, 10_000, False, "straight 11.000 GB/s"),
        (10.9, 11.0, LAN, 100_000, None, "eth0 may carry too: bandwidth is not compared"),
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


class Cluster:
    """Stands in for one without GPUs: what is forced is asked of the gang that there is."""

    on_gpu, node_names, facts = False, {}, port(None)


@pytest.mark.parametrize(("forced", "seen"), [(0.024, True), (0.117, False)])
def test_the_control_is_caught_where_all_of_it_shows(
    recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch, forced: float, seen: bool
) -> None:
    run = astray("eth0", "eth0", forced)
    monkeypatch.setattr(controls, "run_sweep", lambda *_, **__: run)
    monkeypatch.setattr(controls, "gang_env", lambda *_: {})
    measure = recorder()
    usual = sweep_result(0.118, "fab0")
    logs: Any = SimpleNamespace(cluster=Cluster)
    controls.control_off_fabric(None, LAB.cluster, usual, logs, measure)
    (control,) = measure.finish("finished", 1.0).controls
    assert control.caught is seen
    assert "straight 0.118 GB/s" in control.saw
