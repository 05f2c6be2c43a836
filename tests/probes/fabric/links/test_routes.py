"""How a node says that it reaches an address."""

from __future__ import annotations

import shutil
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from probes.fabric import link_counters
from probes.fabric.link_counters import read_route, read_routes


def test_a_route_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "10.77.0.3 via 10.78.0.3 dev eth0 src 10.77.0.2 uid 0 \n    cache \n"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=said))
    assert read_route("10.77.0.3") == "10.77.0.3 via 10.78.0.3 dev eth0 src 10.77.0.2"


def test_an_image_without_ip_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert read_route("127.0.0.1") == ""


@pytest.mark.skipif(not shutil.which("ip"), reason="NOT RUN: no `ip` here")
def test_a_real_route() -> None:
    assert "dev lo" in read_route("127.0.0.1")


def test_each_sender_is_asked_for_its_receivers_address() -> None:
    asked: list[tuple[list[list[int]], Any]] = []

    def run(function: Any, *arguments: Any, timeout: float, groups: Any = None) -> list[Any]:
        if function is link_counters.read_interfaces:
            return [{"fab0": {"address": f"10.77.0.{rank}"}} for rank in range(4)]
        ((rank,),) = groups
        asked.append((groups, [*arguments]))
        return [f"route of {rank}"]

    gang: Any = SimpleNamespace(
        places=[SimpleNamespace(node=f"id{n // 2}") for n in range(4)], run=run
    )
    names, link = {"id0": "n0", "id1": "n1"}, ("n1", "n0")
    assert read_routes(gang, names, [link], {link: "fab0"}) == {("n1", "n0"): "route of 2"}
    assert asked == [([[2]], ["10.77.0.0", None])]
    assert read_routes(gang, names, [link], {link: "rdma"}) == {}
    assert read_routes(gang, names, [], {}) == {}
    port = "fab0 on n1", "fab0 on n0"
    assert read_routes(gang, names, [port], {port: "fab0"}) == {port: "route of 2"}
    assert asked[-1] == ([[2]], ["10.77.0.0", "10.77.0.2"])  # a port asks from its own address
