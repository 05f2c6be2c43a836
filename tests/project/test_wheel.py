"""The wheel works where it is installed: templates and contracts inside, no checkout around."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from probes.check.registry import CRITERIA
from tests.support.paths import RECORDINGS

pytestmark = pytest.mark.alone

PIP = [sys.executable, "-m", "pip"]
HOSTS = ["--cluster", "local:2", "--contract", "local", "-k", "hosts"]
FOREIGN = """
import sys
def test_it():
    ours = {"probes", "reports", "scaling", "reference_trainer"}
    assert not ours & {name.partition(".")[0] for name in sys.modules}
"""
QUICK_HOSTS = [duty for duty in CRITERIA["HOSTS"].duties if duty.tier == "quick"]


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """The wheel of this checkout."""
    return next(built.glob("*.whl"))


def test_contents(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in (
        "probes/contract/contracts/lab.toml",
        "probes/hosts/findings.toml",
        "probes/launch/launch.md",
        "probes/nccl/remedies.toml",
        "probes/nccl/phrases.toml",
        "probes/fabric/test_fabric.py",
        "reports/formats/record.schema.json",
        "reports/page/templates/report.html.j2",
        "reports/page/templates/style.css",
        "reports/share/words.txt",
        "reference_trainer/__main__.py",
        "scaling/collectives/sweep.py",
        "seatrial/py.typed",
        "probes/py.typed",
    ):
        assert name in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which only the wheel, not this checkout, is importable."""
    site = tmp_path_factory.mktemp("site")
    subprocess.run(
        [*PIP, "install", "-q", "--no-deps", "--target", str(site), str(wheel)],
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    path = os.pathsep.join([str(site / "bin"), os.environ["PATH"]])
    return {**os.environ, "PYTHONPATH": str(site), "PATH": path, "SITE": str(site)}


def test_the_wheel_knows_its_commit(wheel: Path, elsewhere: dict[str, str], tmp_path: Path) -> None:
    """Two parties sign a report that names it."""
    commit = zipfile.ZipFile(wheel).read("seatrial/COMMIT").decode().strip()
    assert re.fullmatch("[0-9a-f]{40}", commit)
    done = run(elsewhere, tmp_path, "seatrial", "--version")
    assert f", commit {commit[:12]}, " in done.stdout


def test_a_package_that_another_project_installed_over_ours_is_named(
    elsewhere: dict[str, str], tmp_path: Path
) -> None:
    """`pip install scaling` does that."""
    file = Path(elsewhere["SITE"]) / "scaling" / "__init__.py"
    ours = file.read_bytes()
    file.write_text("import pint\n")
    try:
        done = run(elsewhere, tmp_path, "seatrial", "doctor")
    finally:
        file.write_bytes(ours)
    assert (done.returncode, done.stdout) == (4, "")
    assert f"the Python package scaling at {file} is not seatrial's" in done.stderr


def run(elsewhere: dict[str, str], where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=where, env=elsewhere, capture_output=True, text=True, timeout=400, check=False
    )


def test_commands_from_an_empty_folder(elsewhere: dict[str, str], tmp_path: Path) -> None:
    where = run(elsewhere, tmp_path, sys.executable, "-c", "import probes; print(probes.__file__)")
    assert where.stdout.startswith(elsewhere["SITE"])
    assert "lab.toml" not in run(elsewhere, tmp_path, "seatrial", "contract", "list").stderr
    told = run(elsewhere, tmp_path, "seatrial", "contract", "check", "h100-ndr400")
    assert told.returncode == 0, told.stderr
    assert run(elsewhere, tmp_path, "seatrial", "example", "job").returncode == 0
    assert (tmp_path / "job" / "reference_trainer" / "launch" / "launchers.py").is_file()


def test_report_renders_from_an_empty_folder(elsewhere: dict[str, str], tmp_path: Path) -> None:
    import shutil

    shutil.copytree(RECORDINGS / "tcp-fallback", tmp_path / "run")
    told = run(elsewhere, tmp_path, "seatrial", "report", "run")
    assert told.returncode == 1
    assert "NOT ACCEPTED" in told.stdout
    assert "<html" in (tmp_path / "run-report" / "report.html").read_text()


@pytest.mark.parametrize(
    "command",
    [
        ["seatrial", "run", *HOSTS],
        pytest.param(
            [sys.executable, "-m", "pytest", "-p", "probes.plugin", "--pyargs", "probes", *HOSTS],
            marks=pytest.mark.soak(criterion="suite"),
        ),
    ],
    ids=["seatrial run", "pytest --pyargs"],
)
def test_probes_run_from_an_empty_folder(
    elsewhere: dict[str, str], tmp_path: Path, command: list[str]
) -> None:
    told = run(elsewhere, tmp_path, *command)
    count = len(QUICK_HOSTS)
    assert f"[{count}/{count}] HOSTS PASS" in told.stdout, told.stdout + told.stderr
    assert told.returncode == 20, "only one criterion was looked at"
    assert "ResourceWarning" not in told.stderr, told.stderr
    assert list(tmp_path.glob("runs/*/report.html"))
    event = next(tmp_path.glob("runs/*/events.jsonl")).read_text()
    assert (
        '"reproduce": "seatrial run --cluster local:2 --tier quick --contract local -k test_'
        in event
    )
    again = run(
        elsewhere,
        tmp_path,
        "seatrial",
        "again",
        "HOSTS",
        "--run",
        str(next((tmp_path / "runs").iterdir())),
        "--",
        "--collect-only",
    )
    assert (
        "seatrial run --cluster local:2 --tier quick --contract local --only HOSTS" in again.stdout
    ), again.stderr


def test_another_project_gets_nothing(elsewhere: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "test_foreign.py").write_text(FOREIGN)
    env = {k: v for k, v in elsewhere.items() if k != "PYTEST_DISABLE_PLUGIN_AUTOLOAD"}
    env["SEATRIAL_CLUSTER"] = "local:2"
    shown = run(env, tmp_path, sys.executable, "-m", "pytest", "--help")
    assert "seatrial" not in shown.stdout
    assert "--cluster" not in shown.stdout
    done = run(env, tmp_path, sys.executable, "-m", "pytest", "-q", "test_foreign.py")
    assert done.returncode == 0, done.stdout
    wanted = run(env, tmp_path, sys.executable, "-m", "pytest", "-p", "probes.plugin", "--help")
    assert "--cluster" in wanted.stdout, "the plugin can be asked for"
