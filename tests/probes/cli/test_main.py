"""`seatrial` itself: its version, and the example that overwrites nothing."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

import reports.version
from probes.cli.main import main


def test_the_version_names_the_commit_and_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        reports.version, "find_commit", lambda: "0123456789abcdef" * 2 + "01234567+"
    )
    done = CliRunner().invoke(main, ["--version"])
    assert done.exit_code == 0
    version = metadata.version("seatrial")
    pattern = rf"seatrial {version}, commit 0123456789ab\+, sources [0-9a-f]{{16}}\n"
    assert re.fullmatch(pattern, done.output)


def test_the_version_of_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(reports.version.metadata, "version", absent)
    monkeypatch.setattr(reports.version, "find_commit", lambda: "")
    done = CliRunner().invoke(main, ["-V"])
    assert done.output.startswith("seatrial unknown, commit unknown, sources ")


@pytest.mark.parametrize("kind", ["file", "link to nothing"])
@pytest.mark.parametrize("name", ["README.md", "reference_trainer"])
def test_the_example_overwrites_nothing(tmp_path: Path, name: str, kind: str) -> None:
    own = tmp_path / name
    if kind == "file":
        own.write_text("MINE")
    else:
        own.symlink_to(tmp_path / "nowhere")
    done = CliRunner().invoke(main, ["example", str(tmp_path)])
    assert done.exit_code == 4
    assert f"{own} exists already: give an empty or new folder" in done.output
    assert list(tmp_path.iterdir()) == [own], "nothing was written"
    assert own.is_symlink() or own.read_text() == "MINE"


def test_the_example_stands_beside_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("MINE")
    assert CliRunner().invoke(main, ["example", str(tmp_path)]).exit_code == 0
    assert (tmp_path / "notes.txt").read_text() == "MINE"
    assert (tmp_path / "README.md").is_file()
