"""Which RDMA ports an NCCL_IB_HCA admits, and how many rails the cluster has."""

from __future__ import annotations

import pytest

from probes.environment.checks import count_rails, nccl_ports


def port(device: str, number: str = "1") -> dict[str, str]:
    """Return an active InfiniBand port, as `rdma_ports` does."""
    return {
        "device": device,
        "port": number,
        "link_layer": "InfiniBand",
        "rate": "400 Gb/sec (4X NDR)",
        "state": "4: ACTIVE",
    }


PORTS = [port("mlx5_0"), port("mlx5_0", "2"), port("mlx5_1"), port("mlx5_8")]


@pytest.mark.parametrize(
    ("hca", "admitted"),
    [
        ("mlx5_8,", ["mlx5_8/1"]),  # an empty entry is no prefix of all names
        ("^mlx5_8,", ["mlx5_0/1", "mlx5_0/2", "mlx5_1/1"]),
        ("mlx5_0:2", ["mlx5_0/2"]),
        ("mlx5_0:2:7", ["mlx5_0/2"]),  # NCCL reads the port and skips what follows it
    ],
)
def test_nccl_ports_are_those_of_the_list(hca: str, admitted: list[str]) -> None:
    ports = nccl_ports(PORTS, hca)
    assert [f"{one['device']}/{one['port']}" for one in ports] == admitted


def test_the_best_node_says_how_many_rails_there_are() -> None:
    """A node that lacks one must not lower what all are held to."""
    facts = [{"rdma": [port("mlx5_0"), port("mlx5_1")]}, {"rdma": [port("mlx5_0")]}]
    assert count_rails(facts) == count_rails(facts[::-1]) == 2
    assert count_rails([{"rdma": []}]) is None
