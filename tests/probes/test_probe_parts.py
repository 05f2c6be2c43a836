"""The pure parts of the probes: counters, versions, equality, ranks, and who is suspected."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

from probes.acceptance.derived_limits import fabric_of
from probes.cluster.byte_counters import growth, main_road, parse_net_dev
from probes.cluster.software import software_differences
from probes.fabric.detect import narrow, unreachable, wrong_road
from probes.fabric.library_report import Witness
from probes.fabric.node_pairs import Cut
from probes.fabric.sweep import Journey
from probes.launch.documented_path import announced, wrong_ranks
from probes.restart.equality import first_apart, unequal_steps

NET_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo:     100       1    0    0    0     0          0         0      200       1    0    0
  fab0: 5000000    3000    0    0    0     0          0         0  7000000    4000    0    0
"""


def test_net_dev_without_what_leaves_no_node() -> None:
    assert parse_net_dev(NET_DEV) == {"fab0": 7_000_000}


def test_growth_and_main_road() -> None:
    assert growth({"a": 5}, {"a": 9, "new": 3}) == {"a": 4, "new": 3}
    assert main_road({"eth0": 3, "fab0": 9}) == "fab0"
    assert main_road({"eth0": 0}) == "none"
    assert main_road({}) == "none"
    over_ip = growth({"rdma": 0, "ib0": 0}, {"rdma": 1010, "ib0": 1000})
    assert main_road(over_ip) == "ib0", "TCP over IPoIB is not RDMA"


def journey(sent: dict[str, dict[str, int]]) -> Journey:
    row = {"size": 1000, "calls": 10, "wrong": 0, "first_wrong": []}
    return Journey(ranks=2, backend="gloo", rows=[row], sent=sent)


def witnessed(sent: dict[str, dict[str, int]], **roads: str) -> Journey:
    """A journey with the library's word, too."""
    word = Witness("gloo's sockets", roads, "" if roads else "nothing is open")
    return dataclasses.replace(journey(sent), word=word)


def test_witnesses_must_say_the_same_of_every_node() -> None:
    sent = {"n0": {"fab0": 9000}, "n1": {"fab0": 9000}}
    assert witnessed(sent, n0="fab0", n1="fab0").dispute() == ""
    assert (
        "on n1 the byte counters saw fab0, gloo's sockets says eth0"
        in witnessed(sent, n0="fab0", n1="eth0").dispute()
    )
    assert "says nothing" in witnessed(sent, n0="fab0").dispute()
    assert "nothing is open" in witnessed(sent).dispute()
    tcp = {"n0": {"eth0": 9000, "rdma": 0}, "n1": {"eth0": 9000}}
    assert witnessed(tcp, n0="tcp", n1="tcp").dispute() == ""
    assert witnessed({"n0": {"rdma": 9}, "n1": {"rdma": 9}}, n0="tcp", n1="rdma").dispute()


def cut(mtu: dict[str, int], *narrow: tuple[str, str]) -> Cut:
    return Cut(sorted(mtu), [], {}, list(narrow), mtu)


def test_an_mtu_that_differs_is_named_and_so_is_a_hole() -> None:
    assert narrow(cut({"a": 1500, "b": 1500, "c": 1500})) == []
    (odd,) = narrow(cut({"a": 1500, "b": 9000, "c": 1500}))
    assert (odd.code, odd.suspects) == ("FAB-MTU", ["b"])
    (hole,) = narrow(cut({"a": 1500, "b": 1500, "c": 1500}, ("a", "c"), ("b", "c")))
    assert hole.suspects == ["c"]
    (pair,) = narrow(cut(dict.fromkeys("abcd", 1500), ("a", "c")))
    assert pair.suspects == ["a", "c"]


def test_shares_are_of_the_bytes_a_ring_must_move() -> None:
    went = journey({"n0": {"fab0": 10_000, "eth0": 500}, "n1": {"fab0": 0, "eth0": 10_000}})
    assert went.expected == 10_000
    assert went.share("n0", "fab0") == 1.0
    assert went.elsewhere("n0", "fab0") == 0.05
    (finding,) = wrong_road(went, "fab0")
    assert finding.code == "FAB-WRONG-ROAD"
    assert finding.suspects == ["n1"]
    assert wrong_road(journey({"n0": {"fab0": 9}}), "fab0") == []


def test_unreachable_names_node_or_pair() -> None:
    nodes = ["n0", "n1", "n2", "n3"]
    (found,) = unreachable(Cut(nodes, [("n0", "n1")], {}))
    assert (found.code, found.suspects) == ("FAB-PAIR-BLOCKED", ["n0", "n1"])
    cut = [("n0", "n2"), ("n1", "n2"), ("n2", "n3")]
    (found,) = unreachable(Cut(nodes, cut, {"n2": "fab0 is down"}))
    assert (found.code, found.suspects) == ("FAB-LINK-DOWN", ["n2"])
    assert "fab0 is down" in found.statement
    assert unreachable(Cut(nodes, [], {})) == []


DRIVER = {"python": "3.11.7", "ray": "2.60.0", "torch": "2.13.0", "driver": ""}


def facts(*torches: str) -> list[dict[str, Any]]:
    return [{"name": f"n{i}", "software": {**DRIVER, "torch": t}} for i, t in enumerate(torches)]


def test_versions_in_parity_and_not() -> None:
    assert software_differences(facts("2.13.0", "2.13.0"), DRIVER) == []
    (said,) = software_differences(facts("2.13.0", "2.12.1"), DRIVER)
    assert said.startswith("torch: 2.12.1 on n1; 2.13.0 on n0, the driver")
    (said,) = software_differences(facts("2.13.0", ""), DRIVER)
    assert "none on n1" in said


