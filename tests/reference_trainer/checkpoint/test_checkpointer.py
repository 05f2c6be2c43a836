"""One rank, in this process: the loss falls, the clock adds up, damaged checkpoints are skipped."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from probes.restart import faulted_run as damages
from probes.restart.reference_run import small_config
from reference_trainer import manifest
from reference_trainer.checkpoint import checkpointer
from reference_trainer.checkpoint.checkpointer import last_largest
from reference_trainer.config import TrainConfig, cli_options
from reference_trainer.distributed import choose_device
from reference_trainer.manifest import CheckpointError
from reference_trainer.model.transformer import EmulatedCompute, Transformer
from reference_trainer.rank_environment import LAUNCH_VARIABLES, LaunchError
from scaling.ladder.step_breakdown import parse_steps, wall_gap
from tests.conftest import SMALL, hexes
from tests.support.single_rank import only_rank


def rows(length, size):
    """The rows of each rank, as FSDP2 cuts a first dimension (torch.chunk)."""
    chunk = -(-length // size)
    return [max(0, min(chunk, length - rank * chunk)) for rank in range(size)]


@pytest.mark.parametrize("size", [2, 3, 5, 7, 9, 16, 40, 56, 72, 257, 512])
def test_the_rank_that_forgets_has_something_to_forget(size):
    """Of many ranks the last have no row of any parameter: there a stale state would be none."""
    with torch.device("meta"):
        model = Transformer(small_config(8, Path("unused")))
    shapes = [parameter.shape for parameter in model.parameters()]
    held = [[cut * shape.numel() // shape[0] for cut in rows(shape[0], size)] for shape in shapes]
    stale = last_largest([sum(own) for own in zip(*held, strict=True)])
    assert all(own[stale] > 0 for own in held)
    if size == 2:  # both hold as much
        assert stale == size - 1
    if size in (40, 512):
        assert not any(own[-1] for own in held)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_one_rank_that_has_rows_loads_the_older_checkpoint(monkeypatch, tmp_path, rank):
    loaded, counts = [], []
    monkeypatch.setattr(checkpointer, "load_plain", lambda state, folder, _: loaded.append(folder))
    monkeypatch.setattr(checkpointer.manifest, "committed_steps", lambda _: [8, 6, 4])

    def gather(count):
        counts.append(count)
        return [6, 6, 0]

    world = SimpleNamespace(rank=rank, group=None, gather=gather)
    part = SimpleNamespace(to_local=lambda: torch.zeros(2, 3))
    state = {"model": {"a": part}, "optimizer": {}, "other": 1}
    choice = SimpleNamespace(step=8)
    checkpointer._load_stale_rank(state, tmp_path, choice, world)
    assert loaded == [tmp_path / ("step-6" if rank == 1 else "step-8")]
    assert counts == [6]


def test_the_loss_falls(alone):
    steps = alone(steps=40, lr=3e-3)["steps"]
    first, last = steps[0]["loss"], steps[-1]["loss"]
    assert 3.9 < first < 4.5  # log(64) = 4.16: an untrained model knows nothing
    assert last < first - 0.7


def test_a_run_can_be_repeated_bit_by_bit_and_another_seed_differs(alone, saved):
    again, other = alone(steps=6), alone(steps=6, seed=1)
    assert hexes(again) == hexes(saved[1])
    assert again["digest"] == saved[1]["digest"] != other["digest"]


@pytest.mark.parametrize("knobs", [{"accumulate": 2}, {"recompute": True}])
def test_how_a_step_is_computed_makes_no_difference_but_rounding(alone, knobs):
    usual, other = (alone(steps=4, dropout=0.0, batch=4, **more) for more in ({}, knobs))
    for step, wanted in zip(other["steps"], usual["steps"], strict=True):
        assert step["ids"] == wanted["ids"]
        assert step["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
        assert step["norm"] == pytest.approx(wanted["norm"], rel=1e-4)


@pytest.mark.soak(criterion="restart")  # the compiler takes a minute
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
def test_compiled_blocks_compute_the_same(alone, tmp_path):
    """In a process of its own, for the compiler warns of what is torch's own."""
    knobs = {**SMALL, "steps": 3, "dropout": 0.0}
    config = TrainConfig(**knobs, compile=True, out=str(tmp_path))
    words = [sys.executable, "-m", "reference_trainer", "train", *cli_options(config)]
    with only_rank():
        subprocess.run(words, check=True, timeout=300)
    compiled = json.loads((tmp_path / "result.rank0.json").read_text())
    for step, wanted in zip(compiled["steps"], alone(**knobs)["steps"], strict=True):
        assert step["loss"] == pytest.approx(wanted["loss"], rel=1e-5)


