"""Byte counters of a node."""

from __future__ import annotations

from probes.cluster.byte_counters import counter_growth, main_device, parse_net_dev

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
