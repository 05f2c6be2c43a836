"""Collectives on real ranks: torchrun starts two gloo processes that check every element."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scaling.collectives.node_groups import BOTH_WAYS, ONE_WAY
from scaling.collectives.operations import OPERATIONS
from tests.support.paths import REPO

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]


def ranks(*arguments: str, number: int = 2) -> subprocess.CompletedProcess[str]:
    """So many ranks under torchrun, and none of them left over."""
    command = [*TORCHRUN, str(number), *arguments]
    with subprocess.Popen(
        command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        try:
            out, err = job.communicate(timeout=120)
        finally:
            job.terminate()  # torchrun then ends its ranks, each of which is a session of its own
    return subprocess.CompletedProcess(command, job.returncode, out, err)


# One in place, one in both forms; the values of all six are checked below.
@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter"])
def test_a_collective_under_torchrun_is_exact_and_told(name: str, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    small = ["-b", "8", "-e", "64K", "--budget", "0.02"]
    done = ranks("-m", "scaling.collectives", name, "--backend", "gloo", *small, "-J", str(file))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "alpha-beta fit" in done.stdout
    found = json.loads(file.read_text())
    assert found["out_of_bounds"] == {"count": 0, "okay": True}
    sizes = [result["size"] for result in found["results"]]
    assert sizes == [1 << power for power in range(3, 17)]
    assert done.stdout.count("     float  ") == len(sizes), "a line for each"
    for placement in OPERATIONS[name].placements:
        last = found["results"][-1][placement]
        assert last["bus_bw"] > 0
        assert len(last["rank_times"]) == 2


def test_a_sweep_that_ends_early_says_why() -> None:
    done = ranks("-m", "scaling.collectives", "all_reduce", "--backend", "gloo", "--longest", "0")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "# messages above 8 bytes were skipped: one call of that size takes " in done.stdout


@pytest.mark.parametrize(
    ("number", "name", "sizes", "why"),
    [
        (
            1,
            "all_reduce",
            ["-b", "128M"],
            "messages above 64 MiB were skipped: the limit of this test for gloo",
        ),
        (3, "all_gather", ["-e", "8"], "all_gather over 3 ranks needs 12 bytes or more"),
    ],
)
def test_a_sweep_without_any_size_is_no_success(
    number: int, name: str, sizes: list[str], why: str
) -> None:
    done = ranks("-m", "scaling.collectives", name, "--backend", "gloo", *sizes, number=number)
    assert done.returncode != 0
    assert f"error: nothing was measured: {why}\n" in done.stderr
    assert done.stdout == ""


CORRUPT = """
from scaling.collectives.sweep import summarise, sweep
from scaling.collectives.operations import OPERATIONS
found = sweep(tuple(OPERATIONS), only=4096, budget=0.01, corrupt=1)
import json, os
with open(os.environ["OUT"] + str(found["rank"]), "w") as file:
    json.dump(found, file)
