"""Uneven rails, on a synthetic sysfs: no InfiniBand is needed to see that a rail was idle."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster.network_facts import count_once
from probes.fabric.rails import (
    bytes_by_interface,
    count_installed,
    find_idle_rails,
    rail_growth,
    rail_shares,
    read_rails,
)

RATE = "400 Gb/sec (4X NDR)"


def port(root: Path, device: str, sent: int, rate: str = RATE, state: str = "4: ACTIVE") -> None:
    """SYNTHETIC: one port as the kernel's sysfs-class-infiniband describes it."""
    folder = root / device / "ports" / "1"
    (folder / "counters").mkdir(parents=True, exist_ok=True)
    (folder / "rate").write_text(rate + "\n")
    (folder / "state").write_text(state + "\n")
    (folder / "counters" / "port_xmit_data").write_text(f"{sent // 4}\n")


def grown(root: Path, sent: dict[str, int]) -> dict[str, float]:
    """Shares after each of eight rails sent so many bytes more."""
    for number in range(8):
        port(root, f"mlx5_{number}", 1 << 30)
    before = read_rails(str(root))
    for device, count in sent.items():
        port(root, device, (1 << 30) + count)
    return rail_shares(rail_growth(before, read_rails(str(root))), 8)


def test_even_rails_are_no_finding(tmp_path: Path) -> None:
    parts = grown(tmp_path, {f"mlx5_{number}": 1_000_000 + number * 4000 for number in range(8)})
    assert len(parts) == 8
    assert all(0.95 < part < 1.05 for part in parts.values())
    assert find_idle_rails({"n0": parts}, 0.7) == []


def test_an_idle_rail_is_named(tmp_path: Path) -> None:
    parts = grown(tmp_path, {f"mlx5_{number}": 1_000_000 for number in range(7)})
    (found,) = find_idle_rails({"n0": {"mlx5_0/1": 1.0}, "n1": parts}, 0.7)
    assert found.code == "FAB-PARTIAL-RAILS"
    assert found.suspects == ["n1", "mlx5_7/1"]
    assert "mlx5_7/1 0 %" in found.statement


def test_the_rail_that_carried_least_is_the_one_to_look_at() -> None:
    shares = {"mlx5_0/1": 0.5, "mlx5_1/1": 0.1, "mlx5_2/1": 1.2}
    (found,) = find_idle_rails({"n0": shares}, 0.7)
    assert found.suspects == ["n0", "mlx5_0/1", "mlx5_1/1"]
    assert found.names["device"] == "mlx5_1"
    assert rail_shares({"mlx5_0/1": 1, "mlx5_1/1": 0}, 2) == {"mlx5_0/1": 2.0, "mlx5_1/1": 0.0}


def test_half_the_rails_idle(tmp_path: Path) -> None:
    parts = grown(tmp_path, {f"mlx5_{number}": 1_000_000 for number in range(4)})
    (found,) = find_idle_rails({"n1": parts}, 0.7)
    assert found.suspects == ["n1", "mlx5_4/1", "mlx5_5/1", "mlx5_6/1", "mlx5_7/1"]


def test_ports_for_storage_and_ports_that_are_down_are_no_rails(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", 0)
    port(tmp_path, "mlx5_1", 0, rate="100 Gb/sec (4X EDR)")
    port(tmp_path, "mlx5_2", 0, state="1: DOWN")
    assert list(read_rails(str(tmp_path))) == ["mlx5_0/1"]


NAMES = ("mlx5_0", "mlx5_1", "mlx5_10", "mlx5_8")


@pytest.mark.parametrize(
    ("hca", "used"),
    [
        ("", NAMES),
        ("=mlx5_0,mlx5_1", ("mlx5_0", "mlx5_1")),
        ("mlx5_1", ("mlx5_1", "mlx5_10")),  # a prefix
        ("^mlx5_8", ("mlx5_0", "mlx5_1", "mlx5_10")),
        ("^=mlx5_1", ("mlx5_0", "mlx5_10", "mlx5_8")),
        ("=mlx5_0:1,mlx5_8:2", ("mlx5_0",)),  # of a device one port
        ("^mlx5_8:1,mlx5_0:2", ("mlx5_0", "mlx5_1", "mlx5_10")),
        ("=mlx5_7", ()),
    ],
)
def test_ports_that_nccl_is_told_not_to_use_are_no_rails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hca: str, used: tuple[str, ...]
) -> None:
    for device in NAMES:
        port(tmp_path, device, 0)
    conf = tmp_path / "nccl.conf"
    conf.write_text(f"NCCL_IB_HCA={hca}\n" if hca else "")
    for variable, value in (("NCCL_IB_HCA", hca), ("NCCL_CONF_FILE", str(conf))):
        with monkeypatch.context() as told:
            told.setenv(variable, value)
            assert list(read_rails(str(tmp_path))) == [f"{device}/1" for device in used]