def test_what_is_computed_again_draws_the_same_random_numbers(alone, saved):
    assert hexes(alone(steps=6, recompute=True)) == hexes(saved[1])


def test_every_step_is_the_sum_of_its_segments(alone, tmp_path):
    """With a delay in each segment, so that none of them is nothing."""
    names = ("data", "forward", "backward", "clip", "optimizer", "checkpoint", "other")
    stall = ",".join(f"{name}:rank=0:seconds=0.03:from=2" for name in names)
    ran = alone(steps=3, stall=stall, out=str(tmp_path / "out"), save_every=2,
                checkpoints=str(tmp_path / "checkpoints"))  # fmt: skip
    spans = [json.loads(x) for x in (tmp_path / "out/spans.rank0.jsonl").read_text().splitlines()]
    assert spans == ran["spans"]
    assert [s["step"] for s in spans] == [1, 2, 3]
    for span in spans:
        assert tuple(span["segments"]) == names
        assert sum(span["segments"].values()) == pytest.approx(span["seconds"], rel=1e-9)
        assert (span["clock"], span["separable"]) == ("host", False)
    assert wall_gap([parse_steps(spans)]) < 0.1  # the host's clock says so too
    assert all(seconds >= 0.03 for seconds in spans[1]["segments"].values())
    assert spans[0]["segments"]["checkpoint"] == 0
    # one a segment and step, two of "other": once before the data and once at the end
    assert ran["stalls_fired"] == 2 * (len(names) + 1)


def test_a_steps_line_says_whose_clock_its_rate_is_by(alone, caplog):
    with caplog.at_level("INFO", "reference_trainer"):
        ran = alone(steps=1)
    (step,) = ran["steps"]
    rate = ran["tokens_per_step"] / step["seconds"]
    (line,) = [line for line in caplog.messages if line.startswith("step 1/1  ")]
    assert f"  {step['seconds']:.3f} s on rank 0  {rate:,.0f} tok/s" in line
    assert f"loss {step['loss']:.4f}  norm {step['norm']:.4f}" in line


def test_others_can_follow_a_run_while_it_goes_on(alone, tmp_path):
    ran = alone(steps=2, out=str(tmp_path / "out"), checkpoints=str(tmp_path / "c"), save_every=2)
    lines = (tmp_path / "out/metrics.rank0.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    saving = ["saving", "written", "sealed", "saved", "save-returned"]
    order = ["start", "begin", "step", "begin", *saving, "step", "end"]
    assert [event["event"] for event in events] == order
    assert events[0]["config"]["steps"] == 2
    result = json.loads((tmp_path / "out/result.rank0.json").read_text())
    assert result == ran
    assert result["tokens_per_step"] == 32


def test_a_resumed_run_equals_one_that_was_never_interrupted(alone, saved):
    folder, whole = saved
    resumed = alone(steps=6, checkpoints=str(folder))
    assert resumed["start_step"] == 4
    assert resumed["resumed_from"] == str(folder / "step-4")
    assert hexes(resumed) == hexes(whole)[4:]
    assert resumed["digest"] == whole["digest"]


def flip(path: Path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path):
    path.write_bytes(path.read_bytes()[:-100])


def future(path: Path):
    content = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**content, "schema": manifest.SCHEMA + 1}))


def foreign(path: Path):
    content = manifest.read(path)
    (path / "manifest.json").unlink()
    manifest.write(path, step=4, world=1, identity={**content["identity"], "dim": 99},
                   files=content["files"])  # fmt: skip


def as_file(path: Path):
    shutil.rmtree(path)
    path.write_text("not a folder")


