"""Two ranks: a killed run continues bit for bit, and what fails on one rank fails on all.

Three pairs of processes in all, for each costs seconds: one that is never interrupted, one that
is killed, and one that continues from what the killed one left, then meets trouble.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from reference_trainer.config import TrainConfig, cli_options
from reference_trainer.launch.worker import reserve_port
from scaling.ladder.ladder import find_disagreements
from tests.support.paths import REPO

HELD = ExitStack()  # the port of the last pair
KNOBS = {"batch": 2, "seq": 16, "vocab": 64, "dim": 16, "layers": 2, "heads": 2, "device": "cpu"}

# Each entry of `plan` is a run in the same two processes, in one process group.
SCRIPT = """
import json, os, resource, sys
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from reference_trainer.config import TrainConfig
from reference_trainer.checkpoint import save
from reference_trainer.train import train

passing_on = save._send_chunks_to_ranks


class Unreadable:
    writable = staticmethod(lambda: False)

    def read(self, size):
        raise OSError(5, "Input/output error")


def no_reading(file, *arguments):
    passing_on(Unreadable() if file and not file.writable() else file, *arguments)


plan, out = json.loads(sys.argv[1]), sys.argv[2]
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
mine = init_device_mesh("cpu", (2, 1), mesh_dim_names=("apart", "together"))["together"]
results = {}
for name, knobs in plan.items():
    alone, small = knobs.pop("alone", False), knobs.pop("small_files_on_rank_1", False)
    unreadable = knobs.pop("unreadable_on_rank_1", False) and rank == 1
    save._send_chunks_to_ranks = no_reading if unreadable else passing_on
    if alone and rank == 1:
        continue
    if small and rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    if "checkpoints" in knobs:
        knobs["checkpoints"] = knobs["checkpoints"].replace("RANK", str(rank))
    try:
        results[name] = train(TrainConfig(**knobs), mine if alone else None)
    except Exception as error:
        results[name] = {"error": f"{type(error).__name__}: {error}"}
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
with open(f"{out}.rank{rank}.json", "w") as file:
    json.dump(results, file)
