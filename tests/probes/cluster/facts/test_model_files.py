"""Digests of model files, over real files."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from probes.cluster import node_facts
from probes.cluster.node_facts import (
    BLOCK,
    STRIDE,
    digest_file,
    read_changed_file,
    read_model_files,
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "llama"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "weights").write_bytes(b"w" * (BLOCK + 5))
    return folder


def files_of(path: Path) -> dict[str, str]:
    (answer,) = read_model_files([str(path)]).values()
    assert not answer["error"]
    assert not answer["unknown"]
    return dict(answer["files"])


def test_a_folder_is_read_with_its_folders(model: Path) -> None:
    assert {name: text.split()[0] for name, text in files_of(model).items()} == {
        "config.json": "2",
        "sub/weights": str(BLOCK + 5),
    }


def test_what_a_download_leaves_is_no_part_of_the_model(model: Path) -> None:
    before = files_of(model)
    (model / ".cache").mkdir()
    (model / ".cache" / "when").write_text("today")
    (model / ".hidden").write_text("x")
    (model / "weights.lock").write_text("x")
    assert files_of(model) == before


def test_links_are_followed_as_in_a_cache_of_a_hub(model: Path) -> None:
    (model / "snapshot").symlink_to(model / "sub" / "weights")
    found = files_of(model)
    assert found["snapshot"] == found["sub/weights"]


def test_a_single_file_has_the_name_dot(model: Path) -> None:
    assert files_of(model / "config.json").keys() == {"."}


@pytest.mark.parametrize("place", [0, 5, STRIDE, STRIDE + 7, 2 * STRIDE, 2 * STRIDE + 99])
def test_a_changed_byte_at_each_place_that_is_read_changes_the_digest(
    tmp_path: Path, place: int
) -> None:
    file = tmp_path / "sparse"
    file.touch()
    os.truncate(file, 2 * STRIDE + 100)
    before = digest_file(file)
    with file.open("r+b") as opened:
        opened.seek(place)
        opened.write(b"x")
    assert digest_file(file) != before


@pytest.mark.parametrize("from_end", [1, BLOCK])
def test_the_last_block_is_read_where_no_other_reaches_it(tmp_path: Path, from_end: int) -> None:
    file = tmp_path / "sparse"
    file.touch()
    os.truncate(file, STRIDE - 1)
    before = digest_file(file)
    with file.open("r+b") as opened:
        opened.seek(-from_end, os.SEEK_END)
        opened.write(b"x")
    assert digest_file(file) != before


def test_a_changed_size_changes_the_digest(tmp_path: Path) -> None:
    file = tmp_path / "sparse"
    file.touch()
    digests = set()
    for size in (0, 1, 2):
        os.truncate(file, size)
        digests.add(digest_file(file))
    assert len(digests) == 3


def test_what_is_missing_empty_or_broken_is_an_error(tmp_path: Path, model: Path) -> None:
    (tmp_path / "empty").mkdir()
    (model / "torn").symlink_to("nowhere")
    paths = [str(tmp_path / name) for name in ("none", "empty", "llama")]
    errors = [answer["error"] for answer in read_model_files(paths).values()]
    assert errors == ["No such file or directory", "no file found", "No such file or directory"]


NO_MODEL = "is not a regular file, or is in /dev, /proc or /sys"


@pytest.mark.parametrize("kind", ["fifo", "socket", "link to a device", "link to a fifo"])
def test_what_is_no_file_is_not_opened(
    model: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = model / "config.d"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "socket":
        monkeypatch.chdir(model)  # the path of a socket is short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("config.d")
    elif kind == "link to a device":
        place.symlink_to("/dev/zero")
    else:
        os.mkfifo(model.parent / "fifo")
        place.symlink_to(model.parent / "fifo")
    opened: list[str] = []
    real_open = os.open

    def note(path: str, *words: Any, **more: Any) -> int:
        opened.append(str(path))
        return real_open(path, *words, **more)

    monkeypatch.setattr(os, "open", note)
    (answer,) = read_model_files([str(model)]).values()
    assert answer["error"] == f"config.d {NO_MODEL}"
    assert not [path for path in opened if "config.d" in path]


@pytest.mark.parametrize(
    "path", ["/dev/zero", "/proc/self/environ", "/proc/kmsg", "/sys/kernel/notes"]
)
def test_what_the_kernel_makes_up_is_no_model(path: str) -> None:
    (answer,) = read_model_files([path]).values()
    assert answer["error"].endswith(NO_MODEL)
    assert answer["files"] == {}
    with pytest.raises(OSError, match=NO_MODEL):
        read_changed_file(path)


def test_a_fifo_that_takes_the_place_of_a_file_does_not_block(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = model / "config.json"
    file.unlink()
    os.mkfifo(file)
    monkeypatch.setattr(node_facts, "_is_model_file", lambda *_: True)  # as it was a moment ago
    with pytest.raises(OSError, match=NO_MODEL):
        digest_file(file)


def test_a_model_in_shared_memory_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="model-") as file:
        file.write(b"weights")
        file.flush()
        assert files_of(Path(file.name))["."].startswith("7 ")


def test_what_takes_too_long_is_unknown_and_no_fault(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (late,) = read_model_files([str(model)], -1.0).values()
    assert late["unknown"].startswith("only 0 files of")
    assert not late["error"]
    monkeypatch.setattr(node_facts, "MAX_FILES", 1)
    (many,) = read_model_files([str(model)]).values()
    assert many["unknown"].startswith("only 1 files of")
    assert not many["error"]


@pytest.mark.parametrize("part", ["", "config.json", "sub/weights"])
def test_the_control_changes_one_file_and_leaves_the_model_alone(model: Path, part: str) -> None:
    path = model / part
    before, opened = files_of(path), len(os.listdir("/proc/self/fd"))
    (changed,) = read_changed_file(str(path)).values()
    assert len(os.listdir("/proc/self/fd")) == opened
    assert not changed["error"]
    first, *others = before
    assert changed["files"][first] != before[first]
    assert changed["files"][first].split()[0] == before[first].split()[0]
    assert all(changed["files"][name] == before[name] for name in others)
    assert files_of(path) == before


def test_the_control_follows_folders_that_hold_only_folders(tmp_path: Path) -> None:
    weights = tmp_path / "parts" / "first" / "weights"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"weights")
    (changed,) = read_changed_file(str(tmp_path)).values()
    assert changed["files"].keys() == {"parts/first/weights"}


def test_the_control_changes_a_single_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_facts, "digest_file", lambda file: file.read_bytes())
    (tmp_path / "weights").write_bytes(b"weights")
    (changed,) = read_changed_file(str(tmp_path)).values()
    found = changed["files"]["weights"]
    assert sum(a != b for a, b in zip(found, b"weights", strict=True)) == 1


def test_the_control_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="has no file"):
        read_changed_file(str(tmp_path))
