"""FABRIC's control of the path: what it forces, and which measures it is then for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probes.contract.contract import load as contract
from probes.fabric import controls as network
from probes.fabric.node_pairs import PairSearch
from probes.fabric.sweep import SweepResult
from probes.fabric.transport import TransportReport
from reference_trainer.rank_environment import LEADING
from reports.record import Control
from scaling.collectives.fault_search import FaultSearchResult
from tests.support.controls import recorder
from tests.support.sweep_results import sweep_result

LAB = contract("lab")


def forced_run(busbw: float, device: str = "eth0") -> SweepResult:
    """Make a run that left over this device, as its counters and the library show it."""
    library = TransportReport("NCCL's log", {f"n{at}": device for at in range(4)})
    return sweep_result(busbw, device, library=library)


def control_path(
    monkeypatch: pytest.MonkeyPatch, forced: SweepResult, normal: SweepResult | None, **more: Any
) -> Control:
    """Run the control of the path on a cluster of GPUs, and return its own control."""
    sound = FaultSearchResult({}, 0.0, {}, [], 1, 0, "")
    pair = PairSearch(sound, sound, {}, {}, {("n0", "n1"): {"eth0": 1 << 20}})
    monkeypatch.setattr(network, "run_off_fabric", lambda *_: (forced, pair))
    watch = more.pop("watch", True)
    terms, measure = LAB.cluster.model_copy(update=more), recorder("FABRIC")
    rig: Any = SimpleNamespace(terms=terms, measure=measure, watch=watch)
    logs: Any = SimpleNamespace(cluster=SimpleNamespace(on_gpu=True, facts=[]))
    network.control_off_fabric(rig, normal, logs)
    controls = measure.result("finished", 1.0).controls
    return next(one for one in controls if one.name == "wrong network")


@pytest.mark.parametrize(("fabric", "is_forced"), [("rdma", True), ("fab0", False)])
def test_without_another_interface_only_rdma_can_be_left(
    monkeypatch: pytest.MonkeyPatch, fabric: str, is_forced: bool
) -> None:
    found = control_path(monkeypatch, forced_run(0.02), None, fabric=fabric, management=None)
    assert (found.caught is not None) is is_forced
    assert found.fault == "all-reduce is forced onto sockets"


@pytest.mark.parametrize(
    ("busbw", "normal"),
    [
        (0.024, None),  # too little for the lab's limit, and nothing to compare it with
        (0.095, 0.118),  # less than on the fabric, and enough for the limit
    ],
)
def test_a_bandwidth_that_the_forced_path_may_keep_is_not_what_the_control_is_for(
    monkeypatch: pytest.MonkeyPatch, busbw: float, normal: float | None
) -> None:
    usual = forced_run(normal, "fab0") if normal else None
    found = control_path(monkeypatch, forced_run(busbw), usual)
    assert found.caught
    assert found.proves == [
        "network",
        "fabric_share",
        "share_on_other_networks",
        "links_on_other_networks",
    ]


@pytest.mark.parametrize(("forced", "caught"), [(0.024, True), (0.095, False)])
def test_a_limit_that_sockets_keep_proves_nothing_of_rdma(
    monkeypatch: pytest.MonkeyPatch, forced: float, caught: bool
) -> None:
    """The lab asks for 0.09 GB/s: RDMA of any speed is faster than sockets."""
    more: dict[str, Any] = {"fabric": "rdma", "management": None}
    monkeypatch.setattr(network, "unjudged_off_fabric", lost_log(network.unjudged_off_fabric))
    found = control_path(monkeypatch, forced_run(forced), forced_run(10.0, "rdma"), **more)
    assert "busbw" in [one.name for one in found.observed]
    assert found.caught is caught


def lost_log(unjudged: Any) -> Any:
    """Leave out what a made-up run has none of: NCCL's log."""
    return lambda *given: unjudged(*given) | {"log_errors"}


def test_where_links_are_not_judged_the_control_is_not_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Raylets that share one host have no links between them."""
    found = control_path(monkeypatch, forced_run(0.024), forced_run(0.118, "fab0"), watch=None)
    assert found.caught
    assert found.proves == ["busbw", "network", "fabric_share", "share_on_other_networks"]


def test_nccl_that_leaves_rdma_uses_the_network_of_the_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NCCL picks any interface by itself, and one that only some nodes share is no path."""
    given: list[dict[str, str]] = []

    class Gang:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...
        def remove(self) -> None: ...

    def gang(environment: dict[str, str]) -> Gang:
        given.append(environment)
        return Gang()

    for name in ("run_few_pairs", "first_rail"):
        monkeypatch.setattr(network, name, lambda *_, **__: None)
    monkeypatch.setattr(network.sweep, "run_sweep", lambda *_, **__: None)
    monkeypatch.setattr(network.sweep, "gang_env", lambda _: {})
    cluster = SimpleNamespace(on_gpu=True, node_names={}, gang=gang)
    terms = LAB.cluster.model_copy(update={"fabric": "rdma", "management": None})
    rig: Any = SimpleNamespace(terms=terms, gang=Gang())
    logs: Any = SimpleNamespace(cluster=cluster)
    network.run_off_fabric(rig, logs)
    assert given == [{"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": LEADING}]


def test_a_path_whose_bytes_cannot_be_read_is_not_seen() -> None:
    run = forced_run(0.024)
    run.sent["n3"] = {"eth0": None}
    assert not network.forced_path_observed(run, LAB.cluster)


def test_rdma_of_a_slow_port_is_compared_too() -> None:
    """Sockets never reach RDMA's bandwidth, however little that is."""
    terms = LAB.cluster.model_copy(update={"fabric": "rdma"})
    found, _ = network.forced_run_is_slower(forced_run(0.5), forced_run(1.0, "rdma"), terms, [])
    assert found is True


def test_a_normal_run_that_never_came_to_the_size_shows_no_slower_path() -> None:
    short = sweep_result(0.118, "fab0", size=1 << 19)
    found, note = network.forced_run_is_slower(forced_run(0.024), short, LAB.cluster, [])
    assert (found, note) == (False, "no comparison: the normal run did not measure 1 MiB")
