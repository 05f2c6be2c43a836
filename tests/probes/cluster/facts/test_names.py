"""Where a node's own name leads, and which addresses its interfaces have."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster import network_facts
from probes.cluster.network_facts import (
    look_up,
    look_up_all,
    read_addresses,
    read_names,
)


def test_all_addresses_of_an_interface_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    packet = socket.AF_INET + 100  # a kind of address that is not asked for
    rows = {
        "eth0": [(socket.AF_INET, "10.0.0.1"), (socket.AF_INET6, "fe80::1%eth0"), (packet, "02:")],
        "lo": [(socket.AF_INET, "127.0.0.1")],
        "eth0:1": [(socket.AF_INET, "10.0.0.9")],
        "ib0": [(packet, "80:")],
    }
    found = {
        name: [SimpleNamespace(family=family, address=address) for family, address in own]
        for name, own in rows.items()
    }
    psutil = SimpleNamespace(net_if_addrs=lambda: found)
    monkeypatch.setattr(network_facts, "import_psutil", lambda: psutil)
    addresses = read_addresses()
    assert addresses is not None
    assert {name: one["addresses"] for name, one in addresses.items()} == {
        "eth0": ["10.0.0.1", "fe80::1", "10.0.0.9"],
        "lo": ["127.0.0.1"],
    }


def test_this_host_has_its_loopback() -> None:
    found = read_addresses()
    assert found is not None
    assert "127.0.0.1" in found["lo"]["addresses"]
    assert found["lo"]["up"] is True


def test_an_interface_is_up_by_its_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3"), ("d", "10.0.0.4")]
    monkeypatch.setattr(network_facts, "_list_addresses", lambda: [*pairs, ("a", "10.0.0.9")])
    for name, flags in (("a", "0x1043\n"), ("b", "0x1002\n"), ("c", "broken")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "flags").write_text(flags)
    found = read_addresses(str(tmp_path))
    assert found is not None
    assert {name: one["up"] for name, one in found.items()} == {
        "a": True, "b": False, "c": None, "d": None,
    }  # fmt: skip
    assert found["a"]["addresses"] == ["10.0.0.1", "10.0.0.9"]


def test_a_kernel_that_answers_nothing_leaves_the_addresses_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> list[tuple[str, str]]:
        raise PermissionError(1, "no")

    monkeypatch.setattr(network_facts, "_list_addresses", refuse)
    assert read_addresses() is None


def test_a_name_leads_to_what_can_be_bound() -> None:
    found = look_up("localhost")
    assert found["bindable"] in ("127.0.0.1", "::1")
    assert found["bindable"] in found["addresses"]
    assert found["error"] == ""


def test_an_address_of_another_host_cannot_be_bound() -> None:
    found = look_up("192.0.2.77")  # RFC 5737: it belongs to nobody
    assert found == {"addresses": ["192.0.2.77"], "bindable": "", "error": ""}


@pytest.mark.parametrize("name", ["nosuch.invalid", "x" * 70, ""])
def test_a_name_that_leads_nowhere_says_why(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_facts, "RETRY_SECONDS", 0.01)
    found = look_up(name)
    assert (found["addresses"], found["bindable"]) == ([], "")
    assert found["error"]


@pytest.mark.parametrize(("failures", "resolved"), [(1, True), (2, False)])
def test_a_temporary_failure_is_tried_once_more(
    failures: int, resolved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def flaky(*_: Any, **__: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls <= failures:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    pauses: list[float] = []
    monkeypatch.setattr(network_facts.time, "sleep", pauses.append)
    monkeypatch.setattr(socket, "getaddrinfo", flaky)
    found = look_up("n1")
    assert (found["bindable"] == "127.0.0.1") is resolved
    assert (calls, pauses) == (2, [network_facts.RETRY_SECONDS])
    assert resolved or "Temporary failure" in found["error"]


def test_an_unknown_name_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def refuse(*arguments: Any, **_: Any) -> Any:
        calls.append(arguments)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert look_up("n1")["error"] == "Name or service not known"
    assert len(calls) == 1


def test_a_name_without_an_answer_in_time_is_unknown() -> None:
    free, daemons = threading.Event(), []

    def slow(name: str) -> dict[str, Any]:
        daemons.append(threading.current_thread().daemon)
        if name == "slow":
            free.wait(5)
        return {"addresses": [name], "bindable": "", "error": ""}

    found = look_up_all(["quick", "slow"], seconds=0.2, look_up_one=slow)
    free.set()
    assert found["slow"] is None
    assert found["quick"] == {"addresses": ["quick"], "bindable": "", "error": ""}
    assert daemons == [True, True], "a lookup that hangs holds up no process"


def test_names_without_an_answer_are_not_waited_for_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(threading.Thread, "join", lambda _, timeout: waits.append(timeout))
    look_up_all(["a", "b"], seconds=-1.0, look_up_one=lambda _: {})
    assert waits == [0.0, 0.0]


@pytest.mark.parametrize(
    ("value", "counts"), [("fab0", "fab0"), ("e0", "e0"), ("x", ""), ("", ""), (None, "")]
)
def test_torch_ignores_an_interface_of_one_letter(value: str | None, counts: str) -> None:
    environment = {} if value is None else {"GLOO_SOCKET_IFNAME": value}
    found = read_names("localhost", "10.0.0.1", {"NCCL_SOCKET_IFNAME": "eth0", **environment})
    assert found["gloo_interface"] == counts
    assert (found["host"], found["ray_address"]) == ("localhost", "10.0.0.1")
    assert found["own"] == look_up("localhost")
    assert found["interfaces"] == read_addresses()


def test_the_control_gives_its_worker_the_interface_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from probes.hosts.names import read_loopback_names

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "fab0")
    found = read_loopback_names()
    assert (found["gloo_interface"], found["ray_address"]) == ("", "127.0.0.1")
    assert found["own"] == look_up("localhost")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "fab0"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    read_loopback_names()
    assert "GLOO_SOCKET_IFNAME" not in os.environ
