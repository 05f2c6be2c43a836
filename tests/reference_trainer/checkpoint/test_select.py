"""Several ranks read a checkpoint before they trust it: each its share, and all say the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_trainer import manifest
from reference_trainer.checkpoint import select as choosing
from reference_trainer.checkpoint.save import Storage
from reference_trainer.checkpoint.select import CheckpointSelector, Selection
from reference_trainer.manifest import CheckpointError
from tests.support.thread_ranks import on_ranks

OURS = {"dim": 64}
SIZES = {".metadata": 10, "__0_0.distcp": 400, "__1_0.distcp": 300, "__2_0.distcp": 200}
HOSTS = ("node0", "node1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds step-2 and step-4, both whole."""
    for step in (2, 4):
        path = tmp_path / f"step-{step}"
        path.mkdir()
        for name, size in SIZES.items():
            (path / name).write_bytes(bytes([step]) * size)
        files = {name: manifest.describe_file(path / name) for name in SIZES}
        manifest.write(path, step=step, world=2, identity=OURS, files=files)
    return tmp_path


def choose(folder: Path, identity: dict[str, int] = OURS) -> list:
    """What each of two ranks chooses, or raises."""

    def rank(world):
        return CheckpointSelector(Storage(folder, world), world, identity).select(resume=True)

    told = on_ranks(HOSTS, rank, CheckpointError)
    assert {str(one) for one in told} == {str(told[0])}  # all ranks say the same
    return told


def flip(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"?")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were read whole, in order."""
    seen: list[str] = []
    check = manifest.check_file

    def spy(path, wanted):
        seen.append(path.name)
        return check(path, wanted)

    monkeypatch.setattr(choosing.manifest, "check_file", spy)
    return seen


def test_every_file_is_read_once_by_one_of_the_ranks(folder: Path, read: list[str]) -> None:
    choice, distrusted = choose(folder)[0]
    assert (choice.step, choice.source_rank, choice.size_bytes) == (4, 0, sum(SIZES.values()))
    assert not distrusted
    assert sorted(read) == sorted(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_a_damage_that_any_rank_finds_is_told_by_all(folder: Path, name: str) -> None:
    flip(folder / "step-4" / name)
    choice, distrusted = choose(folder)[0]
    reason = f"{name} does not match its sha256: its content was damaged"
    assert choice.step == 2
    assert choice.skipped == [{"name": "step-4", "reason": reason}]
    assert distrusted == {4}


def test_nothing_is_read_of_what_is_not_ours(folder: Path, read: list[str]) -> None:
    choice, distrusted = choose(folder, {"dim": 32})[0]
    assert isinstance(choice, Selection)
    assert (choice.step, distrusted, read) == (0, {2, 4}, [])


def test_a_node_that_reads_wrongly_does_not_make_the_job_fall_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1's share is the second and the fourth in size; rank 0 reads them again."""
    check, wrong = manifest.check_file, ["__1_0.distcp", ".metadata"]

    def once(path, wanted):
        if path.name in wrong:
            wrong.remove(path.name)
            return f"{path.name} is missing"
        return check(path, wanted)

    monkeypatch.setattr(choosing.manifest, "check_file", once)
    said = str(choose(folder)[0])
    assert said == (
        f"rank 0 can read {folder}/step-4, but another rank cannot: rank 1 on node1:"
        " __1_0.distcp is missing; .metadata is missing"
    )
