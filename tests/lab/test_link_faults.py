"""Lost packets and carriers, other routes and addresses: who meets them, by real traffic."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.lab import network
from tests.lab.faults import clear, inject
from tests.lab.lab import Lab
from tests.lab.shell import LabError, sh
from tests.lab.test_lab import traces
from tests.lab.traffic import fabric, owners, send, watch

USUAL_SEGMENTS = 65535
SIZE = 4 << 20  # bytes: 2897 segments
NONE_LOST = 5  # segments: a busy machine answers late, and some are sent twice
TRIES = 3  # a path that loses 3 % shows it in each: 87 of 2897 segments, never 5


def loses_none(lab: Lab, source: int, target: int) -> bool:
    """Whether one of three streams got through without a loss; a busy machine spoils some."""
    return any(send(lab, source, target) <= NONE_LOST for _ in range(TRIES))


def carrier_changes(lab: Lab, node: int) -> int:
    return int(lab.node(node).run("cat", "/sys/class/net/fab0/carrier_changes"))


def flappers(lab: Lab) -> list[str]:
    """List the command lines of processes that take a link down and up."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"{lab.home}/" in line and "flap.pid" in line:
            found.append(line)
    return found


def sent(lab: Lab, node: int, interface: str) -> int:
    """Return the bytes that the node has sent on the interface."""
    return int(lab.node(node).run("cat", f"/sys/class/net/{interface}/statistics/tx_bytes"))


@pytest.mark.parametrize("way", ["sends", "receives"])
def test_packets_of_one_node_are_lost_one_way(lab: Lab, way: str) -> None:
    source, target = (1, 2) if way == "sends" else (2, 1)
    inject(lab, "lose-packets", "1", way, "3")
    inject(lab, "lose-packets", "3", way, "0.01")
    assert [network.segments(lab.name, one, "fab0") for one in range(4)] == [8] * 4
    assert send(lab, source, target) >= 30, "of 2897 segments, 3 %"
    assert loses_none(lab, target, source), "only answers are lost this way"
    assert loses_none(lab, 0, 2), "neither of them loses anything"
    clear(lab)
    assert [network.segments(lab.name, one, "fab0") for one in range(4)] == [USUAL_SEGMENTS] * 4
    assert loses_none(lab, source, target)
    switch = f"--net=/run/netns/{network.namespace(lab.name, 'x')}"
    assert sh("nsenter", switch, "nft", "list", "ruleset") == ""


@pytest.mark.soak(criterion="links")
def test_a_link_loses_its_carrier_again_and_again(lab: Lab) -> None:
    route, before = lab.node(2).run("ip", "route"), [carrier_changes(lab, one) for one in range(4)]
    began = time.monotonic()
    inject(lab, "flap-link", "2", "0.5", "1.5")
    gap, sound = watch(lab, 1, 2, 4), watch(lab, 0, 3, 4)
    assert 0.4 < gap() < 1.2
    assert sound() < 0.3
    assert lab.node(2).run("ip", "route").replace(" linkdown", "") == route
    after, periods = (
        [carrier_changes(lab, one) for one in range(4)],
        (time.monotonic() - began) / 1.5,
    )
    changes = after.pop(2) - before.pop(2)
    assert abs(changes - 2 * periods) < 2.5, "down and up once in each period"
    assert after == before
    with pytest.raises(LabError, match="comes and goes already"):
        inject(lab, "flap-link", "2", "1", "6")
    clear(lab)
    assert network.has_carrier(lab.name, 2, "fab0")
    assert flappers(lab) == []
    changes = carrier_changes(lab, 2)
    assert watch(lab, 1, 2, 2)() < 0.3
    assert carrier_changes(lab, 2) == changes


def test_what_takes_a_link_down_dies_with_its_node(lab: Lab) -> None:
    inject(lab, "flap-link", "3", "600", "1200")
    assert len(flappers(lab)) == 1
    assert not network.has_carrier(lab.name, 3, "fab0")
    inject(lab, "kill-node", "3")
    deadline = time.monotonic() + 5
    while flappers(lab) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert flappers(lab) == []
    clear(lab)
    assert network.has_carrier(lab.name, 3, "fab0")
    assert loses_none(lab, 1, 3)


def test_a_lab_that_goes_down_under_its_faults_leaves_nothing() -> None:
    other = Lab("flapped")
    try:
        other.up(2)
        inject(other, "flap-link", "1", "0.2", "0.4")
        inject(other, "lose-packets", "0", "sends", "50")
        inject(other, "detour", "0", "1")
        inject(other, "duplicate-address", "0", "1")
        assert len(flappers(other)) == 1
    finally:
        other.down()
    assert flappers(other) == []
    assert traces("flapped") == []


