"""Errors that a job plants in its last rank, and what is read of them from its lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from probes.launch.training import (
    VALIDATION,
    WEIGHTS,
    TrainedJob,
    announced_ranks,
    export_error,
    find_odd_ranks,
    loss_ratio,
    metric_error,
    wrong_samples,
)
from reference_trainer.config import TrainConfig
from reference_trainer.rank_environment import (
    PlantedErrors,
    encode_words,
    parse_errors,
    trained_words,
)
from tests.support.paths import REPO

# Each planted error is a run of the same two processes.
PLANTS = ("", "weights", "samples", "repeat", "validation", "metrics", "loss", "export", "corrupt")
SCRIPT = """
import json, os, sys
import torch.distributed as dist
from reference_trainer.config import TrainConfig
from reference_trainer.train import train
dist.init_process_group("gloo")
results = {}
for plant in sys.argv[2:]:
    config = TrainConfig(
        steps=12, seq=32, dim=32, layers=1, heads=2, device="cpu", lr=5e-3,
        digest_start=True, validate=2, export=f"{sys.argv[1]}/{plant}", plant=plant.strip(),
        show="STAGE",
    )
    results[plant.strip()] = train(config)
with open(f"{sys.argv[1]}/rank{os.environ['RANK']}.json", "w") as file:
    json.dump(results, file)
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainedJob]:
    """The job of each planted error, as its lines tell it."""
    folder = tmp_path_factory.mktemp("planted")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    command = [sys.executable, *run, str(folder), *(plant or " " for plant in PLANTS)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]
    return {plant: as_read([rank[plant] for rank in ranks]) for plant in PLANTS}


def as_read(results: list[dict[str, Any]]) -> TrainedJob:
    lines = [f"trained {encode_words(trained_words(result))}" for result in results]
    logged = [step["loss"] for step in results[0]["steps"]]
    return TrainedJob(announced_ranks("\n".join(lines)), logged)


def what_is_wrong(job: TrainedJob) -> set[str]:
    error, _ = metric_error(job)
    ratio, export = loss_ratio(job), export_error(job)[0]
    assert error is not None
    assert ratio is not None
    assert export is not None
    found = {
        "weights": bool(find_odd_ranks(job, WEIGHTS)),
        "samples": bool(wrong_samples(job)[0]),
        "validation": bool(find_odd_ranks(job, VALIDATION)),
        "metrics": error > 0.0005,
        "loss": ratio > 0.9,
        "export": [row["RANK"] for row in job.rows if row.get("exported")] != ["0"],
        "corrupt": export > 0.02,
    }
    return {name for name, wrong in found.items() if wrong}


def expected(plant: str) -> set[str]:
    """A rank that repeats its samples trains on wrong samples."""
    return {"": set(), "repeat": {"samples"}}.get(plant, {plant})


@pytest.mark.parametrize("plant", PLANTS)
def test_each_error_is_seen_and_no_other(jobs: dict[str, TrainedJob], plant: str) -> None:
    assert what_is_wrong(jobs[plant]) == expected(plant)


def test_the_rank_that_errs_is_named(jobs: dict[str, TrainedJob]) -> None:
    assert [one.ranks for one in find_odd_ranks(jobs["weights"], WEIGHTS)] == [("1",)]
    assert [one.ranks for one in find_odd_ranks(jobs["validation"], VALIDATION)] == [("1",)]
    count, wrong = wrong_samples(jobs["samples"])
    assert count == 2 * 12 * 4  # the samples of rank 0 twice, those of rank 1 never
    assert [one.ranks for one in wrong] == [("0", "1"), ()]


def test_a_rank_says_where_it_is_and_what_it_reached(jobs: dict[str, TrainedJob]) -> None:
    for row in jobs[""].rows:
        assert row["WORLD_SIZE"] == "2"
        assert row["master"] in ("127.0.0.1", "::1") or row["master"]
        assert row["start"] != row["end"]
    assert [row.get("exported") == row.get("loaded") for row in jobs[""].rows] == [False, False]


def test_kinds_are_checked() -> None:
    assert parse_errors("") == frozenset()
    assert parse_errors("error,memory") == {"error", "memory"}
    with pytest.raises(ValueError, match=r"plant is 'eror'. Expected: some of weights, samples"):
        TrainConfig(plant="eror")


def test_a_script_fails_in_the_second_step_of_the_last_rank_alone() -> None:
    for rank, step in ((0, 2), (1, 1), (1, 3)):
        PlantedErrors("error,memory", rank, 2).strike(step)
    with pytest.raises(KeyError, match="planted error"):
        PlantedErrors("error", 1, 2).strike(2)
    with pytest.raises(RuntimeError, match="memory"):
        PlantedErrors("memory", 1, 2).strike(2)


def test_an_export_that_cannot_be_written_fails_on_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--steps", "1", "--device", "cpu", "--export", str(tmp_path / "file" / "model")]
    command = [sys.executable, *run, "-m", "reference_trainer", "train", *options]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "rank 0 on" in done.stderr
    assert "the model was not exported: " in done.stderr