def test_a_rail_that_goes_down_meanwhile_has_carried_nothing(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", 0)
    port(tmp_path, "mlx5_1", 0)
    before = read_rails(str(tmp_path))
    port(tmp_path, "mlx5_0", 4000)
    port(tmp_path, "mlx5_1", 4000, state="1: DOWN")
    sent = rail_growth(before, read_rails(str(tmp_path)))
    assert rail_shares(sent, 2) == {"mlx5_0/1": 2.0, "mlx5_1/1": 0.0}


def test_storage_ports_as_fast_as_rails_are_left_out_where_the_rails_are_agreed() -> None:
    sent = {f"mlx5_{number}/1": 1000 for number in range(8)} | {"mlx5_8/1": 0, "mlx5_9/1": 0}
    assert find_idle_rails({"n0": rail_shares(sent, 8)}, 0.7) == []
    assert find_idle_rails({"n0": rail_shares(sent, 10)}, 0.7)


def test_a_byte_over_a_bond_or_a_vlan_counts_once(tmp_path: Path) -> None:
    for device in ("bond0", "eth0", "eth1", "eth2", "eth2.100"):
        (tmp_path / device).mkdir()
    for port in ("eth0", "eth1"):
        (tmp_path / port / "master").symlink_to("../bond0")
    (tmp_path / "eth2" / "upper_eth2.100").symlink_to("../eth2.100")
    sent = {"bond0": 100, "eth0": 50, "eth1": 50, "eth2": 70, "eth2.100": 60}
    assert count_once(sent, tmp_path) == {"bond0": 100, "eth2": 10, "eth2.100": 60}


def test_efa_counts_in_its_own_file(tmp_path: Path) -> None:
    port(tmp_path, "efa_0", 0)
    folder = tmp_path / "efa_0" / "ports" / "1"
    (folder / "counters" / "port_xmit_data").unlink()
    (folder / "hw_counters").mkdir()
    (folder / "hw_counters" / "tx_bytes").write_text("12345\n")
    assert read_rails(str(tmp_path))["efa_0/1"]["sent"] == 12345


def test_a_rail_whose_bytes_cannot_be_read_leaves_the_shares_of_all_unknown() -> None:
    """It may have sent the most."""
    assert rail_shares({"mlx5_0/1": 1, "mlx5_1/1": None}, 2) == {}


def test_a_rail_with_just_the_least_share_is_not_idle() -> None:
    assert find_idle_rails({"n0": {"mlx5_0/1": 1.3, "mlx5_1/1": 0.7}}, 0.7) == []


@pytest.mark.parametrize(
    ("fabric", "hca", "installed"),
    [("rdma", "", 2), ("rdma", "=mlx5_0", 1), ("fab0", "", None), (None, "", None)],
)
def test_the_rails_of_the_best_node_are_counted_where_rdma_is_the_fabric(
    fabric: str | None, hca: str, installed: int | None
) -> None:
    active = {"port": "1", "link_layer": "InfiniBand", "rate": RATE, "state": "4: ACTIVE"}
    ports = [{**active, "device": f"mlx5_{number}"} for number in range(2)]
    facts = [{"node": f"id{at}", "name": f"n{at}", "rdma": ports[: 2 - at]} for at in range(2)]
    hcas = dict.fromkeys(("id0", "id1"), hca)
    cluster: Any = SimpleNamespace(facts=facts, on_each_node=lambda function: hcas)
    assert count_installed(cluster, fabric, ["n0", "n1"]) == installed
    assert count_installed(cluster, fabric, ["n1"]) == (1 if installed else None)  # of another kind


@pytest.mark.parametrize("root", ["/nonexistent", "/proc/self"])
def test_without_rdma_there_are_no_rails(root: str) -> None:
    assert read_rails(root) == {}
    assert rail_shares(rail_growth({}, {}), 8) == {}


@pytest.mark.parametrize(
    ("fabric", "sent"),
    [
        ("fab0,fab1", {"fab0": 5, "fab1": None}),
        ("fab0,fab9,fab1", {"fab0": 5, "fab1": None}),  # fab9 is not on this node
        ("fab0", {}),
        ("fab9", {}),
        (None, {}),
    ],
)
def test_interfaces_of_a_fabric_are_counted_one_by_one_where_it_has_several(
    fabric: str | None, sent: dict[str, int | None]
) -> None:
    assert bytes_by_interface({"eth0": 7, "fab0": 5, "fab1": None}, fabric) == sent
