"""The environment that the suite gets on the cluster: its own, and nothing else is changed."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest

from probes.submit import entry
from probes.submit.package import make_package
from tests.probes.submit.test_package import contents
from tests.support.built_wheel import wheel_of


@pytest.fixture
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package, as Ray unpacks it: the folder in which the job starts."""
    folder = tmp_path / "package"
    for name, content in contents(make_package({"contract": "lab"}, ["-x"], None)).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(entry.tempfile, "tempdir", str(tmp_path))
    return folder


def ask(python: Path, code: str) -> str:
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, env=environment, cwd="/", check=True
    )
    return done.stdout.strip()


def test_the_environment_has_our_packages_and_sees_the_others(
    unpacked: Path, tmp_path: Path
) -> None:
    python = entry.make_environment(tmp_path / "env")
    assert ask(python, "import probes; print(probes.__file__)").startswith(str(tmp_path / "env"))
    for name in ("ray", "pytest"):
        ours = ask(Path(sys.executable), f"import {name}; print({name}.__file__)")
        assert ask(python, f"import {name}; print({name}.__file__)") == ours
    version = "found = __import__('importlib.metadata').metadata.distribution('seatrial')"
    assert ask(python, f"{version}; print(found.version)") == metadata.version("seatrial")
    assert ask(python, f"{version}; print(found.locate_file(''))").startswith(str(tmp_path / "env"))
    said = subprocess.run(
        [tmp_path / "env" / "bin" / "seatrial", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert metadata.version("seatrial") in said.stdout
    mode = (tmp_path / "env" / "bin" / "ray").stat().st_mode & 0o777
    assert mode == 0o755, "LAUNCH's other user runs it, too"


@pytest.mark.parametrize("are_seen", [True, False])
def test_the_environment_sees_a_users_packages_where_this_python_does(
    are_seen: bool, unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "users_own.py").touch()
    monkeypatch.setattr(site, "ENABLE_USER_SITE", are_seen)
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(tmp_path / "users"))
    python = entry.make_environment(tmp_path / "env")
    found = ask(python, "from importlib.util import find_spec; print(bool(find_spec('users_own')))")
    assert found == str(are_seen)


def test_what_is_missing_comes_from_the_wheels_and_nothing_else_is_changed(
    unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """iniconfig is as if it were not installed; its wheel is at hand."""
    wheels = unpacked / "submission" / "wheels"
    wheels.mkdir()
    wheel_of("iniconfig", wheels)
    before = metadata.distribution("iniconfig")
    monkeypatch.setattr(entry, "list_missing", lambda requires: ["iniconfig>=1"])
    python = entry.make_environment(tmp_path / "env")
    # In our test environment it is there, so pip must be told to take the wheel all the same.
    monkeypatch.setenv("PIP_IGNORE_INSTALLED", "1")
    entry.install_missing(python, ["iniconfig>=1"])
    found = ask(python, "import iniconfig; print(iniconfig.__file__)")
    assert found.startswith(str(tmp_path / "env"))
    assert metadata.distribution("iniconfig").files == before.files
    limits = (tmp_path / "env" / "constraints.txt").read_text().splitlines()
    assert f"ray=={metadata.version('ray')}" in limits
    assert f"torch=={metadata.version('torch')}" in limits


def test_what_pip_cannot_install_is_named(
    unpacked: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (unpacked / "submission" / "wheels").mkdir()
    wheel_of("iniconfig", unpacked / "submission" / "wheels")
    monkeypatch.setattr(entry, "list_missing", lambda requires: ["nosuchpackage>=3"])
    python = entry.make_environment(tmp_path / "env")
    with pytest.raises(SystemExit) as ended:
        entry.install_missing(python, [])
    assert ended.value.code == 4
    said = capfd.readouterr().out
    assert "lacks nosuchpackage>=3, and pip could not install them" in said
    assert "--wheels" in said


@pytest.mark.parametrize("name", ["torch", "ray[default]"])
def test_torch_and_ray_are_never_installed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "list_missing", lambda requires: [name, "click"])
    with pytest.raises(SystemExit) as ended:
        entry.install_missing(tmp_path / "no python", [])
    assert ended.value.code == 4
    assert f"lacks {name}, which seatrial never installs" in capsys.readouterr().out


def test_no_raylet_is_our_parent() -> None:
    assert entry.find_rays_python() == ""


def test_rays_python_is_named_by_the_raylet_above_us() -> None:
    """It starts the process that starts us (a stand-in: its command line has the words)."""
    code = "from probes.submit.entry import find_rays_python; print(find_rays_python())"
    for _ in range(2):  # the agent, and the raylet
        code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    words = ["--port=1", "--python_worker_command='/opt/ray python' worker.py --x"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )
    assert done.stdout == "/opt/ray python\n"


def test_the_suite_is_started_among_the_users_files(
    unpacked: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (unpacked / "submission" / "files").mkdir()
    (unpacked / "submission" / "files" / "mine.toml").write_text("")
    plan = {
        "options": {"contract": "mine.toml", "wait_for_room": "10m"},
        "to_pytest": ["-x"],
        "github": True,
        "requires": [],
    }
    (unpacked / "submission" / "plan.json").write_text(json.dumps(plan))
    old = tmp_path / "seatrial-submit-000000000000"
    old.mkdir()
    os.utime(old, (time.time() - 8 * 24 * 3600,) * 2)
    monkeypatch.setenv("PYTHONPATH", f"{unpacked}:/other")
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    started: list[tuple[Path, list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda *words: started.append(words))
    entry.main("seatrial-submit-0123456789ab")
    [(python, words, environment)] = started
    base = tmp_path / "seatrial-submit-0123456789ab"
    assert words[1:] == [
        "-m",
        "seatrial",
        "run",
        "--cluster=auto",
        "--nonce=seatrial-submit-0123456789ab",
        "--contract=mine.toml",
        "--wait-for-room=10m",
        "--",
        "-x",
    ]
    assert python == base / "env" / "bin" / "python"
    assert Path.cwd() == base / "work"
    assert (base / "work" / "mine.toml").exists()
    assert environment["PYTHONPATH"] == "/other"
    assert environment["PATH"].startswith(f"{base}/env/bin:")
    assert "RAY_JOB_CONFIG_JSON_ENV_VAR" not in environment
    assert environment["SEATRIAL_SUBMISSION"] == "seatrial-submit-0123456789ab"
    assert environment["GITHUB_STEP_SUMMARY"] == str(base / "work" / "github-step-summary.html")
    assert (base.stat().st_mode & 0o777, (base / "work").stat().st_mode & 0o777) == (0o711, 0o700)
    assert not old.exists()
    assert capsys.readouterr().out == "seatrial-submission seatrial-submit-0123456789ab\n"
