"""The recipes that start Ray are followed in a lab whose nodes are up without it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.launch.guide import parse_guide
from reports.run_folder.integrity import load
from tests.faults.launchers.leftovers import files, processes
from tests.lab import network
from tests.lab.lab import Lab
from tests.lab.node import SHARED, SYSTEM_PATH
from tests.lab.slurm import Slurm
from tests.lab.ssh import start_ssh
from tests.support.paths import REPO
from tests.support.trial import lab_of, otherwise

RECIPES = REPO / "docs" / "use" / "launch"
SECONDS = 400
BIN = str(Path(sys.executable).parent)
LEFT = "pgrep -a 'raylet|gcs_server|^ray::' || true"


@pytest.fixture
def lab() -> Iterator[Lab]:
    with lab_of(2, "recipe", ray=False) as lab:
        yield lab


def changed(text: str, changes: dict[str, str]) -> str:
    """Return a recipe's text as it is typed here; each change must have something to change."""
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def recipe(name: str) -> str:
    return (RECIPES / name).read_text()


def write_contract(lab: Lab) -> None:
    (lab.home / "shared" / "cluster.toml").write_text(otherwise({}))


def launch_is_proven(run: Path) -> None:
    results = [result for result in load(run).results if result.criterion == "LAUNCH"]
    assert [(result.state, result.problems()) for result in results] == [("finished", [])] * 2


def nothing_runs(lab: Lab) -> None:
    """Nothing of Ray, of a job or of the suite; `pgrep` itself must be there to say so."""
    for node in lab.nodes:
        assert node.run("sh", "-c", f"command -v pgrep > /dev/null && ({LEFT})") == ""
    assert processes(lab) == []
    assert files(lab) == []


BATCH = {
    "--nodes=8": "--nodes=2",
    "--gpus-per-node=8": "--gpus-per-node=1",
    "--num-gpus 8": "--num-gpus 1 --num-cpus 4",
    "/opt/training/bin": BIN,
    "seatrial run ": "seatrial run --only LAUNCH ",
}


def submit(lab: Lab, slurm: Slurm, changes: dict[str, str]) -> int:
    """Follow the recipe for Slurm on the last node; return the exit code of its last command."""
    text = recipe("slurm.md")
    (job,) = re.findall(r"```slurm\n(.*?)```", text, flags=re.DOTALL)
    (lab.home / "shared" / "acceptance.sbatch").write_text(changed(job, changes))
    script = parse_guide("slurm.md", text).script({})
    said = slurm.run(lab.nodes[-1], f"cd {SHARED}\n{script}\necho ended with $?", SECONDS)
    return int(said.split()[-1])


@pytest.mark.soak(criterion="starts")
def test_a_slurm_job_starts_ray_and_the_suite_and_leaves_nothing(lab: Lab) -> None:
    slurm, shared = Slurm(lab), lab.home / "shared"
    slurm.start()
    write_contract(lab)
    assert submit(lab, slurm, BATCH) == 20  # LAUNCH alone is no acceptance
    launch_is_proven(shared / "acceptance-1")
    nothing_runs(lab)


@pytest.mark.soak(criterion="starts")
def test_a_slurm_job_whose_ray_does_not_start_is_no_success(lab: Lab) -> None:
    """symmetric-run itself ends with 0: the recipe must not."""
    slurm = Slurm(lab)
    slurm.start()
    write_contract(lab)
    wrong = {**BATCH, "--num-gpus 8": "--num-gpus none"}
    assert submit(lab, slurm, wrong) == 4
    nothing_runs(lab)


@pytest.mark.soak(criterion="starts")
def test_ssh_over_a_list_of_hosts_starts_ray_and_stops_it(lab: Lab) -> None:
    client, head, shared = start_ssh(lab), lab.nodes[0], lab.home / "shared"
    write_contract(lab)
    addresses = [network.address("eth0", node.index) for node in lab.nodes]
    (shared / "hosts").write_text("\n".join(addresses) + "\n")
    script = parse_guide("bare-metal.md", recipe("bare-metal.md")).script({})
    script = changed(
        script,
        {
            "/opt/training": str(Path(sys.prefix)),
            "fabric0": "fab0",
            "--num-gpus=8": "--num-gpus=1 --num-cpus=4",
            "seatrial run ": "seatrial run --only LAUNCH ",
            '--run-dir /shared/acceptance"': '--run-dir /shared/acceptance"; echo ended with $?',
        },
    )
    path = f"PATH={client}:{SYSTEM_PATH}"
    said = head.run("env", "-C", SHARED, path, "bash", "-c", script, seconds=SECONDS)
    assert "ended with 20" in said, said
    launch_is_proven(shared / "acceptance")
    nothing_runs(lab)
