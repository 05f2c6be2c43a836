"""What a sweep shows: shares of the bytes, and witnesses that agree."""

from __future__ import annotations

import dataclasses

from probes.fabric.detect import wrong_road
from probes.fabric.library_report import Witness
from probes.fabric.sweep import Journey


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


def test_shares_are_of_the_bytes_a_ring_must_move() -> None:
    went = journey({"n0": {"fab0": 10_000, "eth0": 500}, "n1": {"fab0": 0, "eth0": 10_000}})
    assert went.expected == 10_000
    assert went.share("n0", "fab0") == 1.0
    assert went.elsewhere("n0", "fab0") == 0.05
    (finding,) = wrong_road(went, "fab0")
    assert finding.code == "FAB-WRONG-ROAD"
    assert finding.suspects == ["n1"]
    assert wrong_road(journey({"n0": {"fab0": 9}}), "fab0") == []
