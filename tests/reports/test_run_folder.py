"""A folder that cannot hold a run is refused in one sentence, and left as it was."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reports.run_folder import store as run_folder
from reports.run_folder.store import (
    MIN_FREE_MIB,
    UnusableFolder,
    prepare_parent,
    prepare_run_folder,
)
from tests.support.small_disk import needs_root, small_disk

PREPARE = pytest.mark.parametrize("prepare", [prepare_run_folder, prepare_parent])


def complaint(prepare: Callable[[Path], None], path: Path) -> str:
    """What is said of the folder: one sentence, with the folder and what to do."""
    with pytest.raises(UnusableFolder) as caught:
        prepare(path)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert text.startswith("a run needs its own folder, but ")
    assert text.endswith(": name another folder with --run-dir")
    return text


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that nobody may write into; root needs a mount for that."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    if os.geteuid():
        folder.chmod(0o500)
        yield folder
        folder.chmod(0o700)
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("name", ["run", "runs/of/today"])
def test_a_new_folder_is_made_for_its_owner_alone(tmp_path: Path, name: str) -> None:
    prepare_run_folder(tmp_path / name)
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o700
    assert os.listdir(tmp_path / name) == []


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    prepare_run_folder(tmp_path)
    prepare_run_folder(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b\x1b[31m").touch()
    assert f"{tmp_path} contains other files (b):" in complaint(prepare_run_folder, tmp_path)
    for name in ("a", "c", "d"):
        (tmp_path / name).mkdir()
    assert "contains other files (a, b, c, ...):" in complaint(prepare_run_folder, tmp_path)
    (tmp_path / "events.jsonl").touch()
    assert "already contains a run:" in complaint(prepare_run_folder, tmp_path)


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("link", "dangling"):
        assert f"{name} is a link:" in complaint(prepare_run_folder, tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["dangling", "link", "real"]


@PREPARE
def test_what_is_not_a_folder_is_refused(tmp_path: Path, prepare: Callable[[Path], None]) -> None:
    (tmp_path / "file").write_text("kept")
    os.mkfifo(tmp_path / "fifo")
    assert "/file is not a folder:" in complaint(prepare, tmp_path / "file")
    assert "/fifo is not a folder:" in complaint(prepare, tmp_path / "fifo")
    within = tmp_path / "file" / "runs" / "run"
    assert "run is below a path that is not a folder:" in complaint(prepare, within)
    assert "(File name too long):" in complaint(prepare, tmp_path / ("x" * 300))
    assert "embedded null" in complaint(prepare, tmp_path / "nul\0")
    assert (tmp_path / "file").read_text() == "kept"


@PREPARE
def test_a_read_only_place_is_refused(read_only: Path, prepare: Callable[[Path], None]) -> None:
    why = os.strerror(errno.EACCES if os.geteuid() else errno.EROFS)
    for path in (read_only, read_only / "run"):
        assert f"{path} cannot be written ({why}):" in complaint(prepare, path)


@needs_root
@PREPARE
def test_a_disk_that_is_nearly_full_is_refused(
    tmp_path: Path, prepare: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "small", "3m") as small:
        found = f"has 3 MiB free, and a run needs {MIN_FREE_MIB} MiB:"
        assert found in complaint(prepare, Path(small))
    monkeypatch.setattr(
        run_folder, "MIN_FREE_MIB", 0
    )  # as where the disk does not count, or a quota
    with small_disk(tmp_path / "full", "64k") as full:
        assert "cannot be written (No space left on device):" in complaint(prepare, Path(full))
        assert os.listdir(full) == []


@PREPARE
@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_file_system_that_cannot_rename_or_sync_is_refused(
    tmp_path: Path, prepare: Callable[[Path], None], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, call, refuse)
    assert "cannot be written (Operation not permitted):" in complaint(prepare, tmp_path / "run")
    assert os.listdir(tmp_path / "run") == []


def test_the_folder_of_all_runs_may_be_a_link_and_hold_runs(tmp_path: Path) -> None:
    (tmp_path / "disk" / "2026-11-20T221703Z-atlas").mkdir(parents=True)
    (tmp_path / "runs").symlink_to("disk")
    prepare_parent(tmp_path / "runs")
    assert os.listdir(tmp_path / "disk") == ["2026-11-20T221703Z-atlas"]
