"""What the ports of a node counted: carrier, errors, and ports that say nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probes.fabric import links
from probes.fabric.links import LinkWatch, fabric_ports, node_growth, read_all


def port(changes: int | None = 0, rx: int | None = 0, **more: Any) -> dict[str, Any]:
    """One port after a million packets each way, `rx` of them wrong; None: it does not say."""
    packets = {"sends": 10**6, "receives": 10**6}
    errors = {"sends": 0, "receives": rx}
    return {
        "changes": changes,
        "packets": packets,
        "errors": errors,
        "lower": [],
        "notes": {},
        **more,
    }


ZERO = {"sends": 0, "receives": 0}


def start(**ports: dict[str, Any]) -> dict[str, Any]:
    """The reading before: nothing was counted, but one carrier change of an hour ago."""
    return {
        "ports": {
            name: {**one, "changes": one["changes"] and 1, "packets": ZERO, "errors": ZERO}
            for name, one in ports.items()
        },
        "tcp": {},
    }


def grow(fabric: str = "fab0", **ports: dict[str, Any]) -> Any:
    before = start(**ports)
    for one in ports.values():
        one["changes"] = one["changes"] and one["changes"] + 1
    return node_growth(before, {"ports": ports, "tcp": {}}, fabric)


def test_a_link_that_went_away_is_unstable() -> None:
    assert grow(fab0=port(changes=4), eth0=port(changes=2)).unstable == {"fab0": 4}


def test_a_carrier_change_of_an_hour_ago_is_none() -> None:
    before = {"ports": {"fab0": port(changes=2)}, "tcp": {}}
    found = node_growth(before, {"ports": {"fab0": port(changes=2)}, "tcp": {}}, "fab0")
    assert found
    assert found.changes == {"fab0": 0}
    assert found.unstable == {}


def test_ports_below_a_bond_are_watched_too() -> None:
    found = grow("bond0", bond0=port(lower=["eth1", "eth2"]), eth1=port(), eth2=port(changes=2))
    assert found.unstable == {"eth2": 2}


def test_rdma_is_all_of_its_ports_and_their_interfaces() -> None:
    ports = {"mlx5_0/1": port(lower=["eth1"]), "eth1": port(), "eth0": port()}
    assert fabric_ports(ports, "rdma") == ["mlx5_0/1", "eth1"]
    assert fabric_ports(ports, "fab0") == []


def test_errors_have_a_direction_and_a_share() -> None:
    found = grow(fab0=port(rx=300)).errors
    assert (found.way, found.port, found.errors, found.share) == ("receives", "fab0", 300, 3e-4)
    assert grow(fab0=port()).errors.share == 0.0


def test_a_port_that_counts_no_packets_hides_no_errors_of_another() -> None:
    silent = {"sends": None, "receives": None}
    found = grow("bond0", bond0=port(lower=["eth1"], packets=silent), eth1=port(rx=300)).errors
    assert (found.way, found.port, found.errors, found.packets) == ("receives", "eth1", 300, 10**6)


def test_a_control_adds_lost_links_and_errors_to_what_was_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def readings() -> dict[str, Any]:
        few = {"sends": 10, "receives": None}
        return {"fab0": port(rx=7), "fab1": port(None, None, packets=few)}

    monkeypatch.setattr(links.counters, "read_ports", readings)
    assert read_all()["ports"] == read_all(False)["ports"] == readings()
    told = read_all(True)["ports"]
    assert [one["changes"] for one in told.values()] == [2, None]
    for way, count in readings()["fab0"]["errors"].items():
        assert told["fab0"]["errors"][way] > count + 10**6 // 100
    assert told["fab1"]["errors"]["sends"] > 0  # also where hardly a packet was sent
    assert told["fab1"]["errors"]["receives"] is None


@pytest.mark.parametrize("fabric", ["fab0", "rdma"])
def test_what_no_port_says_is_unknown(fabric: str) -> None:
    found = grow(fabric, fab0=port(changes=None, rx=None))
    if fabric == "rdma":
        assert found is None
    else:
        assert found.changes == {"fab0": None}
        assert found.errors.way == "sends"  # the other direction is unknown


def test_a_roce_port_that_counts_no_changes_is_watched_by_its_interface() -> None:
    found = grow("rdma", **{"bnxt_re0/1": port(None, lower=["eth1"]), "eth1": port(changes=2)})
    assert found.changes == {"eth1": 2}
    silent = grow("rdma", **{"bnxt_re0/1": port(None, lower=["eth1"]), "eth1": port(None)})
    assert silent.changes == {"bnxt_re0/1": None, "eth1": None}


def test_a_counter_that_was_reset_is_unknown() -> None:
    before = {"ports": {"fab0": port(changes=5, rx=7)}, "tcp": {}}
    found = node_growth(before, {"ports": {"fab0": port(changes=1, rx=0)}, "tcp": {}}, "fab0")
    assert found
    assert found.changes == {"fab0": None}
    assert found.errors
    assert found.errors.way == "sends"


def test_a_node_that_does_not_answer_is_unknown() -> None:
    answers = iter(
        [{"id0": start(fab0=port()), "id1": start(fab0=port())}, {"id0": start(fab0=port())}]
    )
    cluster: Any = SimpleNamespace(
        node_names={"id0": "n0", "id1": "n1"}, on_each_node=lambda function, each: next(answers)
    )
    grown = LinkWatch(cluster).growth({"n0": "fab0", "n1": "fab0", "n2": "fab0"})
    assert grown["n0"]
    assert (grown["n1"], grown["n2"]) == (None, None)


def test_a_control_lets_one_node_report_more_than_it_counted() -> None:
    asked: list[dict[str, bool]] = []

    def on_each_node(function: Any, each: dict[str, bool]) -> dict[str, Any]:
        assert function is read_all
        asked.append(each)
        return {id: start(fab0=port()) for id in each}

    cluster: Any = SimpleNamespace(node_names={"a": "n0", "b": "n1"}, on_each_node=on_each_node)
    LinkWatch(cluster).growth({"n0": "fab0", "n1": "fab0"}, "n1")
    assert asked == [{"a": False, "b": False}, {"a": False, "b": True}]


def grown_port(packets: int, errors: int, **more: Any) -> dict[str, Any]:
    """A port that so far received these packets and errors."""
    return port(rx=errors, **more) | {"packets": {"receives": packets, "sends": packets}}


def test_the_worst_of_several_ports_is_judged_by_itself() -> None:
    names = [f"mlx5_{i}/1" for i in range(8)]
    zero = {name: grown_port(0, 0) for name in names}
    ports = {name: grown_port(10**6, 0) for name in names}
    ports[names[3]] = grown_port(10**6, 720)
    grown = node_growth({"ports": zero, "tcp": {}}, {"ports": ports, "tcp": {}}, "rdma")
    assert grown is not None
    assert grown.errors is not None
    assert (grown.errors.port, grown.errors.share) == (names[3], 720 / 10**6)


def test_an_interface_is_judged_with_the_packets_of_rdma_above_it() -> None:
    """It counts the errors of RDMA's packets too, but only its own packets."""
    zero = {"mlx5_0/1": grown_port(0, 0, lower=["ens1"]), "ens1": grown_port(0, 0)}
    ports = {"mlx5_0/1": grown_port(10**8, 0, lower=["ens1"]), "ens1": grown_port(20_000, 9)}
    grown = node_growth({"ports": zero, "tcp": {}}, {"ports": ports, "tcp": {}}, "rdma")
    assert grown is not None
    assert grown.errors is not None
    assert grown.errors.share < 1e-7
