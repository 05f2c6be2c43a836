"""`seatrial` as a package: its names, and packages of other projects that are named like ours."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

import reports.version
import seatrial
from seatrial import own
from tests.support.paths import RECORDINGS, REPO

RUN = RECORDINGS / "tcp-fallback"


def start(*words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python where `path` comes before our packages."""
    paths = [str(path)] * bool(path) + [str(REPO)]
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, cwd=path or REPO,
    )  # fmt: skip


def test_the_package_gives_a_run_and_the_frames() -> None:
    assert sorted(seatrial.__all__) == sorted(n for n in seatrial.__all__ if getattr(seatrial, n))
    run = seatrial.read_run(RUN)
    assert run.id.endswith("-atlas")
    assert {"criterion", "measure", "value"} <= {*run.frame().columns}
    history = seatrial.read_history(RUN.parent)
    assert run.id in [*history.runs.run]
    comparison = seatrial.read_comparison(RECORDINGS / "healthy-atlas", RUN)
    assert "busbw" in [*comparison.tables[1].reset_index().measure]
    with pytest.raises(AttributeError, match="'seatrial' has no attribute 'scaling'"):
        _ = seatrial.scaling


def test_importing_it_is_cheap() -> None:
    done = start("-c", "import seatrial, sys; print({'reports', 'probes'} & {*sys.modules})")
    assert done.stdout == "set()\n"


def test_every_package_is_checked_and_typed() -> None:
    assert {*own.PACKAGES, "seatrial"} == {*reports.version.PACKAGES}
    for name in reports.version.PACKAGES:
        assert (REPO / name / "py.typed").is_file()


def test_the_module_is_the_command() -> None:
    done = start("-m", "seatrial", "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: seatrial [OPTIONS] COMMAND")


@pytest.mark.parametrize("name", own.PACKAGES)
def test_a_package_of_another_project_is_named(name: str, tmp_path: Path) -> None:
    """PyPI has others named `reports` and `scaling`."""
    file = tmp_path / name / "__init__.py"
    file.parent.mkdir()
    file.write_text("import pint  # of another project\n")
    done = start("-m", "seatrial", "doctor", path=tmp_path)
    assert done.returncode == 4
    assert done.stdout == ""
    assert f"error: the Python package {name} at {file} is not seatrial's" in done.stderr
    assert "Remove it from the path of Python. Install seatrial again" in done.stderr
    done = start("-c", "from seatrial import read_run", path=tmp_path)
    assert f"the Python package {name} at {file} is not seatrial's" in done.stderr


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("import pint\n", "is not seatrial's, but of another project"),
        (None, "Install seatrial again"),
    ],
)
def test_a_package_that_was_overwritten_or_removed(
    content: str | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in own.PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text('"""Of seatrial."""\n')
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(own, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [PathFinder])  # no finder of a checkout
    assert own.find_foreign() == ""
    (tmp_path / "scaling" / "__init__.py").unlink()  # as pip uninstall leaves it
    if content:
        (tmp_path / "scaling" / "__init__.py").write_text(content)
    assert sentence in own.find_foreign()


def test_the_other_distribution_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "ROOT", tmp_path)
    found = {"probes": ["seatrial", "probes-of-others"]}
    monkeypatch.setattr(own.metadata, "packages_distributions", lambda: found)
    assert f"{sys.executable} -m pip uninstall probes-of-others). Install seatrial again" in (
        own.find_foreign()
    )


def test_windows_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit) as ended:
        seatrial.main()
    assert ended.value.code == seatrial.EXIT_USAGE
    assert "WSL" in capsys.readouterr().err
