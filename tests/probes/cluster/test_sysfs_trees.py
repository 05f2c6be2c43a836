"""Bytes and rails of machines with other fabrics than ours: SYNTHETIC trees of /sys/class."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.cluster.network_facts import UNKNOWN, counter_growth, main_device, read_counters
from probes.cluster.node_facts import rdma_ports
from probes.fabric.rails import rail_growth, rail_shares, read_rails
from scaling.collectives.line_rate import active_rails
from tests.support.sysfs_trees import GIB, TREES, Port, Tree

# Bytes over RDMA, and how many active rails there are; None: unknown.
EXPECTED: dict[str, tuple[int | None, int]] = {
    "mlx5 InfiniBand": (8 * GIB, 8),
    "mlx5 RoCE": (8 * GIB, 8),
    "virtual functions": (None, 8),
    "irdma": (None, 2),
    "EFA": (32 * GIB, 32),
    "bnxt_re": (8 * GIB, 8),
    "DGX, storage as fast": (10 * GIB, 10),
    "DGX, storage slower": (8 * GIB + 2 * 4096, 8),
    "one port masked": (None, 3),
    "one port down, without a counter": (GIB, 1),
    "bond": (GIB, 1),
}


@pytest.mark.parametrize("name", TREES)
def test_what_a_machine_sent_and_over_how_many_rails(tmp_path: Path, name: str) -> None:
    net, sys = TREES[name].write(tmp_path)
    rdma, rails = EXPECTED[name]
    assert read_counters(net, sys)["rdma"] == rdma
    assert len(active_rails(rdma_ports(f"{sys}/infiniband"))) == rails


def test_the_ports_of_a_bond_are_counted_once(tmp_path: Path) -> None:
    net, sys = TREES["bond"].write(tmp_path)
    assert read_counters(net, sys) == {"bond0": 6_000, "rdma": GIB}
    (port,) = rdma_ports(f"{sys}/infiniband")
    assert port["netdev"] == "bond0"


@pytest.mark.parametrize(
    ("of_gids", "of_card", "named"),
    [
        ("", ["eth4"], "eth4"),
        ("", ["eth4", "eth5"], ""),  # which of them is not known
        ("", [], ""),
        ("bond0", ["eth4", "eth5"], "bond0"),
    ],
)
def test_a_port_has_the_device_of_its_gids_or_the_only_one_of_its_card(
    tmp_path: Path, of_gids: str, of_card: list[str], named: str
) -> None:
    _, sys = Tree((Port("mlx5_0", netdev=of_gids),)).write(tmp_path)
    for name in of_card:
        Path(sys, "infiniband", "mlx5_0", "device", "net", name).mkdir(parents=True)
    (port,) = rdma_ports(f"{sys}/infiniband")
    assert port["netdev"] == named


def test_a_machine_without_rdma_has_no_rdma(tmp_path: Path) -> None:
    net, sys = Tree((), {"eth0": 7}).write(tmp_path)
    assert read_counters(net, sys) == {"eth0": 7}


@pytest.mark.parametrize("name", ["virtual functions", "one port masked"])
def test_a_counter_that_cannot_be_read_is_unknown_and_no_zero(tmp_path: Path, name: str) -> None:
    """Else all that was sent over RDMA would be taken for nothing, and eth0 for the road."""
    counters = read_counters(*TREES[name].write(tmp_path))
    grown = counter_growth({**counters, "eth0": 0}, counters)
    assert grown == {"eth0": 2_000_000, "rdma": None}
    assert main_device(grown) == UNKNOWN
    assert main_device(grown, expected=8 * GIB) == UNKNOWN
    # What another device carried is known all the same.
    assert main_device(grown, expected=2_000_000) == "eth0"


def test_shares_of_rails_are_not_told_where_one_tells_nothing(tmp_path: Path) -> None:
    _, sys = TREES["one port masked"].write(tmp_path)
    rails = read_rails(f"{sys}/infiniband")
    assert {name: rail["sent"] for name, rail in rails.items()} == {
        "mlx5_0/1": GIB,
        "mlx5_1/1": None,
        "mlx5_2/1": GIB,
    }
    grown = rail_growth({name: {"sent": 0} for name in rails}, rails)
    assert grown == {"mlx5_0/1": GIB, "mlx5_1/1": None, "mlx5_2/1": GIB}
    assert rail_shares(grown, 3) == {}


def test_a_rail_that_was_not_read_before_has_no_growth(tmp_path: Path) -> None:
    assert rail_growth({"mlx5_0/1": {"sent": None}}, {"mlx5_0/1": {"sent": 5}}) == {
        "mlx5_0/1": None
    }
    assert rail_growth({"mlx5_0/1": {"sent": 5}}, {}) == {"mlx5_0/1": 0}


def test_each_port_counts_in_its_own_unit(tmp_path: Path) -> None:
    tree = Tree((Port("mlx5_0", 400), Port("efa_0", 400, "hw_counters/tx_bytes", "Unspecified")))
    assert read_counters(*tree.write(tmp_path))["rdma"] == 800