os._exit(0)
"""


def start(*words: str) -> list[subprocess.Popen]:
    """Two ranks, with the five variables and nothing else of a launcher's."""
    HELD.close()
    port, ranks = str(HELD.enter_context(reserve_port())), []
    for rank in ("0", "1"):
        job = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1"}
        environment = {**os.environ, **job, "MASTER_PORT": port, "PYTHONPATH": str(REPO)}
        ranks.append(
            subprocess.Popen([sys.executable, *words], env=environment, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        )  # fmt: skip
    return ranks


def finish(ranks: list[subprocess.Popen], seconds: float = 90) -> list[str]:
    """What the ranks printed, once all have ended; kills them when they do not."""
    try:
        return [rank.communicate(timeout=seconds)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def run_plan(folder: Path, plan: dict) -> list[dict]:
    """The results of each rank, by the name of the run."""
    out = folder / "plan"
    full = {name: {**KNOBS, **knobs} for name, knobs in plan.items()}
    printed = finish(start("-c", SCRIPT, json.dumps(full), str(out)))
    files = [folder / f"plan.rank{rank}.json" for rank in (0, 1)]
    assert all(file.exists() for file in files), "\n".join(printed)
    return [json.loads(file.read_text()) for file in files]


def wait_for(path: Path, event: str, step: int, seconds: float = 60) -> dict:
    """The first such line of a journal that is still being written."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        lines = path.read_text().splitlines() if path.exists() else []
        for line in filter(lambda line: line.endswith("}"), lines):
            record = json.loads(line)
            if (record["event"], record.get("step")) == (event, step):
                return record
        time.sleep(0.02)
    raise TimeoutError(f"no {event} of step {step} in {path}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def whole(folder) -> list[dict]:
    """A run of 8 steps that was never interrupted, and one rank's run of the same data."""
    (folder / "whole").mkdir()
    copies = {"shard": 1, "checkpoints": str(folder / "copies")}
    return run_plan(
        folder / "whole",
        {
            "whole": {"steps": 8},
            "again": {"steps": 8},
            "copies": {"steps": 4, "save_every": 4, **copies},
            "sharded": {"steps": 8, **copies, "shard": 0},
            "uneven": {"steps": 1, "shard": 3},
            "slow": {"steps": 2, "save_every": 2, "checkpoints": str(folder / "slow"),
                     "stall": "upload:rank=1:seconds=0.8"},
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def killed(folder) -> dict:
    """A run whose rank 1 was killed with SIGKILL in step 5; its checkpoints stay behind."""
    out, checkpoints = folder / "killed", folder / "checkpoints"
    config = TrainConfig(**KNOBS, steps=8, out=str(out), checkpoints=str(checkpoints),
                         save_every=2, stall="data:rank=0:seconds=1.5:from=5")  # fmt: skip
    ranks = start("-m", "reference_trainer", "train", *cli_options(config))
    try:
        wait_for(out / "metrics.rank1.jsonl", "begin", 5)
        ranks[1].send_signal(signal.SIGKILL)
        killed_at = time.monotonic()
        printed = finish(ranks, seconds=30)
    finally:
        for rank in ranks:
            rank.kill()
    codes = [rank.returncode for rank in ranks]
    return {"codes": codes, "printed": printed, "seconds": time.monotonic() - killed_at}


@pytest.fixture(scope="module")
def after(folder, killed) -> list[dict]:
    """What two fresh processes make of the checkpoints that the killed run left behind."""
    kept = str(folder / "checkpoints")
    late, spoiled, apart = str(folder / "late"), str(folder / "spoiled"), str(folder / "apart-RANK")
    (folder / "after").mkdir()
    return run_plan(
        folder / "after",
        {
            "resumed": {"steps": 8, "checkpoints": kept},
            **{
                what: {"steps": 8, "checkpoints": kept, "forget": what}
                for what in ("rng", "data", "optimizer", "peer", "all")
            },
            "smaller": {"steps": 8, "checkpoints": kept, "alone": True},
            "before_trouble": {"steps": 2, "checkpoints": spoiled, "save_every": 2},
            "trouble": {"steps": 4, "checkpoints": spoiled, "save_every": 2,
                        "save_failures": 0, "small_files_on_rank_1": True},
            "endured": {"steps": 4, "checkpoints": spoiled, "save_every": 2,
                        "save_mode": "async", "small_files_on_rank_1": True},
            "after_trouble": {"steps": 4, "checkpoints": spoiled, "save_every": 2,
                              "save_mode": "async"},
            "apart": {"steps": 4, "checkpoints": apart, "save_every": 4},
            "apart_again": {"steps": 8, "checkpoints": apart},
            "hang": {"steps": 4, "timeout_s": 1.0, "out": late,
                     "stall": "data:rank=1:seconds=2.5:to=2"},
        },
    )  # fmt: skip


def hexes(result: dict) -> list[tuple]:
    names = ("step", "loss_hex", "local_loss_hex", "norm_hex", "ids", "data_crc32")
    return [tuple(str(step[name]) for name in names) for step in result["steps"]]


def test_all_ranks_agree_on_the_loss_and_the_weights_but_not_on_the_data(whole):
    one, two = (rank["whole"] for rank in whole)
    assert one["digest"] == two["digest"]
    for a, b in zip(one["steps"], two["steps"], strict=True):
        assert (a["loss_hex"], a["norm_hex"]) == (b["loss_hex"], b["norm_hex"])
        assert a["loss"] == pytest.approx((a["local_loss"] + b["local_loss"]) / 2, rel=1e-6)
        assert not set(a["ids"]) & set(b["ids"])
    assert one["tokens_per_step"] == 64
    assert not find_disagreements([one, two])
    assert find_disagreements([one, one])


def test_the_same_run_twice_is_the_same_bit_for_bit(whole):
    for rank in whole:
        assert hexes(rank["again"]) == hexes(rank["whole"])
        assert rank["again"]["digest"] == rank["whole"]["digest"]


def test_whether_the_model_is_sharded_makes_no_difference_but_rounding(whole):
    for rank in whole:
        assert rank["sharded"]["start_step"] == 4
        halves = [*rank["copies"]["steps"], *rank["sharded"]["steps"]]
        for step, wanted in zip(halves, rank["whole"]["steps"], strict=True):
            assert step["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
            assert step["norm"] == pytest.approx(wanted["norm"], rel=1e-4)
        assert "shard is 3. Expected: a divisor of the 2 ranks" in rank["uneven"]["error"]


def test_a_rank_that_waits_for_anothers_writing_does_not_count_it_as_its_own(whole):
    waits, writes = (rank["slow"]["checkpoints"][0] for rank in whole)
    assert 0 < waits["own"] < waits["seconds"] - 0.6
    assert writes["own"] > 0.8


def test_the_survivor_of_a_killed_rank_ends_with_an_error_and_soon(killed):
    assert killed["codes"][1] == -signal.SIGKILL
    assert killed["codes"][0] == 1, killed["printed"][0]
    assert killed["seconds"] < 20


def test_a_killed_run_continues_bit_for_bit(whole, after):
    for rank in (0, 1):
        resumed, expected = after[rank]["resumed"], whole[rank]["whole"]
        assert resumed["start_step"] == 4
        assert resumed["rng_restored"]
        assert hexes(resumed) == hexes(expected)[4:]
        assert resumed["digest"] == expected["digest"]


@pytest.mark.parametrize("what", ["rng", "data", "optimizer", "peer", "all"])
def test_a_resume_that_forgets_is_another_run(whole, after, what):
    """The controls: the comparison above can fail, for each part of the state."""
    for rank in (0, 1):
        forgetful, expected = after[rank][what], whole[rank]["whole"]
        assert forgetful["start_step"] == 4
        assert forgetful["rng_restored"] is (what not in ("rng", "all"))
        assert hexes(forgetful) != hexes(expected)[4:]
        assert forgetful["digest"] != expected["digest"]
        same_data = [s["ids"] for s in forgetful["steps"]] == [
            s["ids"] for s in expected["steps"][4:]
        ]
        assert same_data is (what != "data")


def test_fewer_ranks_continue_where_more_left_off(whole, after):
    """One rank of a mesh of its own takes over: weights fit, and a step's samples are the same."""
    smaller = after[0]["smaller"]
    assert (smaller["start_step"], smaller["world"]) == (4, 1)
    assert not smaller["rng_restored"]
    both = [whole[rank]["whole"]["steps"][4:] for rank in (0, 1)]
    together = [one["ids"] + two["ids"] for one, two in zip(*both, strict=True)]
    assert [step["ids"] for step in smaller["steps"]] == together
    for alone, expected in zip(smaller["steps"], both[0], strict=True):
        assert alone["loss"] == pytest.approx(expected["loss"], abs=0.1)
    assert smaller["steps"][0]["loss"] < whole[0]["whole"]["steps"][0]["loss"] - 0.02


def test_a_save_that_fails_on_one_rank_fails_on_all_and_spoils_nothing(folder, after):
    """Rank 1 may not write files above 2000 bytes; then it may again."""
    errors = [rank["trouble"]["error"] for rank in after]
    assert errors[0] == errors[1]
    assert errors[0].startswith("CheckpointError: step 4 was not saved: rank 1 on ")
    assert "File too large" in errors[0]
    for rank in after:
        assert rank["endured"]["unsaved"][0]["error"] in errors[0]
        assert rank["endured"]["checkpoints"] == []
        assert rank["after_trouble"]["start_step"] == 2
        assert [saved["step"] for saved in rank["after_trouble"]["checkpoints"]] == [4]
    names = sorted(path.name for path in (folder / "spoiled").iterdir())
    assert names == ["LATEST", "step-2", "step-4"]


def test_without_a_shared_folder_rank_0_keeps_what_all_resume_from(folder, whole, after):
    """Each rank has a folder of its own, as on nodes without a shared file system."""
    assert [path.name for path in (folder / "apart-0").glob("step-*")] == ["step-4"]
    assert not list((folder / "apart-1").glob("step-*"))
    for rank in (0, 1):
        again, expected = after[rank]["apart_again"], whole[rank]["whole"]
        assert again["start_step"] == 4
        assert "kept on" in again["resume_note"]
        assert hexes(again) == hexes(expected)[4:]
        assert again["digest"] == expected["digest"]


def test_a_file_that_cannot_be_read_to_be_sent_costs_a_save_and_nobody_waits(tmp_path):
    """Rank 1 wrote its part, and its disk does not give it back."""
    apart = {"checkpoints": str(tmp_path / "apart-RANK"), "save_every": 2, "steps": 4}
    ran = run_plan(tmp_path, {"run": {**apart, "unreadable_on_rank_1": True, "init_timeout_s": 20}})
    for rank in ran:
        assert [step["step"] for step in rank["run"]["steps"]] == [1, 2, 3, 4]
        assert [save["step"] for save in rank["run"]["unsaved"]] == [2, 4]
        for save in rank["run"]["unsaved"]:
            assert "__1_0.distcp was not sent to another node: rank 1 on" in save["error"]
            assert "Input/output error" in save["error"]


def test_a_late_rank_is_waited_for_in_the_first_step_but_not_later(folder, after):
    """Rank 1 is 2.5 s late in steps 1 and 2; the limit is 1 s, but only after the first step."""
    lines = (folder / "late/metrics.rank0.jsonl").read_text().splitlines()
    events = [(json.loads(line)["event"], json.loads(line).get("step")) for line in lines]
    assert events == [("start", None), ("begin", 1), ("step", 1), ("begin", 2)]
    error = after[0]["hang"]["error"]
    assert "imed out" in error, error


def test_it_runs_under_torchrun(folder):
    """One process is enough here: torchrun sets the same variables for any number."""
    config = TrainConfig(**KNOBS, steps=2, out=str(folder / "torchrun"))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1",
         "-m", "reference_trainer", "train", *cli_options(config)],
        capture_output=True, text=True, timeout=90, cwd=REPO,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "step 2/2  loss" in done.stdout
    result = json.loads((folder / "torchrun/result.rank0.json").read_text())
    assert len(result["steps"]) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a port cannot be held")
@pytest.mark.parametrize("libuv", [True, False])
def test_a_held_port_is_for_the_rendezvous_alone(libuv: bool) -> None:
    with reserve_port() as port:
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))
        store = TCPStore("127.0.0.1", port, 1, True, timedelta(seconds=30), use_libuv=libuv)
        store.set("met", "here")
        assert store.get("met") == b"here"
