"""Rails that are plugged into each other's switch: by who hears whom on which interface."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

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
        "Expected: each rail in its own switch"
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
