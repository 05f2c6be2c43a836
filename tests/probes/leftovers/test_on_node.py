"""What is ours on a node: only names that a run gives, and never through a link."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from probes.cluster.ask import make_unique_token
from probes.leftovers import list_files, remove_files

TOKEN = f"a{make_unique_token()[1:]}"  # with a letter, as 299 of 300 have
NAMES = [
    ".seatrial-{}",
    "seatrial-{}",
    "seatrial-user-{}",
    "seatrial-submit-{}",
    ".seatrial-{}-0a0a",
]
OURS = [*(name.format(TOKEN) for name in NAMES), ".seatrial-0123456789abcdef"]
NOT_OURS = [
    "my-seatrial-{}",
    "seatrial-{}x",
    "seatrial-USER-{}",
    "seatrial-runs-{}",
    "seatrial-{}-atlas",
]
DATES = ["seatrial-202601151030", "seatrial-2026011510300000"]
THEIRS = [
    *(name.format(TOKEN) for name in NOT_OURS),
    *DATES,
    "seatrial",
    ".seatrial",
    "seatrial-0123",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in OURS + THEIRS:
        (tmp_path / name).mkdir()
    return tmp_path


def test_only_our_names_are_listed_and_removed(folder: Path) -> None:
    found = list_files([str(folder), str(folder), "/no/such/folder"])
    assert sorted(found) == sorted(str(folder / name) for name in OURS)
    assert remove_files(found) == {}
    assert sorted(path.name for path in folder.iterdir()) == sorted(THEIRS)
    assert remove_files(found) == {}  # again: they have gone


def test_a_folder_is_as_idle_as_its_newest_file(tmp_path: Path) -> None:
    old = time.time() - 5000
    deep = tmp_path / f"seatrial-{TOKEN}" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    for path in (deep / "file", deep, deep.parent, deep.parent.parent):
        os.utime(path, (old, old))
    (idle_s,) = list_files([str(tmp_path)]).values()
    assert 4900 < idle_s < 5100
    os.utime(deep / "file", None)
    (idle_s,) = list_files([str(tmp_path)]).values()
    assert idle_s < 100


@pytest.mark.parametrize(("most", "is_seen"), [(1, False), (2, True)])
def test_the_newest_file_is_looked_for_among_so_many_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, is_seen: bool
) -> None:
    below = tmp_path / f"seatrial-{TOKEN}" / "a"
    below.mkdir(parents=True)
    (below / "file").touch()
    for path in (below, below.parent):
        os.utime(path, (time.time() - 5000,) * 2)
    monkeypatch.setattr("probes.leftovers.MAX_ENTRIES", most)
    (idle_s,) = list_files([str(tmp_path)]).values()
    assert (idle_s < 100) is is_seen


def test_what_a_link_leads_to_stays(tmp_path: Path) -> None:
    target = tmp_path / "theirs"
    target.mkdir()
    (target / "file").touch()
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / f"seatrial-{TOKEN}").symlink_to(target)
    (folder / f"seatrial-user-{TOKEN}").mkdir()
    (folder / f"seatrial-user-{TOKEN}" / "link").symlink_to(target)
    assert remove_files(list_files([str(folder)])) == {}
    assert [*folder.iterdir()] == []
    assert (target / "file").exists()


def test_another_name_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    with pytest.raises(ValueError, match="not a name of seatrial"):
        remove_files([str(tmp_path / "theirs")])


def test_a_folder_of_any_depth_is_removed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder = tmp_path / f"seatrial-{TOKEN}"
    folder.mkdir()
    # pytest's own clean-up fails for a folder as deep, and ends each later run of pytest.
    request.addfinalizer(lambda: subprocess.run(["rm", "-rf", "--", str(folder)], check=True))
    here = os.open(folder, os.O_RDONLY)
    for _ in range(1100):  # more than Python recurses
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert remove_files([str(folder)]) == {}
    assert not folder.exists()


def test_a_file_that_stays_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"seatrial-{TOKEN}").mkdir()

    def refuse(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("shutil.rmtree", refuse)
    (path,) = list_files([str(tmp_path)])
    assert "Permission denied" in remove_files([path])[path]
