"""The command that times a collective: what it prints and writes, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from click.testing import CliRunner, Result

from reference_trainer.rank_environment import LAUNCH_VARIABLES
from scaling.collectives.line_rate import fit_alpha_beta, format_table, main, results_document
from scaling.collectives.operations import OPERATIONS
from scaling.collectives.sweep import SIZES, summarise
from tests.scaling.collectives.test_sweep import sweep

DEVICE = "a device"
SOUND = [sweep(0, [1e-3, 4e-3]), sweep(1, [1e-3, 4e-3])]
BROKEN = [sweep(0, [1e-3]), sweep(1, [1e-3], wrong=2)]


class Ranks:
    """Both ranks of a job, whose sweeps are these; the command runs as one of them."""

    def __init__(self, sweeps: list[dict[str, Any]], note: str = "", rank: int = 0) -> None:
        self.sweeps = [{**one, "note": note} for one in sweeps]
        self.rank, self.asked = rank, list[Any]()

    @contextmanager
    def join(self, backend: str | None) -> Iterator[str]:
        self.asked.append(backend)
        yield DEVICE

    def sweep(self, *asked: Any) -> dict[str, Any]:
        self.asked.extend(asked)
        return self.sweeps[self.rank]

    def gather(self, found: list[Any], own: Any) -> None:
        assert own is self.sweeps[self.rank]
        assert len(found) == len(self.sweeps)
        found[:] = self.sweeps

    def run(self, *arguments: str) -> Result:
        with pytest.MonkeyPatch.context() as patch:
            for name in LAUNCH_VARIABLES:
                patch.setenv(name, "1")
            patch.setattr("scaling.collectives.sweep.process_group", self.join)
            patch.setattr("scaling.collectives.sweep.sweep_operation", self.sweep)
            patch.setattr(torch.distributed, "get_world_size", lambda: len(self.sweeps))
            patch.setattr(torch.distributed, "all_gather_object", self.gather)
            return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize("note", ["", "messages above 8 bytes were skipped"])
def test_a_sound_sweep_is_a_table_a_fit_and_a_file(tmp_path: Path, note: str) -> None:
    file, job = tmp_path / "out.json", Ranks(SOUND, note)
    done = job.run("all_reduce", "-J", str(file))
    rows, operation = summarise(SOUND), OPERATIONS["all_reduce"]
    table = format_table(rows, operation).splitlines()
    notes = [f"# {text}" for text in (note, fit_alpha_beta(rows, operation, 2)) if text]
    assert done.stdout.splitlines() == ["# all_reduce over 2 ranks, gloo", *table, *notes]
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(file.read_text()) == results_document(rows, operation, 2)
    assert job.asked == [None, DEVICE, operation, 1.0, 1.0, [*SIZES]]


def test_what_is_asked_for_is_measured() -> None:
    job = Ranks(SOUND)
    bounds = ["--longest", "2", "--budget", "3", "-b", "4K", "-e", "16K"]
    assert job.run("all_gather", "--backend", "gloo", *bounds).exit_code == 0
    sizes = [4096, 8192, 16384]
    assert job.asked == ["gloo", DEVICE, OPERATIONS["all_gather"], 2.0, 3.0, sizes]


def test_a_wrong_element_is_named_and_fails_all_ranks() -> None:
    done = Ranks(BROKEN).run("all_reduce")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1] == "# wrong: rank 1, element 3 of 9, 1024 B"
    other = Ranks(BROKEN, rank=1).run("all_reduce")
    assert (other.exit_code, other.output) == (1, "")


@pytest.mark.parametrize(
    ("note", "why"),
    [("64 MiB is gloo's range", "64 MiB is gloo's range"),
     ("", "all_gather over 2 ranks needs 8 bytes or more")],
)  # fmt: skip
def test_a_sweep_without_any_size_proves_nothing(tmp_path: Path, note: str, why: str) -> None:
    empty = [{**one, "rows": []} for one in SOUND]
    done = Ranks(empty, note).run("all_gather", "-J", str(tmp_path / "out.json"))
    assert (done.exit_code, done.stdout) == (20, "")
    assert done.stderr == f"error: nothing was measured: {why}\n"
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        (["-b", "12Q"], "such as 8, 64K, 4M or 1G, found '12Q' and '16G'"),
        (["-b", "5", "-e", "7"], "between --minbytes and --maxbytes, found none from 5 to 7"),
    ],
)
def test_sizes_that_cannot_be_measured_are_refused(sizes: list[str], says: str) -> None:
    done = Ranks(SOUND).run("all_reduce", *sizes)
    assert (done.exit_code, done.stdout) == (4, "")
    assert says in done.stderr


def test_without_a_launcher_one_sentence_names_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in LAUNCH_VARIABLES:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("RANK", "")
    monkeypatch.delenv("MASTER_PORT")
    done = CliRunner().invoke(main, ["all_reduce"])
    assert done.exit_code == 4
    assert "expected RANK, MASTER_PORT in the environment" in done.stderr
    assert "--nproc-per-node 8 -m scaling.collectives all_reduce`" in done.stderr


def test_ranks_that_do_not_meet_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Ranks(SOUND)

    def fail(*_: Any) -> None:
        raise RuntimeError("the store timed out")

    monkeypatch.setattr(job, "gather", fail)
    done = job.run("all_reduce")
    assert done.exit_code not in (0, 1, 20)
    assert done.stderr == "error: the store timed out\n"
