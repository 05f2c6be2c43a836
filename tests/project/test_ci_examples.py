"""The examples of docs/use/ci: each parses, and each of their commands is one that seatrial has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from probes.cli.main import main
from tests.project.test_kubernetes import schema
from tests.support.built_wheel import wheel_of
from tests.support.ci_examples import EXAMPLES, commands_of, dockerfile_steps
from tests.support.paths import REPO

COMMAND = re.compile(r"(?:^|[/ ])seatrial ([a-z]+) (.*)$")


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_command_of_seatrial_has_its_options(name: str) -> None:
    found = [match for line in commands_of(name) if (match := COMMAND.search(line))]
    assert found or name == "Dockerfile"
    for match in found:
        options = {name for one in main.commands[match[1]].params for name in one.opts}
        assert {word for word in match[2].split() if word.startswith("--")} <= options


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_failure_is_not_hidden(name: str) -> None:
    """Nothing turns an exit code into success."""
    text = (REPO / "docs" / "use" / "ci" / name).read_text()
    assert not re.search(r"\|\| *true|allow_failure|continue-on-error|catchError|set \+e", text)


def test_the_workflow_files_have_the_form_that_is_read() -> None:
    github = yaml.safe_load((REPO / "docs/use/ci/github-actions.yml").read_text())
    assert github[True].keys() == {"schedule", "workflow_dispatch"}  # `on` is True in YAML 1.1
    (job,) = github["jobs"].values()
    assert job["timeout-minutes"] >= 180
    gitlab = yaml.safe_load((REPO / "docs/use/ci/gitlab-ci.yml").read_text())
    assert gitlab["acceptance"]["artifacts"]["when"] == "always"
    jenkins = (REPO / "docs/use/ci/Jenkinsfile").read_text()
    assert jenkins.count("{") == jenkins.count("}")
    assert jenkins.count("'", jenkins.index("pipeline")) % 2 == 0


def test_the_ray_job_fits_the_crd() -> None:
    job: dict[str, Any] = yaml.safe_load((REPO / "docs/use/ci/rayjob.yaml").read_text())
    known = schema("rayjob")["properties"]["spec"]["properties"]
    assert job["spec"].keys() <= known.keys()
    assert job["spec"]["backoffLimit"] == 0  # a second try would hide a failure


def test_the_shell_script_is_sound() -> None:
    script = REPO / "docs/use/ci/acceptance.sh"
    assert os.access(script, os.X_OK)
    subprocess.run(["sh", "-n", str(script)], check=True)


def test_the_image_keeps_its_torch_and_ray(tmp_path: Path) -> None:
    """The Dockerfile's own steps, in an environment; seatrial's place is taken by a small wheel."""
    wheel_of("iniconfig", tmp_path)
    keep, install, version = dockerfile_steps()
    assert version == "seatrial --version"
    keep, install = (step.replace("/tmp/", f"{tmp_path}/") for step in (keep, install))
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PIP_NO_INDEX": "1",
        "PIP_TARGET": str(tmp_path / "target"),
        "HOME": str(tmp_path),
    }
    for step in (keep, install.replace("/seatrial-", "/iniconfig-")):
        done = subprocess.run(["sh", "-c", step], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    kept = (tmp_path / "keep.txt").read_text()
    assert re.search(r"^torch==", kept, re.MULTILINE)
    assert re.search(r"^ray==", kept, re.MULTILINE)
    assert (tmp_path / "target" / "iniconfig").is_dir()