def test_a_head_node_without_a_gpu_driver_is_no_difference() -> None:
    two = facts("2.13.0", "2.13.0")
    for fact in two:
        fact["software"]["driver"] = "570.86"
    assert software_differences(two, DRIVER) == []
    two[1]["software"]["driver"] = "570.12"
    assert len(software_differences(two, DRIVER)) == 1


def ranks(count: int = 4) -> list[dict[str, str]]:
    return [{"node": f"id{r}", "host": f"n{r}", "RANK": str(r), "WORLD_SIZE": str(count),
             "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
            for r in range(count)]  # fmt: skip


def test_right_ranks_are_right() -> None:
    assert wrong_ranks(ranks(), 4) == {}


@pytest.mark.parametrize(
    ("rank", "name", "value", "says"),
    [
        (1, "MASTER_PORT", None, "MASTER_PORT not set"),
        (2, "WORLD_SIZE", "3", "WORLD_SIZE is 3, expected 4"),
        (3, "MASTER_ADDR", "10.0.0.9", "others have another"),
        (1, "RANK", "2", "taken twice"),
        (3, "RANK", "7", "out of range"),
        (1, "LOCAL_RANK", "zero", "not a number"),
    ],
)
def test_wrong_ranks_are_named(rank: int, name: str, value: str | None, says: str) -> None:
    rows = ranks()
    if value is None:
        del rows[rank][name]
    else:
        rows[rank][name] = value
    assert says in wrong_ranks(rows, 4)[rank]


def test_local_rank_twice_on_a_node() -> None:
    rows = ranks(2)
    rows[1]["node"] = rows[0]["node"]
    assert set(wrong_ranks(rows, 2)) == {0, 1}


def test_announced_ranks_are_read_from_a_log() -> None:
    text = (
        "noise\nattempt=1 node=id0 host=n0 RANK=0 WORLD_SIZE=2\n"
        "\x1b[36m(pid=1)\x1b[0m attempt=1 node=id1 host=n1 RANK=1 WORLD_SIZE=2\n"
        "attempt=2 node=id0 RANK=0\n"
    )
    assert [row["RANK"] for row in announced(text)] == ["0", "1"]


def run(values: list[float]) -> list[dict[str, Any]]:
    steps = [{"step": at, "loss_hex": v.hex(), "norm_hex": v.hex(), "ids": [at], "data_crc32": "x"}
             for at, v in enumerate(values, 1)]  # fmt: skip
    return [{"rank": 0, "steps": steps}]


def test_equal_runs_are_equal() -> None:
    assert unequal_steps(run([1.0, 2.0]), run([1.0, 2.0])) == []


def test_one_bit_is_unequal_and_located() -> None:
    (found,) = unequal_steps(run([1.0, 2.0]), run([1.0, 2.0000000000000004]))
    assert (found.rank, found.step, found.what) == (0, 2, ["loss_hex", "norm_hex"])
    assert "step 2" in str(found)


def test_a_missing_step_is_unequal() -> None:
    assert [u.step for u in unequal_steps(run([1.0, 2.0, 3.0]), run([1.0, 2.0]))] == [3]
    assert [u.step for u in unequal_steps(run([1.0, 2.0]), run([]))] == [1, 2]
    assert unequal_steps(run([9.0, 2.0]), run([1.0, 2.0]), first=2) == []


def test_other_samples_are_unequal() -> None:
    other = copy.deepcopy(run([1.0]))
    other[0]["steps"][0]["ids"] = [77]
    assert unequal_steps(run([1.0]), other)[0].what == ["ids"]


def test_who_computes_wrongly_is_told_from_those_that_it_misleads() -> None:
    def job(own: dict[int, float], loss: float) -> list[dict[str, Any]]:
        steps = [[{"step": 1, "loss_hex": loss.hex(), "local_loss_hex": own.get(rank, 1.0).hex()},
                  {"step": 2, "loss_hex": loss.hex(), "local_loss_hex": loss.hex()}]
                 for rank in range(4)]  # fmt: skip
        return [{"rank": rank, "steps": each} for rank, each in enumerate(steps)]

    sound = job({}, 1.0)

    def blamed(other: list[dict[str, Any]]) -> tuple[int, int, list[int]]:
        first, ranks = first_apart(unequal_steps(sound, other))
        return first.rank, first.step, ranks

    assert blamed(job({2: 1.5}, 1.125)) == (2, 1, [2])
    assert blamed(job({}, 1.125)) == (0, 1, [])  # a wrong gradient: each own loss was right
    assert blamed(job(dict.fromkeys(range(4), 1.5), 1.5)) == (0, 1, [])  # as after a bad resume


def host(env: dict[str, str], state: str | None = None, ports: str = "lo ib0") -> dict[str, Any]:
    """A node's facts; of its interfaces those with a `-` at the end have no address."""
    rdma = [{"state": state, "rate": "400 Gb/sec", "device": "m", "port": "1"}] if state else []
    found = {
        name.rstrip("-"): {"address": None if "-" in name else "10.0.0.1"} for name in ports.split()
    }
    return {"environment": env, "rdma": rdma, "interfaces": found}


def test_the_fabric_is_derived_or_unknown() -> None:
    assert fabric_of([host({}, "4: ACTIVE"), host({}, "4: ACTIVE")]) == "rdma"
    assert fabric_of([host({}, "4: ACTIVE"), host({}, "1: DOWN")]) is None
    assert fabric_of([host({"NCCL_SOCKET_IFNAME": "=ib0"})] * 2) == "ib0"
    assert fabric_of([host({"GLOO_SOCKET_IFNAME": "ib0"}), host({})]) is None
    assert fabric_of([]) is None


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
    assert fabric_of([host(environment, ports=one) for one in ports]) == fabric
