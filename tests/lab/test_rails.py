"""A lab of several rails and leaves: each address by its own rail, and faults that heal whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab import network, switch
from tests.lab.faults import clear, inject
from tests.lab.lab import Lab, LabSize
from tests.lab.shell import LabError, sh
from tests.support.trial import lab_of

KNOCK = """
import socket, sys
with socket.socket() as peer:
    peer.settimeout(2)
    peer.bind((sys.argv[1], 0))
    try:
        peer.connect((sys.argv[2], 9))
    except ConnectionRefusedError:
        print("there")
    except OSError:
        pass
"""


@pytest.fixture(scope="module")
def raised() -> Iterator[Lab]:
    """Three nodes with two rails each, on two leaves."""
    with lab_of(3, "railed", rails=2, leaves=2) as lab:
        yield lab


@pytest.fixture
def railed(raised: Lab) -> Iterator[Lab]:
    yield raised
    clear(raised)


@pytest.fixture(scope="module")
def flat() -> Iterator[Lab]:
    """Two nodes with two rails, on one switch for each rail."""
    with lab_of(2, "flat", rails=2) as lab:
        yield lab


def reaches(lab: Lab, node: int, rail: str, peer: int, other: str) -> bool:
    """Whether a node's rail reaches another node's rail by TCP."""
    ends = network.address(rail, node), network.address(other, peer)
    return "there" in lab.node(node).run("python", "-c", KNOCK, *ends)


def rate_of(lab: Lab, node: int | str, device: str) -> str:
    words = sh("tc", "-n", network.namespace(lab.name, node), "qdisc", "show", "dev", device)
    return words.split("rate ")[1].split()[0] if "rate " in words else ""


def test_each_node_has_its_rails_an_accelerator_for_each_and_slower_links_inside(
    railed: Lab,
) -> None:
    (first, *_) = railed.status()["nodes"]
    assert [first[name]["address"] for name in ("fab0", "fab1", "eth0")] == [
        *("10.77.0.1", "10.77.1.1", "10.78.0.1"),
    ]
    assert [first[name]["rate"] for name in ("fab0", "fab1", "eth0")] == [
        *("200Mbit", "200Mbit", "50Mbit"),
    ]
    assert railed.size == LabSize(3, gpus=2, rails=2, leaves=2)
    assert [node.gpus for node in railed.nodes] == [2, 2, 2]
    assert railed.nodes[0].environment()["NCCL_SOCKET_IFNAME"] == "fab0,fab1"
    assert rate_of(railed, 1, "lo") == "400Mbit"


def test_an_address_leaves_by_its_own_rail_and_reaches_other_rails_by_the_spine(
    railed: Lab,
) -> None:
    for rail, other in (("fab0", "fab0"), ("fab1", "fab1"), ("fab0", "fab1"), ("fab1", "fab0")):
        assert reaches(railed, 0, rail, 2, other), (rail, other)
        ends = network.address(other, 2), network.address(rail, 0)
        route = railed.node(0).run("ip", "route", "get", ends[0], "from", ends[1])
        assert f"dev {rail} " in route


def test_a_rail_that_was_down_has_its_routes_again(railed: Lab) -> None:
    inject(railed, "cut-node", "2:fab1")
    assert not reaches(railed, 0, "fab1", 2, "fab1")
    assert reaches(railed, 0, "fab0", 2, "fab0")
    clear(railed)
    assert reaches(railed, 0, "fab1", 2, "fab1")
    assert reaches(railed, 2, "fab1", 0, "fab0")


def test_faults_of_one_rail_leave_the_others(railed: Lab) -> None:
    inject(railed, "slow-link", "1:fab1", "60mbit")
    assert [rate_of(railed, 1, name) for name in ("fab0", "fab1")] == ["200Mbit", "60Mbit"]
    clear(railed)
    assert rate_of(railed, 1, "fab1") == "200Mbit"


def test_inside_and_uplink_get_their_rates_back(railed: Lab) -> None:
    def rates() -> list[str]:
        ends = [end for rail in ("fab0", "fab1") for end in switch.uplink_ends(rail, 1)]
        return [rate_of(railed, 2, "lo"), *(rate_of(railed, "x", end) for end in ends)]

    before = rates()
    assert before == ["400Mbit", *4 * ["400Mbit"]]  # two nodes on the larger leaf
    inject(railed, "slow-inside", "2", "90mbit")
    inject(railed, "slow-uplink", "1", "70mbit")
    assert rates() == ["90Mbit", *4 * ["70Mbit"]]
    clear(railed)
    assert rates() == before


def test_swapped_rails_reach_nobody_and_plugged_back_they_do(flat: Lab) -> None:
    inject(flat, "swap-rails", "1", "fab0", "fab1")
    assert not reaches(flat, 0, "fab0", 1, "fab0")
    assert not reaches(flat, 0, "fab1", 1, "fab1")
    clear(flat)
    assert reaches(flat, 0, "fab0", 1, "fab0")
    assert reaches(flat, 1, "fab1", 0, "fab1")


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (("slow-link", "1:fab2", "60mbit"), "no rail 'fab2' in lab 'railed': it has fab0, fab1"),
        (("swap-rails", "1", "fab0", "fab0"), "two rails are swapped, found fab0 twice"),
        (("swap-rails", "1", "fab0", "fab1"), "rails are swapped in a lab without leaves"),
        (("slow-uplink", "2", "60mbit"), "no leaf '2' in lab 'railed': it has 2"),
        (("slow-inside", "1", "fast"), "a rate is written as tc does"),
    ],
)
def test_what_the_lab_does_not_have_is_refused(
    railed: Lab, fault: tuple[str, ...], says: str
) -> None:
    with pytest.raises(LabError, match=says):
        inject(railed, *fault)
    assert railed.state["faults"] == []


@pytest.mark.parametrize(
    ("size", "says"),
    [
        ({"rails": 5}, "a lab has 1 to 4 rails, found 5"),
        ({"rails": 0}, "a lab has 1 to 4 rails, found 0"),
        ({"leaves": 5}, "a lab has 1 leaf, or up to one per node, found 5"),
        ({"leaves": 0}, "a lab has 1 leaf, or up to one per node, found 0"),
    ],
)
def test_a_size_that_cannot_be_is_refused(size: dict[str, int], says: str) -> None:
    with pytest.raises(LabError, match=says):
        LabSize(4, **size)


def test_an_uplink_carries_all_nodes_of_the_largest_leaf() -> None:
    assert switch.full_uplink(8, 2, "1gbit") == "4gbit"
    assert switch.full_uplink(3, 2, "200mbit") == "400mbit"
    assert [switch.leaf_of(node, 8, 2) for node in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [switch.leaf_of(node, 3, 2) for node in range(3)] == [0, 0, 1]
