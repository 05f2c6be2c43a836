"""The CI examples of docs/use/ci, command by command, from a machine that is no node."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reports.acceptance import load_summary
from reports.record import Verdict
from tests.faults.launchers.leftovers import nothing_left
from tests.lab import network
from tests.lab.lab import Lab
from tests.lab.node import SHARED
from tests.support.built_wheel import wheel_of
from tests.support.ci_examples import FOLDER, SUBMITS, commands_of
from tests.support.paths import REPO

SOAK = pytest.mark.soak(criterion="submit")
LAB_CONTRACT = REPO / "probes" / "contract" / "contracts" / "lab.toml"
PARTIAL = 20  # exit code: the tests run one criterion of the suite


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels of seatrial, as its user builds it, and of click, in place of a registry."""
    folder, source = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("source") / "tree"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "runs", "*.egg-info", "tests", "docs")
    shutil.copytree(REPO, source, ignore=ignored)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*build, "--wheel-dir", str(folder), str(source)], check=True)
    wheel_of("click", folder)
    return folder


def environment(registry: Path, home: Path) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).resolve().parent}:/usr/bin:/bin",
        "HOME": str(home),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(registry),
        "RAY_API_SERVER_ADDRESS": f"http://{network.address('eth0', 0)}:8265",
        "RAY_AUTH_MODE": "disabled",
        "SEATRIAL_ONLY": "GANG",
    }


def in_shell(lab: Lab, line: str, folder: Path, variables: dict[str, str]) -> tuple[int, str]:
    """Run a line on the lab's client, as a CI runner does."""
    done = subprocess.run(
        [*network.inside(lab.name, network.CLIENT), "sh", "-e", "-c", line],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=400,
    )
    return done.returncode, done.stdout + done.stderr


@SOAK
@pytest.mark.parametrize("name", [name for name in SUBMITS if name != "acceptance.sh"])
def test_the_example_gates_the_cluster(lab: Lab, name: str, registry: Path, tmp_path: Path) -> None:
    shutil.copy(LAB_CONTRACT, tmp_path / "cluster.toml")
    shutil.copytree(registry, tmp_path / "wheels")
    variables = environment(registry, tmp_path)
    *prepare, submit = commands_of(name)
    for line in prepare:
        code, said = in_shell(lab, line, tmp_path, variables)
        assert code == 0, said
    code, said = in_shell(lab, submit, tmp_path, variables)
    assert code == PARTIAL, said
    summary = load_summary(tmp_path / "run")
    assert summary.exit_code == PARTIAL
    assert summary.record.verdict("GANG") is Verdict.PASS
    assert (tmp_path / "run" / "junit.xml").is_file()
    nothing_left(lab)


@SOAK
def test_the_script_of_cron_keeps_its_runs_and_compares_them(
    lab: Lab, registry: Path, tmp_path: Path
) -> None:
    shutil.copy(FOLDER / "acceptance.sh", tmp_path)
    text = LAB_CONTRACT.read_text() + '\n[baseline]\nplacement_delay = "90 %"\n'
    (tmp_path / "cluster.toml").write_text(text)
    shutil.copytree(registry, tmp_path / "wheels")
    variables = environment(registry, tmp_path)
    for count in (1, 2):
        code, said = in_shell(lab, "./acceptance.sh", tmp_path, variables)
        assert code == PARTIAL, said
        assert "exit code 20" in said
        assert len([*(tmp_path / "runs").glob("*/record.json")]) == count
    # The first run is PARTIAL, so it is no baseline, and that is said.
    assert "no run of cluster" not in said
    assert "is PARTIAL" in said
    nothing_left(lab)


@SOAK
def test_the_ray_job_runs_the_suite_on_the_head(lab: Lab) -> None:
    (entrypoint,) = commands_of("rayjob.yaml")
    shutil.copy(LAB_CONTRACT, lab.home / "shared" / "cluster.toml")
    entrypoint = entrypoint.replace("/etc/seatrial", SHARED)
    command = f"SEATRIAL_ONLY=GANG SEATRIAL_RUN_DIR={SHARED}/runs/rayjob {entrypoint}"
    code = (
        "import sys, time; from ray.job_submission import JobSubmissionClient as C;"
        "c = C('http://127.0.0.1:8265'); id = c.submit_job(entrypoint=sys.argv[1]);"
        "[time.sleep(1) for _ in iter(lambda: c.get_job_status(id).is_terminal(), True)];"
        "print(c.get_job_info(id).driver_exit_code)"
    )
    said = lab.nodes[0].run(sys.executable, "-c", code, command, seconds=400)
    assert said.splitlines()[-1] == str(PARTIAL)
    summary = load_summary(lab.home / "shared" / "runs" / "rayjob")
    assert summary.record.verdict("GANG") is Verdict.PASS
    nothing_left(lab)
