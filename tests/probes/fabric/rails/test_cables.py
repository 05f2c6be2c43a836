"""Rails that are plugged into each other's switch: by who hears whom on which interface."""

from __future__ import annotations

import json
import select
import socket
import time
from typing import Any

import pytest

from probes.fabric import rails
from probes.fabric.rails import PKTINFO, find_swapped, hear_rails, parse_message, swapped_findings

NODES = ["n0", "n1", "n2", "n3"]
RAILS = ["fab0", "fab1", "fab2"]
Heard = dict[str, dict[str, list[tuple[str, str]]]]


def heard(plugs: dict[str, dict[str, str]], deaf: tuple[str, ...] = ()) -> Heard:
    """Whom each node hears: `plugs` maps a node's interfaces to the switch of another rail."""

    def switch(node: str, name: str) -> str:
        return plugs.get(node, {}).get(name, name)

    return {
        node: {
            name: [
                (other, theirs)
                for other in NODES
                for theirs in RAILS
                if other != node and switch(other, theirs) == switch(node, name)
            ]
            for name in RAILS
            if name not in deaf
        }
        for node in NODES
    }


def test_sound_rails_are_not_accused() -> None:
    assert find_swapped(heard({})) == {}


def test_two_swapped_rails_of_a_node_are_named_and_no_other_node_is() -> None:
    swap = {"n2": {"fab1": "fab2", "fab2": "fab1"}}
    assert find_swapped(heard(swap)) == swap


def test_two_nodes_of_five_with_swapped_rails_are_both_named() -> None:
    swap = {"n1": {"fab0": "fab1", "fab1": "fab0"}}
    assert find_swapped(heard(swap)) == swap


def test_where_half_of_the_nodes_are_the_other_way_round_nobody_is_blamed() -> None:
    swap = {node: {"fab0": "fab1", "fab1": "fab0"} for node in NODES[:2]}
    assert find_swapped(heard(swap)) == {}


def test_where_half_of_the_nodes_are_wrong_on_two_rails_together_none_is_odd_by_them() -> None:
    swap = {"n0": {"fab0": "fab1"}, "n1": {"fab1": "fab2"}}
    assert find_swapped(heard(swap)) == {"n1": {"fab1": "fab2"}}


def test_half_of_what_a_node_hears_decides_nothing() -> None:
    mixed = heard({})
    mixed["n2"]["fab1"] = [("n0", "fab2"), ("n1", "fab0")]
    assert find_swapped(mixed) == {}


def test_a_rail_that_hears_nobody_is_dead_and_not_swapped() -> None:
    silent = heard({})
    del silent["n2"]["fab1"]
    assert find_swapped(silent) == {}
    assert find_swapped({node: {} for node in NODES}) == {}


def test_one_network_on_which_all_rails_hear_all_is_sound() -> None:
    flat = {node: dict.fromkeys(RAILS, "fab0") for node in NODES}
    assert find_swapped(heard(flat)) == {}


def test_the_finding_says_which_rail_is_in_which_switch() -> None:
    (told,) = swapped_findings({"n2": {"fab1": "fab2", "fab2": "fab1"}})
    assert told.code == "FAB-RAILS-SWAPPED"
    assert told.statement == (
        "n2: fab1 is plugged into the switch of fab2, fab2 is plugged into the switch of fab1. "
        "Expected: each rail on its own switch"
    )
    assert told.suspects == ["n2", "fab1 on n2", "fab2 on n2"]


def message(said: Any, number: int = 3) -> tuple[Any, ...]:
    info = PKTINFO.pack(b"\0" * 16, number)
    control = [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, info)]
    return json.dumps(said).encode(), control, 0, ("fe80::1", 1)


def test_a_datagram_of_this_run_tells_the_sender_and_the_interface_it_came_by() -> None:
    assert parse_message(message(["t", "n1", "fab0"]), "t") == (3, "n1", "fab0")


@pytest.mark.parametrize(
    "said", [["other", "n1", "fab0"], ["t", "n1"], {"t": 1}, "t", None, [["t"], "n1", "fab0"]]
)
def test_datagrams_of_others_are_ignored(said: Any) -> None:
    assert parse_message(message(said), "t") is None


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[" * 900, b"{}"])
def test_datagrams_that_are_no_json_are_ignored(data: bytes) -> None:
    assert parse_message((data, message([])[1], 0, ()), "t") is None
    assert parse_message((json.dumps(["t", "n", "f"]).encode(), [], 0, ()), "t") is None


def test_interfaces_that_do_not_exist_are_not_heard() -> None:
    assert hear_rails(["nosuch0"], 45_678, "t", 0.1, "n0") == {}


class Radio:
    """Stands in for a socket: receives these datagrams, and notes what is sent."""

    def __init__(self, datagrams: list[tuple[Any, ...]]) -> None:
        self.datagrams, self.sent = datagrams, list[tuple[Any, Any]]()
        self.options: dict[tuple[int, int], int] = {}

    def __enter__(self) -> Radio:
        return self

    def __exit__(self, *_: object) -> None:
        """Close nothing."""

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.options[level, option] = value

    def bind(self, address: tuple[str, int]) -> None:
        self.address = address

    def sendto(self, data: bytes, address: tuple[Any, ...]) -> None:
        self.sent.append((json.loads(data), address))

    def recvmsg(self, *_: int) -> tuple[Any, ...]:
        return self.datagrams.pop(0)

    def select(self, _: Any, __: Any, ___: Any, seconds: float) -> tuple[list[Any], ...]:
        if not self.datagrams:
            time.sleep(seconds)
        return ([self] if self.datagrams else [], [], [])


def test_each_node_says_who_it_is_again_and_again_and_notes_whom_it_hears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = socket.if_nametoindex("lo")
    said = [("t", "n1", "fab0", own), ("t", "n0", "lo", own), ("t", "n2", "fab1", own + 1000)]
    said += [("other", "n3", "fab0", own), ("t", "n1", "fab0", own)]
    radio = Radio([message(words, number) for *words, number in said])
    monkeypatch.setattr(socket, "socket", lambda *_: radio)
    monkeypatch.setattr(select, "select", radio.select)
    monkeypatch.setattr(rails, "REPEAT_S", 0.01)
    assert hear_rails(["lo", "nosuch0"], 45_678, "t", 0.1, "n0") == {"lo": [("n1", "fab0")]}
    assert {*map(str, radio.sent)} == {str((["t", "n0", "lo"], ("ff02::1", 45_678, 0, own)))}
    assert len(radio.sent) > 1
    assert radio.address == ("::", 45_678)
    ip6 = socket.IPPROTO_IPV6
    assert radio.options[ip6, socket.IPV6_RECVPKTINFO]  # else nobody knows which rail it was
    assert not radio.options[ip6, socket.IPV6_MULTICAST_LOOP]
