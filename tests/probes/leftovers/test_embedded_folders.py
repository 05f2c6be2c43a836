"""The folder of an embedded cluster: left where its owner was killed, and never a living one's."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.cluster import embedded
from probes.cluster.embedded import OWNER, hold_folder, take_folder
from probes.leftovers import list_files, remove_files

NAME = "sea-ab12_xyz"
STUB = """
import os
class Cluster:
    address = os.environ["RAY_TMPDIR"]
    def add_node(self, **_): os.makedirs(self.address + "/ray/session_1/logs", exist_ok=True)
    def shutdown(self): pass
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that owns a folder in /tmp, with a stub of Ray; and that folder."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/__init__.py").touch()
    (tmp_path / "ray/cluster_utils.py").write_text(STUB)
    process = subprocess.Popen(
        [sys.executable, embedded.__file__, "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, start_new_session=True, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert process.stdout is not None
    folder = json.loads(process.stdout.readline())["address"]
    yield process, folder
    process.kill()
    process.communicate()
    subprocess.run(["rm", "-rf", "--", folder], check=True)


def test_a_killed_owners_folder_is_listed_and_removed(
    owner: tuple[subprocess.Popen[str], str],
) -> None:
    process, folder = owner
    assert re.fullmatch(r"/tmp/sea-[a-z0-9_]{8}", folder)
    assert folder not in list_files(["/tmp"]), "its owner still runs"
    assert "the process that made this folder still runs" in remove_files([folder])[folder]
    assert Path(folder, "ray").is_dir()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert folder in list_files(["/tmp"])
    assert remove_files([folder]) == {}
    assert not os.path.lexists(folder)


def test_an_owner_that_ends_removes_its_folder(owner: tuple[subprocess.Popen[str], str]) -> None:
    process, folder = owner
    process.communicate(timeout=20)  # its input ends
    assert process.returncode == 0
    assert not os.path.lexists(folder)


def make(folder: Path) -> Path:
    """Make the folder of an owner that has ended."""
    folder.mkdir()
    os.close(hold_folder(str(folder)))
    return folder


def test_the_lock_ends_with_its_holder(tmp_path: Path) -> None:
    folder = tmp_path / NAME
    folder.mkdir()
    held = hold_folder(str(folder))
    assert take_folder(str(folder)) is None
    os.close(held)
    taken = take_folder(str(folder))
    assert taken is not None
    assert take_folder(str(folder)) is None, "another cleanup holds it"
    os.close(taken)


@pytest.mark.parametrize(
    "name", ["sea-", "sea-side", "sea-ab12_xyz9", "sea-AB12_XYZ", "my-sea-ab12_xyz", "sea-ab12.xyz"]
)
def test_another_name_is_not_ours(tmp_path: Path, name: str) -> None:
    folder = make(tmp_path / name)
    assert list_files([str(tmp_path)]) == {}
    with pytest.raises(ValueError, match="not a name of seatrial"):
        remove_files([str(folder)])


def test_a_folder_without_our_mark_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "their.txt").touch()
    assert list_files([str(tmp_path)]) == {}
    assert remove_files([str(tmp_path / NAME)]) != {}
    assert (tmp_path / NAME / "their.txt").exists()


def test_a_link_to_a_folder_is_not_followed(tmp_path: Path) -> None:
    target = make(tmp_path / "target")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / NAME).symlink_to(target)
    assert list_files([str(tmp_path / "here")]) == {}
    assert remove_files([str(tmp_path / "here" / NAME)]) != {}
    assert (target / OWNER).exists()


@pytest.mark.parametrize("mark", ["link", "fifo", "folder"])
def test_a_mark_that_is_no_file_is_none(tmp_path: Path, mark: str) -> None:
    folder = tmp_path / NAME
    folder.mkdir()
    if mark == "link":
        (tmp_path / "file").touch()
        (folder / OWNER).symlink_to(tmp_path / "file")
    elif mark == "fifo":
        os.mkfifo(folder / OWNER)
    else:
        (folder / OWNER).mkdir()
    assert list_files([str(tmp_path)]) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives a folder to another user")
@pytest.mark.parametrize("part", ["", OWNER])
def test_what_another_user_owns_is_not_ours(tmp_path: Path, part: str) -> None:
    folder = make(tmp_path / NAME)
    os.chown(folder / part, 12345, 12345)
    assert list_files([str(tmp_path)]) == {}
    assert remove_files([str(folder)]) != {}
    assert folder.exists()
