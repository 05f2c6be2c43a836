"""A group that is kept for the next call: two real ranks, and what ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from reference_trainer import process_group
from reference_trainer.launch.worker import reserve_port
from reference_trainer.process_group import KEEP
from tests.support.paths import REPO

KNOBS = {
    "batch": 2, "seq": 16, "vocab": 64, "dim": 16, "layers": 2, "heads": 2, "device": "cpu",
    "steps": 3,
}  # fmt: skip

# A rank makes each call in turn, and says which group it was in and what it saw.
SCRIPT = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import torch.distributed as dist
from probes.fabric.link_counters import LinkReader
from reference_trainer import process_group
from reference_trainer.config import TrainConfig
from reference_trainer.train import train
from scaling.collectives.node_groups import ONE_WAY, group_sweep, pair_sweep
from scaling.collectives.sweep import connect, sweep
from scaling.ladder.ladder import run_on_fake_group

knobs, ports, folder = json.loads(sys.argv[2]), sys.argv[3].split(","), sys.argv[4]
groups, told = [], {}

def note(name, value):
    own = process_group._own
    if own and own[0] not in groups:
        groups.append(own[0])
    told[name] = [groups.index(own[0]) if own else None, value]

def counted():  # sockets of the group, and how many of them a reader of links leaves out
    own = process_group.kept_sockets()
    return [len(own), len(LinkReader()._older & own)]

os.environ["MASTER_PORT"] = ports[0]
note("first", connect())
note("sockets", counted())
note("again", connect())
note("sweep", sweep(only=4096, budget=0.01, make_reader=LinkReader)["ranks"])
note("sockets again", counted())
digests = []
for name, more in {
    "job": {}, "job again": {}, "copies": {"shard": 1}, "copies again": {"shard": 1},
    "saves": {"save_mode": "async", "save_every": 2, "checkpoints": folder + "/a"},
    "saves again": {"save_mode": "async", "save_every": 2, "checkpoints": folder + "/b"},
}.items():
    note(name, train(TrainConfig(**knobs, **more))["digest"])
part = [int(os.environ["RANK"])]
for name in ("part", "part again"):
    note(name, group_sweep(4096, None, part)[1])
met = pair_sweep(2, 4096, LinkReader, None, [ONE_WAY], [[0, 1]])
note("pair", [wrong for _, wrong in met.received.values()])
try:
    process_group.join_group("nccl", 9)
except RuntimeError as error:
    note("other backend", str(error))
os.environ["MASTER_PORT"] = ports[1]
note("other port", connect())
note("fake", len(run_on_fake_group(2, TrainConfig(**knobs))["steps"]))
note("after fake", None)
os.environ["MASTER_PORT"] = ports[2]
note("failing", None)
try:
    train(TrainConfig(**{**knobs, "checkpoints": folder + "/none/\\0"}))
except Exception as error:
    note("failed", type(error).__name__)
del os.environ["SEATRIAL_KEEP_GROUP"]
os.environ["MASTER_PORT"] = ports[3]
note("alone", connect())
told["initialized"] = dist.is_initialized()
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both ranks said of their calls."""
    folder = tmp_path_factory.mktemp("kept")
    address = next(iter(subprocess.check_output(["hostname", "-I"], text=True).split()), "")
    with ExitStack() as held:
        ports = ",".join(str(held.enter_context(reserve_port())) for _ in range(4))
        ranks = [start(rank, address or "127.0.0.1", ports, folder) for rank in range(2)]
        said = [rank.communicate(timeout=120) for rank in ranks]
    for out, error in said:
        assert out.strip(), error[-3000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


def start(rank: int, address: str, ports: str, folder: Path) -> subprocess.Popen[str]:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, KEEP: 1}
    environment = {**os.environ, **{name: str(value) for name, value in names.items()}}
    environment["MASTER_ADDR"] = address
    command = [sys.executable, "-c", SCRIPT, str(REPO), json.dumps(KNOBS), ports, str(folder)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_calls_with_one_rendezvous_share_a_group(told: list[dict[str, Any]]) -> None:
    for rank in told:
        in_first = [name for name, seen in rank.items() if name != "initialized" and seen[0] == 0]
        assert in_first == [
            "first", "sockets", "again", "sweep", "sockets again", "job", "job again", "copies",
            "copies again", "saves", "saves again", "part", "part again", "pair", "other backend",
        ]  # fmt: skip
        assert [rank[name][1] for name in ("first", "again", "part", "part again")] == [2, 2, 0, 0]
        assert rank["sockets"] == rank["sockets again"], "they are known in later calls, too"
        assert rank["sockets"][1][0] > 0
        assert rank["sockets"][1][1] == 0
    assert told[0]["pair"][1] == told[1]["pair"][1] == [0]


def test_a_job_in_a_kept_group_computes_the_same(told: list[dict[str, Any]]) -> None:
    for kind in ("job", "copies", "saves"):
        for rank in told:
            assert rank[kind][1] == rank[f"{kind} again"][1]
    assert told[0]["job"] == told[1]["job"]


def test_another_rendezvous_an_error_and_no_wish_to_keep_end_a_group(
    told: list[dict[str, Any]],
) -> None:
    for rank in told:
        assert rank["other backend"][1] == "a group of gloo has this rendezvous, not nccl"
        assert rank["other port"] == [1, 2.0], "not the first group"
        assert rank["fake"] == [None, KNOBS["steps"]], "a group of the caller is used"
        assert rank["after fake"][0] is None
        assert rank["failed"][0] is None
        assert rank["alone"] == [None, 2.0]
        assert rank["initialized"] is False


def test_a_socket_that_closes_while_sockets_are_listed_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert all(name.startswith("socket:") for name in process_group.open_sockets().values())
    monkeypatch.setattr(process_group, "Path", lambda _: tmp_path / "missing")
    assert process_group.open_sockets() == {}
