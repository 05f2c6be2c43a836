"""The library's own word: gloo's sockets and NCCL's log (SYNTHETIC, no GPU wrote it)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from probes.witness import collect_log, nccl_debug, nccl_says, sockets_say
from reference_trainer.gang import Place
from tests.recordings.nccl import Job, none, socket

NAMES = {"id0": "n0", "id1": "n1", "id2": "n2"}


class Ranks:
    """Stands in for a gang: one rank per node, and what each would answer."""

    def __init__(self, answers: list[Any], per_node: int = 1) -> None:
        self.answers = answers
        self.places = [
            Place(
                node=f"id{at // per_node}",
                address="10.0.0.1",
                host=f"node{at // per_node}.cluster",
                pid=at,
                gpus=["0"],
            )
            for at in range(len(answers))
        ]

    def run(self, *_: object, **__: object) -> list[Any]:
        return self.answers


def interfaces(node: int) -> dict[str, dict[str, object]]:
    return {
        "fab0": {"address": f"10.77.0.{node + 1}", "state": "up"},
        "eth0": {"address": f"10.78.0.{node + 1}", "state": "up"},
        "down0": {"address": None, "state": "down"},
    }


def mesh(node: int, network: int) -> list[tuple[str, str, int, int]]:
    return [
        (f"10.{network}.0.{node + 1}", f"10.{network}.0.{peer + 1}", 40000 + peer, 50000)
        for peer in range(3)
        if peer != node
    ]


def test_sockets_say_which_interface_carries_the_mesh() -> None:
    gang = Ranks([interfaces(node) for node in range(3)])
    stray = ("10.78.0.1", "10.78.0.2", 1, 2)  # one of Ray's own connections
    ends = [[*mesh(0, 77), stray], mesh(1, 77), mesh(2, 78)]
    word = sockets_say(gang, NAMES, ends)  # type: ignore[arg-type]
    assert word.roads == {"n0": "fab0", "n1": "fab0", "n2": "eth0"}
    silent = sockets_say(gang, NAMES, [[], [], []])  # type: ignore[arg-type]
    assert silent.roads == {}
    assert silent.trouble


@pytest.mark.parametrize("version", ["2.21.5", "2.28.9"])
def test_the_log_says_the_road_of_each_node(version: str) -> None:
    def texts(job: Job) -> list[bytes]:
        return [job.of(rank).encode() for rank in job.ranks]

    healthy = texts(Job(version, hosts=2, gpus=2))
    word = nccl_says(Ranks(healthy, 2), NAMES, [])  # type: ignore[arg-type]
    assert word.roads == {"n0": "rdma", "n1": "rdma"}
    assert word.report
    assert word.report.exit_code == 0
    fallback = Job(version, network=socket, devices=none, interface="eth1")
    word = nccl_says(Ranks(texts(fallback), 2), NAMES, [])  # type: ignore[arg-type]
    assert word.roads == {"n0": "eth1", "n1": "eth1"}
    half = Job(
        version,
        network=lambda host: "Socket" if host else "IB",
        devices=lambda host: 0 if host else 2,
    )
    word = nccl_says(Ranks(texts(half), 2), NAMES, [])  # type: ignore[arg-type]
    assert word.roads == {"n0": "rdma", "n1": "eth0"}
    word = nccl_says(Ranks([b"", b""]), NAMES, [])  # type: ignore[arg-type]
    assert word.roads == {}
    assert word.trouble


def test_a_rank_gives_its_own_log_and_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("NCCL_DEBUG_FILE", nccl_debug("abc")["NCCL_DEBUG_FILE"])
    mine = tmp_path / f"seatrial-nccl-abc.node7.{os.getpid()}.log"
    other = tmp_path / "seatrial-nccl-abc.node7.1.log"
    mine.write_bytes(b"mine\n")
    other.write_bytes(b"other\n")
    assert collect_log() == b"mine\n"
    assert not mine.exists()
    assert other.exists()
    monkeypatch.delenv("NCCL_DEBUG_FILE")
    assert collect_log() == b""