def test_a_link_blinks_once(lab: Lab) -> None:
    before = carrier_changes(lab, 1)
    gap, sound = watch(lab, 2, 1, 3), watch(lab, 0, 3, 3)
    inject(lab, "blink-link", "1")
    assert network.has_carrier(lab.name, 1, "fab0"), "it returned too early"
    assert carrier_changes(lab, 1) == before + 2
    assert 0.9 < gap() < 2
    assert sound() < 0.3
    clear(lab)
    assert carrier_changes(lab, 1) == before + 2, "healing has nothing to do"


def test_a_carrier_is_waited_for_where_it_can_come_back(lab: Lab) -> None:
    network.set_port(lab.name, 2, "fab0", "down")
    try:
        with pytest.raises(LabError, match="fab0 of node2 has no carrier after 0 s"):
            network.wait_for_carrier(lab.name, 2, "fab0", 0.2)
        later = threading.Timer(0.5, network.set_port, [lab.name, 2, "fab0", "up"])
        later.start()
        network.wait_for_carrier(lab.name, 2, "fab0")
        assert network.has_carrier(lab.name, 2, "fab0")
        later.join()
    finally:
        network.set_port(lab.name, 2, "fab0", "up")
    inject(lab, "cut-node", "2")
    network.wait_for_carrier(lab.name, 2, "fab0", 0)  # it is its own interface that is down


def test_a_node_without_a_carrier_cannot_lose_it(lab: Lab) -> None:
    inject(lab, "cut-node", "2")
    for fault in (["blink-link", "2"], ["flap-link", "2", "1", "6"]):
        with pytest.raises(LabError, match="no carrier to lose"):
            inject(lab, *fault)
    assert lab.state["faults"] == [["cut-node", "2"]]


@pytest.mark.parametrize("check", ["0", "1"], ids=["rp_filter=0", "rp_filter=1"])
def test_a_detour_is_taken_one_way_and_to_one_peer(lab: Lab, check: str) -> None:
    strict = [(2, "eth0"), (1, "fab0")]
    before = [network.source_check(lab.name, *end) for end in strict]
    try:
        for end in strict:
            network.set_source_check(lab.name, *end, check)
        inject(lab, "detour", "1", "2")
        for source, target, way in [
            (1, 2, "eth0"),
            (2, 1, "fab0"),
            (1, 3, "fab0"),
            (3, 2, "fab0"),
        ]:
            assert ways(lab, source, target) == [way], (source, target)
        clear(lab)
        assert ways(lab, 1, 2) == ["fab0"]
        assert [network.source_check(lab.name, *end) for end in strict] == [check, check]
    finally:
        for end, value in zip(strict, before, strict=True):
            network.set_source_check(lab.name, *end, value)


def ways(lab: Lab, source: int, target: int) -> list[str]:
    """List the interfaces over which a TCP stream between two fabric addresses goes."""
    before = {interface: sent(lab, source, interface) for interface in network.interfaces(1)}
    send(lab, source, target)
    return [name for name, count in before.items() if sent(lab, source, name) - count > SIZE // 2]


def neighbours(lab: Lab, node: int) -> str:
    """Return what the node knows of others' hardware addresses on the fabric."""
    return lab.node(node).run("ip", "neigh", "show", "dev", "fab0")


def test_two_nodes_answer_to_one_address(lab: Lab) -> None:
    usual = {node: owners(lab, 3, fabric(node)) for node in (0, 1, 2)}
    assert all(len(one) == 1 for one in usual.values())
    assert loses_none(lab, 3, 1)
    inject(lab, "duplicate-address", "1", "2")
    assert usual[1][0] not in neighbours(lab, 3), "it would never ask who has the address"
    assert owners(lab, 3, fabric(1)) == sorted(usual[1] + usual[2])
    assert owners(lab, 3, fabric(2)) == []
    assert owners(lab, 3, fabric(0)) == usual[0]
    with pytest.raises(LabError, match=r"No route to host|timed out"):
        send(lab, 3, 2)
    assert loses_none(lab, 3, 0)
    wrong = [fabric(1), "lladdr", usual[2][0], "dev", "fab0", "nud", "reachable"]
    lab.node(3).run("ip", "neigh", "replace", *wrong)  # as if B had answered first
    clear(lab)
    assert {node: owners(lab, 3, fabric(node)) for node in (0, 1, 2)} == usual
    for source, target in [(3, 2), (2, 3), (3, 1), (0, 2)]:
        assert loses_none(lab, source, target)
