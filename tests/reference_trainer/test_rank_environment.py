"""Which interface gloo takes where a host's own name leads to the loopback."""

from __future__ import annotations

import os
import socket

import pytest

from reference_trainer import rank_environment
from reference_trainer.rank_environment import LEADING, bind_gloo, bind_nccl_sockets, ipv4_addresses

VARIABLE = "GLOO_SOCKET_IFNAME"


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with two interfaces, whose name is at 127.0.1.1, and whose rank 0 is elsewhere."""
    own = {"lo": "127.0.0.1", "eth0": "10.78.0.3", "fab0": "10.77.0.3"}
    monkeypatch.setattr(rank_environment, "ipv4_addresses", lambda: own)
    monkeypatch.setattr(rank_environment, "_own_address", lambda peer: "10.78.0.3")
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    monkeypatch.setenv("MASTER_ADDR", "10.78.0.1")
    monkeypatch.delenv(VARIABLE, raising=False)


def test_it_takes_the_one_that_leads_to_rank_0() -> None:
    bind_gloo()
    assert os.environ[VARIABLE] == "eth0"
    del os.environ[VARIABLE]


def test_a_name_that_resolves_to_nothing_is_as_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "gethostbyname", unknown)
    bind_gloo()
    assert os.environ.pop(VARIABLE) == "eth0"


def test_what_the_operator_chose_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "fab0")
    bind_gloo()
    assert os.environ[VARIABLE] == "fab0"


def test_a_sound_name_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.77.0.3")
    bind_gloo()
    assert VARIABLE not in os.environ


@pytest.mark.parametrize("address", ["127.0.0.1", "10.99.0.1"])
def test_an_address_of_no_interface_or_of_the_loopback_chooses_nothing(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(rank_environment, "_own_address", lambda peer: address)
    bind_gloo()
    assert VARIABLE not in os.environ


def test_without_a_rank_0_or_a_way_to_it_nothing_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreachable(peer: str) -> str:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(rank_environment, "_own_address", unreachable)
    bind_gloo()
    monkeypatch.delenv("MASTER_ADDR")
    bind_gloo()
    assert VARIABLE not in os.environ


def test_this_hosts_own_addresses_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert ipv4_addresses()["lo"] == "127.0.0.1"
    assert rank_environment._own_address("127.0.0.1") == "127.0.0.1"


NCCL = "NCCL_SOCKET_IFNAME"


def test_each_rank_finds_the_interface_that_its_sockets_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(NCCL, LEADING)
    bind_nccl_sockets()
    assert os.environ[NCCL] == "=eth0"


def test_where_none_leads_to_rank_0_nccl_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NCCL, LEADING)
    monkeypatch.setattr(rank_environment, "_own_address", lambda peer: "127.0.0.1")
    bind_nccl_sockets()
    assert NCCL not in os.environ


@pytest.mark.parametrize("chosen", ["fab0", "=eth0"])
def test_nccls_interface_is_the_operators(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    monkeypatch.setenv(NCCL, chosen)
    bind_nccl_sockets()
    assert os.environ[NCCL] == chosen
