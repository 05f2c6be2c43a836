"""Byte counters of a node."""

from __future__ import annotations

from pathlib import Path

from probes.cluster.network_facts import (
    UNKNOWN,
    count_once,
    counter_growth,
    main_device,
    parse_net_dev,
)

NET_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo:     100       1    0    0    0     0          0         0      200       1    0    0
  fab0: 5000000    3000    0    0    0     0          0         0  7000000    4000    0    0
"""


def test_net_dev_without_what_leaves_no_node() -> None:
    assert parse_net_dev(NET_DEV) == {"fab0": 7_000_000}


def test_growth_and_main_road() -> None:
    assert counter_growth({"a": 5}, {"a": 9, "new": 3}) == {"a": 4, "new": 3}
    assert main_device({"eth0": 3, "fab0": 9}) == "fab0"
    assert main_device({"eth0": 0}) == "none"
    assert main_device({}) == "none"
    over_ip = counter_growth({"rdma": 0, "ib0": 0}, {"rdma": 1010, "ib0": 1000})
    assert main_device(over_ip) == "ib0", "TCP over IPoIB is not RDMA"
    assert over_ip == {"rdma": 10, "ib0": 1000}
    assert counter_growth({"rdma": 0, "ib0": 0}, {"rdma": 900, "ib0": 1000})["rdma"] == 0


def test_growth_since_or_until_an_unread_counter_is_unknown() -> None:
    grown = counter_growth({"eth0": None, "rdma": 5}, {"eth0": 7, "rdma": None})
    assert grown == {"eth0": None, "rdma": None}
    assert main_device(grown) == UNKNOWN


def test_a_single_byte_was_sent() -> None:
    assert main_device({"eth0": 0, "fab0": 1}) == "fab0"


def test_a_byte_over_a_vlan_counts_once(tmp_path: Path) -> None:
    """Else the parent would be named as the path of what went over its VLAN."""
    for device in ("eth2", "eth2.100"):
        (tmp_path / device).mkdir()
    (tmp_path / "eth2" / "upper_eth2.100").symlink_to("../eth2.100")
    assert count_once({"eth2": 70, "eth2.100": 60}, tmp_path) == {"eth2": 10, "eth2.100": 60}
