"""One rank's saves: which are kept, a full disk, in the background, and on the way out."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from reference_trainer import manifest
from reference_trainer.checkpoint import save as saving
from reference_trainer.config import TrainConfig, cli_options
from reference_trainer.manifest import CheckpointError
from reference_trainer.telemetry.event_log import PROGRESS, exit_message
from tests.conftest import SMALL, hexes
from tests.support.single_rank import only_rank
from tests.support.small_disk import needs_root, small_disk

# torch's own writer, on Python 3.13: after a full disk it is flushed once more, when it is closed.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*NoCloseWriter:pytest.PytestUnraisableExceptionWarning"
)


def test_only_the_newest_are_kept_and_latest_names_the_newest(alone, tmp_path):
    ran = alone(steps=7, checkpoints=str(tmp_path), save_every=2, keep_last=2)
    assert [saved["step"] for saved in ran["checkpoints"]] == [2, 4, 6, 7]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["LATEST", "step-6", "step-7"]
    assert (tmp_path / "LATEST").read_text() == "step-7\n"


def test_a_damaged_newer_one_neither_counts_as_kept_nor_is_written_over(alone, folder):
    damaged = (folder / "step-4/__0_0.distcp").read_bytes()[:-100]
    (folder / "step-4/__0_0.distcp").write_bytes(damaged)
    alone(steps=3, checkpoints=str(folder), save_every=1, keep_last=1)
    assert (folder / "step-3/manifest.json").exists()
    alone(steps=4, checkpoints=str(folder), save_every=1, keep_last=1)
    assert manifest.committed_steps(folder) == [4]
    kept = list(folder.glob("step-4.rejected-*/__0_0.distcp"))
    assert [path.read_bytes() for path in kept] == [damaged]
    assert alone(steps=5, checkpoints=str(folder))["start_step"] == 4


def test_what_another_run_left_is_neither_counted_nor_removed(alone, tmp_path):
    knobs = {"checkpoints": str(tmp_path), "save_every": 2, "keep_last": 2}
    theirs, ours = {**knobs, "seed": 1}, {**knobs, "seed": 2}
    alone(steps=4, **theirs)
    ran = alone(steps=8, **ours)
    assert ran["start_step"] == 0
    assert [entry["name"] for entry in ran["skipped"]] == ["step-4", "step-2"]
    assert manifest.committed_steps(tmp_path) == [8, 6]  # ours; 4 and 2 were in our way
    kept = [path for path in tmp_path.glob("step-*.rejected-*") if manifest.read(path)]
    assert sorted(path.name.split(".")[0] for path in kept) == ["step-2", "step-4"]
    alone(steps=9, **{**theirs, "save_every": 3})  # starts from 0 and saves 3, 6 and 9
    assert manifest.committed_steps(tmp_path) == [9, 8, 6]
    seeds = [manifest.read(tmp_path / f"step-{step}")["identity"]["seed"] for step in (9, 8, 6)]
    assert seeds == [1, 2, 1]


def test_a_damaged_older_one_does_not_count_as_kept(alone, folder):
    flipped = folder / "step-4/__0_0.distcp"
    flipped.write_bytes(flipped.read_bytes()[:-1] + b"?")
    ran = alone(steps=5, checkpoints=str(folder), save_every=3, keep_last=2)
    assert ran["start_step"] == 2
    assert manifest.committed_steps(folder) == [5, 4, 3]


def test_a_save_that_is_whole_counts_although_an_old_one_cannot_be_removed(
    alone, tmp_path, monkeypatch, caplog
):
    def busy(path, **_):
        raise OSError(16, "Device or resource busy", str(path))

    monkeypatch.setattr(saving.shutil, "rmtree", busy)
    ran = alone(steps=5, checkpoints=str(tmp_path), save_every=1, keep_last=1, save_failures=0)
    assert [saved["step"] for saved in ran["checkpoints"]] == [1, 2, 3, 4, 5]
    assert ran["unsaved"] == []
    assert "but updating LATEST or removing old steps failed: OSError" in caplog.text


@pytest.fixture
def full_disk(monkeypatch):
    """`with full_disk(5, 6):` the saves of these steps meet ENOSPC.

    Writing to /dev/full gives it, and the kernel needs no privilege for that.
    """
    begin = saving.CheckpointWriter._make_folder

    @contextmanager
    def full(*steps):
        def begin_on_full_disk(self, step):
            path = begin(self, step)
            if step in steps:
                (path / "__0_0.distcp").symlink_to("/dev/full")
            return path

        with monkeypatch.context() as patch:
            patch.setattr(saving.CheckpointWriter, "_make_folder", begin_on_full_disk)
            yield

    return full


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_full_disk_costs_a_save_and_not_the_run(alone, saved, folder, full_disk, mode):
    """The older checkpoints stay, the run goes on, and so do the saves once there is space."""
    with full_disk(5):
        ran = alone(steps=6, checkpoints=str(folder), save_every=1, save_mode=mode)
    (unsaved,) = ran["unsaved"]
    assert re.match(r"step 5 was not saved: rank 0 on .*No space", unsaved["error"])
    assert [save["step"] for save in ran["checkpoints"]] == [6]
    assert manifest.committed_steps(folder) == [6, 4, 2]
    assert not list(folder.glob("*.tmp-*"))
    assert hexes(ran) == hexes(saved[1])[4:]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_too_many_failed_saves_in_a_row_end_the_run(alone, folder, full_disk, mode):
    knobs = {"checkpoints": str(folder), "save_every": 1, "save_mode": mode, "save_failures": 1}
    with full_disk(5, 7):
        assert [u["step"] for u in alone(steps=8, **knobs)["unsaved"]] == [5, 7]
    with (
        full_disk(9, 10),
        pytest.raises(CheckpointError, match=r"step 10 .*failed saves in a row: 2"),
    ):
        alone(steps=12, **knobs)
    assert manifest.committed_steps(folder)[0] == 8
    assert not list(folder.glob("*.tmp-*"))


def test_a_save_in_the_background_is_of_the_moment_it_was_asked_for(alone, saved, tmp_path):
    """Its upload is held up until two more steps have changed the weights."""
    knobs = {"checkpoints": str(tmp_path), "save_mode": "async", "pace_s": 0.2}
    hold = "upload:rank=0:seconds=0.7:from=2:to=2"
    ran = alone(steps=5, save_every=2, stall=hold, out=str(tmp_path / "out"), **knobs)
    events = [
        json.loads(x) for x in (tmp_path / "out/metrics.rank0.jsonl").read_text().splitlines()
    ]
    at = [(event["event"], event.get("step")) for event in events]
    assert at.index(("step", 3)) < at.index(("saved", 2))
    assert [save["step"] for save in ran["checkpoints"]] == [2, 4, 5]
    for step in (5, 4):
        shutil.rmtree(tmp_path / f"step-{step}")
    resumed = alone(steps=6, **knobs)
    assert resumed["start_step"] == 2
    assert hexes(resumed) == hexes(saved[1])[2:]


@needs_root
def test_a_file_system_that_is_too_small(alone, tmp_path):
    with small_disk(tmp_path / "small", "256k") as small:
        ran = alone(steps=4, checkpoints=small, save_every=1, save_failures=9, keep_last=9)
        assert ran["checkpoints"]
        assert "No space left" in ran["unsaved"][0]["error"]
        resumed = alone(steps=5, checkpoints=small)
        assert resumed["start_step"] == ran["checkpoints"][-1]["step"]


def test_a_save_in_the_background_that_never_ends_is_not_waited_for(alone, tmp_path):
    knobs = {"checkpoints": str(tmp_path), "save_every": 1, "save_mode": "async"}
    late = "the background save of a checkpoint did not end within 1 s"
    with pytest.raises(CheckpointError, match=late):
        alone(steps=3, **knobs, init_timeout_s=1.0, stall="upload:rank=0:seconds=4:to=1")


def test_told_to_leave_it_saves_and_leaves(alone, saved, tmp_path):
    """The flag is what SIGTERM sets; a save is made although none is due."""
    PROGRESS.stop_requested.set()
    try:
        ran = alone(steps=6, checkpoints=str(tmp_path), save_every=5)
    finally:
        PROGRESS.stop_requested.clear()
    assert ran["left"]
    assert exit_message(ran) == "the run exited on request (SIGTERM), and step 1 is saved"
    assert [step["step"] for step in ran["steps"]] == [1]
    resumed = alone(steps=6, checkpoints=str(tmp_path))
    assert (resumed["start_step"], resumed["left"]) == (1, False)
    assert hexes(resumed) == hexes(saved[1])[1:]


def test_who_leaves_unsaved_says_so(alone, tmp_path, full_disk):
    said = []
    for folder in (str(tmp_path), None):
        PROGRESS.stop_requested.set()
        try:
            with full_disk(1):
                said.append(exit_message(alone(steps=6, checkpoints=folder)))
        finally:
            PROGRESS.stop_requested.clear()
    left = "the run exited on request (SIGTERM), but step 1 was not saved: rank 0 "
    assert said[0].startswith(left)
    assert "No space left on device" in said[0]
    assert said[1].endswith("but step 1 was not saved: the run has no checkpoint folder")


def test_a_rank_of_its_own_that_is_sent_sigterm_saves_and_can_be_started_again(alone, tmp_path):
    """As torchrun's ranks are: code 75 says that the job is not done."""
    knobs = {**SMALL, "steps": 40, "checkpoints": str(tmp_path / "saved"), "out": str(tmp_path)}
    config = TrainConfig(**knobs, save_every=40, pace_s=0.1)
    words = [sys.executable, "-m", "reference_trainer", "train", *cli_options(config)]
    with only_rank():
        rank = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        try:
            next(line for line in rank.stdout if line.startswith("step 2/"))
            rank.send_signal(signal.SIGTERM)
            said = rank.communicate(timeout=60)[0]
        finally:
            rank.kill()
    assert rank.returncode == os.EX_TEMPFAIL
    (step,) = manifest.committed_steps(tmp_path / "saved")
    assert said.splitlines()[-1] == f"the run exited on request (SIGTERM), and step {step} is saved"
    assert alone(**{**knobs, "steps": step + 1})["start_step"] == step
