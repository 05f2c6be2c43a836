"""Reads the commands of the examples in docs/use/ci."""

from __future__ import annotations

import re

import yaml

from tests.support.paths import REPO

FOLDER = REPO / "docs" / "use" / "ci"
SUBMITS = ("github-actions.yml", "gitlab-ci.yml", "Jenkinsfile", "acceptance.sh")
EXAMPLES = (*SUBMITS, "rayjob.yaml", "Dockerfile")


def commands_of(name: str) -> list[str]:
    """List the shell commands of an example, in their order."""
    text = (FOLDER / name).read_text()
    if name == "github-actions.yml":
        (job,) = yaml.safe_load(text)["jobs"].values()
        return [step["run"] for step in job["steps"] if "run" in step]
    if name == "gitlab-ci.yml":
        return list(yaml.safe_load(text)["acceptance"]["script"])
    if name == "Jenkinsfile":
        return re.findall(r"^\s*sh '(.*)'$", text, re.MULTILINE)
    if name == "rayjob.yaml":
        return [yaml.safe_load(text)["spec"]["entrypoint"]]
    if name == "Dockerfile":
        return dockerfile_steps()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def dockerfile_steps() -> list[str]:
    """List the RUN commands of the Dockerfile."""
    return re.findall(r"^RUN (.*)$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
