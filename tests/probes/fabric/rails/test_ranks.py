"""Which ranks test which rail, and what their ports are called."""

from __future__ import annotations

import pytest

from probes.fabric.addresses import (
    RailRanks,
    find_rails,
    least_by_nodes,
    node_of,
    rail_of,
    suspects,
)

TWO_BY_TWO = ["n0", "n0", "n1", "n1"]


def test_each_local_rank_binds_one_interface_of_the_fabric() -> None:
    assert find_rails(TWO_BY_TWO, "fab0,fab1", "gloo") == [
        RailRanks("fab0", {"fab0 on n0": 0, "fab0 on n1": 2}, "fab0"),
        RailRanks("fab1", {"fab1 on n0": 1, "fab1 on n1": 3}, "fab1"),
    ]


@pytest.mark.parametrize("fabric", ["rdma", "eth1,eth2"])
def test_with_nccl_each_local_rank_tests_the_rail_of_its_gpu(fabric: str) -> None:
    first, second = find_rails(TWO_BY_TWO, fabric, "nccl")
    assert (first.name, first.ports) == ("rail 0", {"rail 0 on n0": 0, "rail 0 on n1": 2})
    assert (second.name, second.ports) == ("rail 1", {"rail 1 on n0": 1, "rail 1 on n1": 3})
    assert first.fabric == second.fabric == fabric


@pytest.mark.parametrize(
    ("fabric", "backend"),
    [("fab0", "gloo"), (None, "gloo"), (None, "nccl"), ("eth0", "nccl")],
)
def test_elsewhere_the_first_rank_of_each_node_tests_all(fabric: str | None, backend: str) -> None:
    assert find_rails(TWO_BY_TWO, fabric, backend) == [RailRanks("", {"n0": 0, "n1": 2}, fabric)]


def test_one_rank_per_node_tests_one_rail_whatever_the_fabric() -> None:
    for fabric in ("rdma", "fab0,fab1"):
        assert find_rails(["n0", "n1"], fabric, "gloo") == [
            RailRanks("", {"n0": 0, "n1": 1}, fabric)
        ]


def test_local_ranks_that_a_node_lacks_and_interfaces_without_a_rank_are_left_out() -> None:
    ranks = ["n0", "n0", "n0", "n1", "n1"]
    for fabric in ("rdma", "fab0,fab1,fab2"):
        backend = "nccl" if fabric == "rdma" else "gloo"
        assert [[*rail.ports.values()] for rail in find_rails(ranks, fabric, backend)] == [
            [0, 3],
            [1, 4],
        ]


def test_a_port_tells_its_node_and_its_rail() -> None:
    assert (node_of("fab1 on n0"), rail_of("fab1 on n0")) == ("n0", "fab1")
    assert (node_of("rail 3 on n0"), rail_of("rail 3 on n0")) == ("n0", "rail 3")
    assert (node_of("n0"), rail_of("n0")) == ("n0", "")
    assert suspects(["fab1 on n0", "fab1 on n1"]) == ["n0", "n1", "fab1 on n0", "fab1 on n1"]
    assert suspects(["n0", "n1"]) == ["n0", "n1"]


def test_of_several_rails_the_slowest_stands_for_the_link_of_two_nodes() -> None:
    speeds = {
        ("fab0 on n0", "fab0 on n1"): 3.0,
        ("fab1 on n0", "fab1 on n1"): 2.0,
        ("fab0 on n1", "fab0 on n0"): 4.0,
    }
    assert least_by_nodes(speeds) == {("n0", "n1"): 2.0, ("n1", "n0"): 4.0}