DAMAGE = {
    "truncated data": (lambda p: cut(p / "__0_0.distcp"), r"__0_0.distcp has \d+ bytes, expected"),
    "flipped bit": (lambda p: flip(p / "__0_0.distcp"), "__0_0.distcp does not match its sha256"),
    "missing data": (lambda p: (p / "__0_0.distcp").unlink(), "__0_0.distcp is missing"),
    "torn metadata": (lambda p: cut(p / ".metadata"), r".metadata has \d+ bytes, expected"),
    "no metadata": (lambda p: (p / ".metadata").unlink(), ".metadata is missing"),
    "no manifest": (lambda p: (p / "manifest.json").unlink(), "no manifest.json: the save was"),
    "torn manifest": (lambda p: cut(p / "manifest.json"), "manifest.json cannot be read"),
    "a list": (lambda p: (p / "manifest.json").write_text("[]"), "manifest.json has no schema"),
    "future schema": (
        future,
        "manifest.json has schema 4, but this trainer reads schema 3",
    ),
    "foreign": (foreign, "it belongs to another run: dim is 99, not 16"),
    "not a folder": (as_file, "manifest.json cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_skipped_with_a_reason(alone, saved, folder, damage):
    """The run falls back to step 2, repeats steps 3 and 4, and ends where it should have."""
    act, reason = DAMAGE[damage]
    act(folder / "step-4")
    ran = alone(steps=6, checkpoints=str(folder))
    assert ran["start_step"] == 2
    assert [skipped["name"] for skipped in ran["skipped"]] == ["step-4"]
    assert re.search(reason, ran["skipped"][0]["reason"])
    assert hexes(ran) == hexes(saved[1])[2:]
    assert ran["digest"] == saved[1]["digest"]


def test_dcp_alone_would_load_the_flipped_bit(alone, saved, folder, monkeypatch):
    """Why there is a manifest: without it a damaged weight goes in without a word."""
    damages.flip_bit(folder / "step-4")
    monkeypatch.setattr(manifest, "check_file", lambda *_: None)
    ran = alone(steps=6, checkpoints=str(folder))
    assert ran["start_step"] == 4
    assert ran["digest"] != saved[1]["digest"]


def test_without_any_usable_checkpoint_it_starts_over_and_says_so(alone, folder, tmp_path):
    for step in (2, 4):
        cut(folder / f"step-{step}/.metadata")
    ran = alone(steps=1, checkpoints=str(folder))
    assert ran["start_step"] == 0
    assert len(ran["skipped"]) == 2
    assert ran["resume_note"] == f"no usable checkpoint in {folder}: starting from step 0"
    fresh = alone(steps=1, checkpoints=str(tmp_path / "new"))
    assert fresh["resume_note"] == f"no checkpoint in {tmp_path / 'new'}: starting from step 0"
    assert fresh["resumed_from"] is None


def test_leftovers_of_dead_attempts_are_removed_and_never_loaded(alone, folder):
    (folder / "step-4").rename(folder / "step-4.tmp-0badf00d")
    ran = alone(steps=3, checkpoints=str(folder))
    assert ran["start_step"] == 2
    assert not list(folder.glob("*.tmp-*"))


def test_a_pointer_that_lies_is_not_believed(alone, folder):
    (folder / "LATEST").write_text("step-99\n")
    assert alone(steps=5, checkpoints=str(folder))["start_step"] == 4


def test_a_fresh_start_over_old_checkpoints_is_refused(alone, folder):
    with pytest.raises(CheckpointError, match="already has step-4, and --no-resume is set"):
        alone(steps=5, checkpoints=str(folder), resume=False)


def test_the_rate_rises_and_falls_as_asked_and_a_resume_knows_it(alone, tmp_path):
    knobs = {"warmup": 2, "decay": 6, "lr": 1e-2, "checkpoints": str(tmp_path)}
    whole = alone(steps=8, save_every=4, **knobs)
    rates = [step["lr"] for step in whole["steps"]]
    assert rates[:3] == pytest.approx([0.005, 0.01, 0.01])
    assert rates[4] == pytest.approx(0.0055)
    assert rates[6:] == pytest.approx([0.001, 0.001])
    shutil.rmtree(tmp_path / "step-8")
    resumed = alone(steps=8, **knobs)
    assert resumed["start_step"] == 4
    assert [step["lr"] for step in resumed["steps"]] == rates[4:]
    assert hexes(resumed) == hexes(whole)[4:]


def test_what_a_resumed_run_changes_is_told(alone, folder, caplog):
    """The optimizer goes on as it was saved; what it does not hold is as it is asked for now."""
    caplog.set_level("WARNING", "reference_trainer")
    resumed = alone(steps=6, checkpoints=str(folder), lr=0.5, dropout=0.25)
    assert resumed["start_step"] == 4
    assert resumed["steps"][0]["lr"] == TrainConfig().lr
    assert [record.getMessage() for record in caplog.records] == [
        "lr stays 0.001, as in the checkpoint: 0.5 is ignored",
        "dropout is 0.25 from now on; in the checkpoint it was 0.1",
    ]
    caplog.clear()
    alone(steps=6, checkpoints=str(folder))
    assert not caplog.records


def test_the_parameters_of_each_step_are_told_where_they_are_asked_for(alone, saved):
    ran = alone(steps=6, digest_steps=True)
    found = [step["digest"] for step in ran["steps"]]
    assert len(set(found)) == 6
    assert found[-1] == ran["digest"] == saved[1]["digest"]
    assert "digest" not in saved[1]["steps"][0]


def test_a_paced_step_takes_its_time(alone):
    for span in alone(steps=4, pace_s=0.15)["spans"]:
        assert span["segments"]["forward"] >= 0.05
        assert span["segments"]["backward"] >= 0.10
    unpaced = alone(steps=4)["spans"][1:]
    assert min(span["segments"]["backward"] for span in unpaced) < 0.10


@pytest.mark.parametrize(("pace_s", "seconds", "late"), [(0.6, 0.2, 0), (0.03, 0.1, 1)])
def test_padding_goes_up_to_a_time_and_never_on_top(pace_s, seconds, late):
    """The block needs 0.1 s: within a share of 0.2 s nobody sees it, beyond 0.01 s everybody."""
    import torch

    class Slow(torch.nn.Linear):
        def forward(self, x):
            time.sleep(0.1)
            return super().forward(x)

    pace, block = EmulatedCompute(pace_s, blocks=1), Slow(4, 4)
    pace.attach(block)
    begun = time.perf_counter()
    out = block(torch.ones(1, 4, requires_grad=True))
    assert seconds <= time.perf_counter() - begun < seconds + 0.09
    assert pace.overruns == late
    begun = time.perf_counter()
    out.sum().backward()
    assert time.perf_counter() - begun >= pace.backward_s == pytest.approx(pace_s * 2 / 3)


def test_a_run_leaves_the_process_as_it_was(alone):
    import torch

    threads = torch.get_num_threads()
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(2)
    alone(steps=1)
    assert torch.get_num_threads() == 2
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.distributed.is_initialized()
    torch.set_num_threads(threads)


def test_a_missing_variable_is_one_sentence_at_once(monkeypatch):
    """It needs no torch, whose import takes seconds, to see that a variable is missing."""
    for name, value in zip(LAUNCH_VARIABLES[:4], ("0", "1", "0", "127.0.0.1"), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    code = (
        "import runpy, sys\nsys.modules['torch'] = None\nsys.argv[1:] = ['train']\n"
        "runpy.run_module('reference_trainer', run_name='__main__', alter_sys=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("Error: MASTER_PORT not set in the environment: start the job")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("MASTER_PORT", "http", "MASTER_PORT is 'http' in the environment. Expected: a whole"),
     ("RANK", "1", "RANK is 1. Expected: below WORLD_SIZE=1")],
)  # fmt: skip
def test_an_impossible_variable_is_one_sentence(monkeypatch, name, value, message):
    from reference_trainer.train import train

    for known, good in zip(LAUNCH_VARIABLES, ("0", "1", "0", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(known, value if known == name else good)
    with pytest.raises(LaunchError, match=message):
        train(TrainConfig(**SMALL))


@pytest.mark.parametrize(("gpus", "rank", "index"), [(1, 0, 0), (1, 3, 0), (8, 3, 3)])
def test_a_rank_takes_its_own_gpu(monkeypatch, gpus, rank, index):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert choose_device("auto", rank) == torch.device("cuda", index)
    assert choose_device("cpu", rank) == torch.device("cpu")


def test_a_rank_without_a_gpu_says_so(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(LaunchError, match="LOCAL_RANK is 2 but this process sees 2 GPUs"):
        choose_device("auto", 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(LaunchError, match="no GPU is visible"):
        choose_device("cuda", 0)
    assert choose_device("auto", 0) == torch.device("cpu")
