"""Limits that follow from what the cluster says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from probes.acceptance.derived_limits import detect_fabric


def host(env: dict[str, str], state: str | None = None, ports: str = "lo ib0") -> dict[str, Any]:
    """A node's facts; of its interfaces those with a `-` at the end have no address."""
    rdma = [{"state": state, "rate": "400 Gb/sec", "device": "m", "port": "1"}] if state else []
    found = {
        name.rstrip("-"): {"address": None if "-" in name else "10.0.0.1"} for name in ports.split()
    }
    return {"environment": env, "rdma": rdma, "interfaces": found}


def test_the_fabric_is_derived_or_unknown() -> None:
    assert detect_fabric([host({}, "4: ACTIVE"), host({}, "4: ACTIVE")]) == "rdma"
    assert detect_fabric([host({}, "4: ACTIVE"), host({}, "1: DOWN")]) is None
    assert detect_fabric([host({"NCCL_SOCKET_IFNAME": "=ib0"})] * 2) == "ib0"
    assert detect_fabric([host({"GLOO_SOCKET_IFNAME": "ib0"}), host({})]) is None
    assert detect_fabric([]) is None


@pytest.mark.parametrize(
    ("told", "ports", "fabric"),
    [
        ("NCCL=eth", ["lo eth0", "lo eth0"], "eth0"),  # a prefix
        ("NCCL=eth", ["lo eth0 eth1", "lo eth0 eth1"], None),  # NCCL uses both
        ("NCCL=eth", ["lo eth0", "lo eth1"], None),
        ("NCCL==eth", ["lo eth0", "lo eth0"], None),
        ("NCCL=^lo,docker0", ["lo docker0 ens3", "lo ens3"], "ens3"),
        ("NCCL=^lo,docker0", ["lo docker0 ens3 virbr0", "lo ens3"], None),
        ("NCCL=^=lo", ["lo ens3 ens4-", "lo ens3 ens4-"], "ens3"),  # of a bond, say
        ("NCCL=ens", ["lo- ens3-", "lo- ens3-"], "ens3"),  # IPv6 alone
        ("NCCL==ib0,ib1", ["lo ib0", "lo ib0"], "ib0"),
        ("NCCL=gone", ["lo eth0", "lo eth0"], None),
        ("GLOO=eth0", ["lo eth0 eth01", "lo eth0 eth01"], "eth0"),
        ("GLOO=eth", ["lo eth0", "lo eth0"], None),  # torch takes whole names
    ],
)
def test_the_fabric_is_the_interface_that_the_environment_stands_for(
    told: str, ports: list[str], fabric: str | None
) -> None:
    library, _, value = told.partition("=")
    environment = {f"{library}_SOCKET_IFNAME": value}
    assert detect_fabric([host(environment, ports=one) for one in ports]) == fabric
