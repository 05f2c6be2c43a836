"""The library's own word: gloo's sockets and NCCL's log (SYNTHETIC, no GPU wrote it)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probes.witness import RankLogs, sockets_say
from reference_trainer.worker import Place
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


class Nodes:
    """Stands in for a cluster: on each node `take_logs` finds what that node's ranks wrote."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders, self.nodes = folders, [{"id": str(at)} for at in range(len(folders))]

    def on_each_node(self, function: Any, token: str, most: int) -> dict[str, Any]:
        return {
            node["id"]: function(token, most, str(folder))
            for node, folder in zip(self.nodes, self.folders, strict=True)
        }


def written(tmp_path: Path, job: Job, gpus: int = 2) -> RankLogs:
    """Logs of a job where its ranks would have written them."""
    folders = [tmp_path / f"node{at}" for at in range(job.hosts)]
    logs = RankLogs(Nodes(folders))  # type: ignore[arg-type]
    name = Path(logs.environment["NCCL_DEBUG_FILE"]).name
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    for rank in job.ranks:
        host = rank // gpus
        file = name.replace("%h", f"node{host}").replace("%p", str(1000 + rank))
        (folders[host] / file).write_text(job.of(rank))
    return logs


@pytest.mark.parametrize("version", ["2.21.5", "2.28.9"])
def test_the_log_says_the_road_of_each_node(version: str, tmp_path: Path) -> None:
    gang: Any = Ranks([None] * 4, 2)
    word = written(tmp_path / "a", Job(version, hosts=2, gpus=2)).says(gang, NAMES)
    assert word.roads == {"n0": "rdma", "n1": "rdma"}
    assert word.report
    assert word.report.exit_code == 0
    assert sorted(word.logs) == [f"nccl.node{r // 2}.{1000 + r}.log" for r in range(4)]
    fallback = Job(version, network=socket, devices=none, interface="eth1")
    assert written(tmp_path / "b", fallback).says(gang, NAMES).roads == {"n0": "eth1", "n1": "eth1"}
    half = Job(
        version,
        network=lambda host: "Socket" if host else "IB",
        devices=lambda host: 0 if host else 2,
    )
    assert written(tmp_path / "c", half).says(gang, NAMES).roads == {"n0": "rdma", "n1": "eth0"}


def test_the_logs_are_gone_from_the_nodes_whatever_happens(tmp_path: Path) -> None:
    logs = written(tmp_path, Job())
    other = tmp_path / "node0" / "seatrial-nccl-other.node0.1.log"
    other.write_text("somebody else's")
    with pytest.raises(RuntimeError), logs:
        raise RuntimeError
    assert list(tmp_path.rglob("*.log")) == [other]
    word = logs.says(Ranks([None]), NAMES)  # type: ignore[arg-type]
    assert word.roads == {}
    assert word.trouble
