"""HOSTS on the interface that NCCL takes for its start."""

from __future__ import annotations

from typing import Any

import pytest

from probes.hosts.names import find_choice
from tests.support.simulated_hosts import findings, not_passed, verdicts
from tests.support.simulated_names import SimulatedNetwork, run_names


def with_interfaces(node: int = 1, chosen: str = "", **addresses: list[str]) -> SimulatedNetwork:
    """Make a network in which a node has these interfaces first, and this NCCL_SOCKET_IFNAME."""
    cluster = SimulatedNetwork()
    names = cluster.facts[node]["names"]
    more = {name: {"up": True, "addresses": texts} for name, texts in addresses.items()}
    names["interfaces"] = {**more, **names["interfaces"], **more}
    names["nccl_interfaces"] = chosen
    return cluster


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"usb0": ["169.254.3.1"]}, "usb0 (169.254.3.1) on n1: its address is link-local"),
    # NCCL prefers what looks like InfiniBand, wherever it is in the list.
    ({"ibs1": ["169.254.9.9"]}, "ibs1 (169.254.9.9) on n1: its address is link-local"),
    ({"chosen": "lo"}, "lo (127.0.0.1) on n1: it is the loopback"),
    ({"chosen": "=usb0", "usb0": ["169.254.3.1"]}, "usb0 (169.254.3.1) on n1"),
]


@pytest.mark.parametrize(("change", "says"), WRONG)
def test_an_interface_that_leads_to_no_other_node_is_named(
    change: dict[str, Any], says: str
) -> None:
    result = run_names(with_interfaces(**change))
    assert not_passed(result) == {"nccl_interface n1": "FAIL"}
    assert findings(result) == [("HOST-NCCL-INTERFACE", ["n1"])]
    assert result.findings[0].statement.startswith(f"NCCL starts over {says}")


def test_a_bridge_that_each_node_has_is_named_on_each() -> None:
    cluster = SimulatedNetwork()
    for fact in cluster.facts:
        bridge = {"br-1f3": {"up": True, "addresses": ["172.18.0.1"]}}
        fact["names"]["interfaces"] = {**bridge, **fact["names"]["interfaces"]}
    result = run_names(cluster)
    assert set(not_passed(result)) == {f"nccl_interface n{index}" for index in range(3)}
    assert "another node has this address too" in result.findings[0].statement


@pytest.mark.near_miss("HOSTS.nccl_interface")
@pytest.mark.parametrize(
    "change",
    [
        {"docker0": ["172.17.0.1"]},  # NCCL avoids it
        {"virbr0": ["169.254.1.1"]},
        {"usb0": ["169.254.3.1"], "chosen": "eth0"},
        {"usb0": ["169.254.3.1"], "chosen": "^usb,lo"},
        {"lo": ["127.0.0.1", "10.9.0.2"], "chosen": "lo"},  # a host that takes part in routing
        {"eth9": ["fe80::9"]},  # every interface of IPv6 has such an address
        {"eth0": ["2001:db8::2"], "chosen": "eth0"},
        {"ibs1": ["10.70.0.2"]},
    ],
)
def test_what_leads_to_other_nodes_is_sound(change: dict[str, Any]) -> None:
    result = run_names(with_interfaces(**change))
    assert "nccl_interface n1" not in not_passed(result)
    assert verdicts(result).keys() >= {f"nccl_interface n{index}" for index in range(3)}


def test_an_interface_that_is_down_is_not_taken() -> None:
    cluster = with_interfaces(usb0=["169.254.3.1"])
    cluster.facts[1]["names"]["interfaces"]["usb0"]["up"] = False
    assert not_passed(run_names(cluster)) == {}


@pytest.mark.parametrize("chosen", ["=eth7", "ens"])
def test_a_choice_that_no_interface_meets_proves_nothing(chosen: str) -> None:
    result = run_names(with_interfaces(chosen=chosen))
    assert not_passed(result) == {"nccl_interface n1": "UNPROVEN"}


def test_a_link_local_address_of_ipv6_is_never_chosen() -> None:
    """Each interface has one; it would hide that no other address was read."""
    interfaces = {"eth9": {"up": True, "addresses": ["fe80::9"]}}
    assert find_choice({"names": {"interfaces": interfaces}}) is None


def test_the_finding_names_the_interface_and_its_address() -> None:
    (found,) = run_names(with_interfaces(usb0=["169.254.3.1"])).findings
    assert (found.names["interface"], found.names["address"]) == ("usb0", "169.254.3.1")