"""


def test_one_wrong_element_is_found_in_every_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "corrupt.py"
    script.write_text(CORRUPT)
    monkeypatch.setenv("OUT", str(tmp_path / "rank"))
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    done = ranks(str(script))
    assert done.returncode == 0, done.stderr[-2000:]
    good, bad = (json.loads((tmp_path / f"rank{rank}").read_text()) for rank in (0, 1))
    for name in OPERATIONS:
        assert [row["wrong"] for row in good["sweeps"][name]["rows"]] == [0] * len(
            OPERATIONS[name].placements
        )
        for row in bad["sweeps"][name]["rows"]:
            assert row["wrong"] == 2  # before and after the timing
            assert row["first_wrong"] is not None


def test_bad_sizes_are_refused_in_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scaling.collectives", "all_reduce", "-b", "12Q"],
        cwd=REPO, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 4
    assert done.stderr.startswith("error: expected --minbytes and --maxbytes as numbers of bytes")


def test_without_torchrun_one_sentence_says_how_to_start_it() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "MASTER_PORT"}
    done = subprocess.run(
        [sys.executable, "-m", "scaling.collectives", "all_reduce"], cwd=REPO, env=environment,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1
    assert "start it as `torchrun --nproc-per-node 8 -m scaling.collectives all_reduce`" in (
        done.stderr
    )


MEETING = """
from scaling.collectives import node_groups as meetings
import json, os
if os.environ["RANK"] == os.environ.get("CHANGES"):
    send = meetings._send
    def changed(buffer, *more):
        buffer[len(buffer) // 2] += 1
        return send(buffer, *more)
    meetings._send = changed
count = iter(range(100))
reader = lambda: lambda: next(count)
found = meetings.pair_sweep(3, 1 << 16, reader, None, [meetings.ONE_WAY], [(0, 1)])
with open(os.environ["OUT"] + os.environ["RANK"], "w") as file:
    json.dump([found.received, found.sent], file)
"""


@pytest.mark.parametrize(("changes", "wrong"), [("none", [0, 0]), ("1", [3, 0])])
def test_a_meeting_tells_speed_and_changed_elements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: str, wrong: list[int]
) -> None:
    script = tmp_path / "meeting.py"
    script.write_text(MEETING)
    for name, value in (("OUT", tmp_path / "rank"), ("PYTHONPATH", REPO), ("CHANGES", changes)):
        monkeypatch.setenv(name, str(value))
    done = ranks(str(script))
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads((tmp_path / f"rank{rank}").read_text()) for rank in (0, 1)]
    (got, sent), (other_got, other_sent) = found
    assert [got["1"][1], other_got["0"][1]] == wrong
    assert got["1"][0] > 0
    assert sent == {"1": [0, 1, 2, 3]}  # before the first of three tries, and after each
    assert other_sent == {"0": [0, 1, 2, 3]}


BOTH = """
from scaling.collectives import node_groups as meetings
import json, os, time
import torch.distributed as dist
rank = int(os.environ["RANK"])
if os.environ["RANK"] == os.environ["LATE"]:
    batch = dist.batch_isend_irecv
    class Late:
        def __init__(self, send):
            self.send = send
        def wait(self):
            time.sleep(1)
            dist.send(self.send.tensor, self.send.peer)
    def late(parts):
        receive, send = parts
        if receive.tensor.numel() == 1:
            return batch(parts)
        return [dist.irecv(receive.tensor, receive.peer), Late(send)]
    dist.batch_isend_irecv = late
pairs = [[0, 2], [1, 3]]  # two nodes with two rails
count = iter(range(100))
found = meetings.pair_sweep(
    3, 1 << 20, lambda: lambda: next(count), None, json.loads(os.environ["WAYS"]),
    [pairs[rank % 2], None],
)
with open(os.environ["OUT"] + os.environ["RANK"], "w") as file:
    json.dump([found.received, found.sent, found.exchanged], file)
"""


def exchange(folder: Path, patch: pytest.MonkeyPatch, ways: list[str], late: str) -> Any:
    """What four ranks say that met two by two."""
    script = folder / "both.py"
    script.write_text(BOTH)
    names = {"OUT": folder / "rank", "PYTHONPATH": REPO, "LATE": late, "WAYS": json.dumps(ways)}
    for name, value in names.items():
        patch.setenv(name, str(value))
    done = ranks(str(script), number=4)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads((folder / f"rank{rank}").read_text()) for rank in range(4)]


def test_ranks_that_send_both_ways_time_each_direction_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rails of two nodes at once: one of the four directions is late, and only that is slow."""
    found = exchange(tmp_path, monkeypatch, [BOTH_WAYS], "3")
    speeds = []
    for rank, (received, sent, exchanged) in enumerate(found):
        ((peer, (gbs, wrong, payload)),) = exchanged.items()
        assert (int(peer), wrong, payload) == ((rank + 2) % 4, 0, 3 << 20)
        assert received == {}
        assert sent == {peer: [0, 1]}  # before and after all tries, whoever waits
        speeds.append(gbs)
    assert speeds[1] < (1 << 20) / 0.8 / 1e9 < min(speeds[0], speeds[2], speeds[3])


def test_ranks_can_send_one_way_and_then_both_in_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for received, sent, exchanged in exchange(tmp_path, monkeypatch, [ONE_WAY, BOTH_WAYS], ""):
        (((_, wrong),), ((_, other, _),)) = received.values(), exchanged.values()
        assert (wrong, other) == (0, 0)
        ((*_, last),) = sent.values()
        assert len(sent) == 1
        assert last >= 3  # read before the first of three tries, and after each


OWN_GROUPS = """
from scaling.collectives import node_groups as meetings
import json, os
import torch.distributed as dist
rank, groups = int(os.environ["RANK"]), []
def get_backend():
    groups.append(len(dist.distributed_c10d._world.pg_names))
    return "nccl"
make = meetings.process_group
def process_group():
    return make("gloo")
dist.get_backend, meetings.process_group = get_backend, process_group
table = [[[0, 1]], [[1, 2], [0, 3]], [[2, 3]]]  # a rank rests in the first round, or in the last
own = [next((pair for pair in pairs if rank in pair), None) for pairs in table]
reader = lambda: lambda: None
ways = [meetings.ONE_WAY, meetings.BOTH_WAYS]
found = meetings.pair_sweep(2, 1 << 16, reader, None, ways, own)
with open(os.environ["OUT"] + os.environ["RANK"], "w") as file:
    json.dump([found.received, found.exchanged, groups], file)
"""


def test_pairs_that_have_groups_of_their_own_meet_round_by_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over gloo, as NCCL does it: no group is left, whoever had a peer in the last round."""
    script = tmp_path / "own.py"
    script.write_text(OWN_GROUPS)
    for name, value in (("OUT", tmp_path / "rank"), ("PYTHONPATH", REPO)):
        monkeypatch.setenv(name, str(value))
    done = ranks(str(script), number=4)
    assert done.returncode == 0, done.stderr[-2000:]
    peers = [{1, 3}, {0, 2}, {1, 3}, {2, 0}]
    for rank in range(4):
        received, exchanged, groups = json.loads((tmp_path / f"rank{rank}").read_text())
        assert {*map(int, received)} == {*map(int, exchanged)} == peers[rank]
        assert all(speed > 0 and wrong == 0 for speed, wrong, *_ in exchanged.values())
        assert {*groups} == {1}, "only that of all ranks, whenever another is made"


GROUPS = """
from scaling.collectives import node_groups as meetings
import json, os, torch
if os.environ["RANK"] == os.environ["CHANGES"]:
    fill = torch.Tensor.fill_
    torch.Tensor.fill_ = lambda tensor, value: fill(tensor, value + 1)
own = meetings.own_parts(json.loads(os.environ["GROUPS"]), 2)[int(os.environ["RANK"])]
found = meetings.group_sweep(1 << 14, None, own)
with open(os.environ["OUT"] + os.environ["RANK"], "w") as file:
    json.dump(found, file)
"""


@pytest.mark.parametrize(
    ("groups", "changes", "wrong"),
    [([[1, 0]], "none", [0, 0]), ([[1, 0]], "1", [1 << 12] * 2), ([[1]], "1", [0, 1 << 12])],
)
def test_groups_tell_speed_and_wrong_elements(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: list[list[int]],
    changes: str,
    wrong: list[int],
) -> None:
    script = tmp_path / "groups.py"
    script.write_text(GROUPS)
    monkeypatch.setenv("OUT", str(tmp_path / "rank"))
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    monkeypatch.setenv("CHANGES", changes)
    monkeypatch.setenv("GROUPS", json.dumps(groups))
    done = ranks(str(script))
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads((tmp_path / f"rank{rank}").read_text()) for rank in (0, 1)]
    assert [count for _, count in found] == wrong
    assert all((speed > 0) == (len(groups[0]) > 1) for speed, _ in found)


COPIES = """
import json, os, sys
import torch.distributed as dist
from reference_trainer.config import TrainConfig
from reference_trainer.train import train
dist.init_process_group("gloo")
knobs = dict(batch=2, seq=16, vocab=61, dim=12, layers=2, heads=2, steps=3, clip=0.5, device="cpu",
             dropout=0.0)
found = {shard: train(TrainConfig(shard=shard, **knobs)) for shard in (0, 1, 2)}
if dist.get_rank() == 0:
    print(json.dumps({s: [(x["loss"], x["norm"]) for x in r["steps"]] for s, r in found.items()}))
dist.barrier()  # a rank that leaves while another still works aborts it
dist.destroy_process_group()
"""


def test_copies_of_a_sharded_model_learn_what_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four ranks: one model, four copies, two copies of two shards; some shards are empty."""
    script = tmp_path / "copies.py"
    script.write_text(COPIES)
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    done = ranks(str(script), number=4)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert all(norm > 0.5 for _, norm in found["0"])  # clipped: a wrong norm is another model
    for shard in ("1", "2"):
        for step, wanted in zip(found[shard], found["0"], strict=True):
            assert step == pytest.approx(wanted, rel=1e-4)
