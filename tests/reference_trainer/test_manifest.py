"""The manifest of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_trainer import manifest


def folder_with_manifest(path: Path, **changes) -> Path:
    path.mkdir()
    files = {}
    for name in (".metadata", "__0_0.distcp"):
        (path / name).write_bytes(b"content of " + name.encode())
        files[name] = manifest.describe_file(path / name)
    content = {"step": 4, "world": 1, "identity": {"dim": 64}, "files": files, **changes}
    manifest.write(path, **content)
    return path


def test_a_whole_checkpoint_is_accepted(tmp_path):
    path = folder_with_manifest(tmp_path / "step-4")
    assert manifest.verify(path, 4, {"dim": 64}) is None
    assert manifest.committed_steps(tmp_path) == [4]


def test_a_manifest_that_lists_too_little_proves_nothing(tmp_path):
    path = folder_with_manifest(tmp_path / "step-4", files={})
    assert manifest.verify(path, 4, {"dim": 64}) == "manifest.json does not list the file .metadata"


@pytest.mark.parametrize("name", ["../../sitecustomize.py", "/etc/ld.so.preload", "..", "a/b", ""])
def test_a_file_outside_its_folder_is_refused(tmp_path, name):
    """Where nodes share no folder, the files that are listed are written on all of them."""
    entry = {"size": 0, "sha256": ""}
    path = folder_with_manifest(tmp_path / "step-4", files={".metadata": entry, name: entry})
    assert manifest.verify(path, 4, {"dim": 64}) == (
        f"manifest.json lists {name!r}, which is not the name of a file in its folder"
    )


def test_an_altered_manifest_is_noticed(tmp_path):
    path = folder_with_manifest(tmp_path / "step-4")
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"world": 1', '"world": 2'))
    assert "its own sha256 does not match" in manifest.verify(path, 4, {"dim": 64})


def test_a_renamed_checkpoint_is_noticed(tmp_path):
    path = folder_with_manifest(tmp_path / "step-9")
    assert "says step 4" in manifest.verify(path, 9, {"dim": 64})


def test_only_committed_names_count(tmp_path):
    for name in ("step-12", "step-3", "step-5.tmp-ab12", "step-6.rejected-1", "steps", "step-x"):
        (tmp_path / name).mkdir()
    assert manifest.committed_steps(tmp_path) == [12, 3]
    assert [path.name for path in manifest.unfinished_saves(tmp_path)] == ["step-5.tmp-ab12"]
    assert manifest.committed_steps(tmp_path / "nothing") == []
