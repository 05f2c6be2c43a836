"""Runs the suite on the cluster: `python -m probes.submit.entry <id>`, as a submitted job.

It makes an environment of its own in the temporary folder of this node.  The environment sees
every package of this Python, holds our packages, and gets what is missing by pip.  Nothing that is
installed here is changed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
import venv
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from probes.requirements import list_missing
from probes.submit.parts import STEP_SUMMARY
from reports.run_folder.event_log import SUBMISSION_VARIABLE
from reports.version import PACKAGES

SUBMISSION = Path("submission")
PREFIX = "seatrial-submit-"  # of the id of a submission, and of its folder
NEVER_INSTALLED = ("ray", "torch")
# What our environment must not have another version of: workers have that of their node.
PINNED = re.compile(r"^(ray|torch|numpy|triton|nvidia-.*)$", re.IGNORECASE)
COMMANDS = {"seatrial": "seatrial:main", "ray": "ray.scripts.scripts:main"}
INSTALLING = "installing "  # begins the line before what is missing is installed
MARK = "seatrial-submission"  # begins the line after which the suite prints
WORKER_COMMAND = "--python_worker_command="  # an argument of the raylet
OLD_S = 7 * 24 * 3600  # a submission that was not brought back for so long is removed
EXIT_INTERRUPTED, EXIT_USAGE = 2, 4
# Ray's variables for drivers of a submitted job: the suite is a driver like any other.
JOB_VARIABLES = ("RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_JOB_STOP_WAIT_TIME_S")


def main(id: str) -> None:
    """Make the environment, and become the suite."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_INTERRUPTED))  # so that it cleans up
    if (rays := find_rays_python()) not in ("", sys.executable):
        os.execv(rays, [rays, "-m", "probes.submit.entry", id])  # noqa: S606  (no shell)
    plan = json.loads((SUBMISSION / "plan.json").read_text())
    _remove_old()
    base = Path(tempfile.gettempdir()) / id
    base.mkdir(mode=0o711)  # LAUNCH's other user runs our command, and sees no run
    base.chmod(0o711)
    try:
        python = make_environment(base / "env")
        install_missing(python, plan["requires"])
    except BaseException:
        shutil.rmtree(base, ignore_errors=True)
        raise
    work = base / "work"
    files = SUBMISSION / "files"
    shutil.copytree(files, work) if files.is_dir() else work.mkdir()
    work.chmod(0o700)
    os.chdir(work)
    print(MARK, id, flush=True)
    command = [str(python), "-m", "seatrial", *_words(plan, id)]
    environment = {**_variables(base), SUBMISSION_VARIABLE: id}
    if plan["github"]:
        environment |= {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(work / STEP_SUMMARY)}
    os.execve(python, command, environment)  # noqa: S606  (no shell)


def find_rays_python() -> str:
    """Find the Python that Ray's workers have here; "" if no parent process is a raylet.

    The one on the PATH may be another.  The raylet starts the process that starts us, and its
    command line has the command of a worker.
    """
    pid = os.getppid()
    while pid > 1:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            return ""
        for word in words:
            if word.startswith(WORKER_COMMAND):
                return shlex.split(word.removeprefix(WORKER_COMMAND))[0]
    return ""


def _words(plan: dict[str, Any], id: str) -> list[str]:
    """Words of the command: `run` and what the user gave; without a nonce it is the id."""
    given = {"nonce": id, **plan["options"]}
    options = [f"--{key.replace('_', '-')}={value}" for key, value in given.items()]
    rest = ["--", *plan["to_pytest"]] if plan["to_pytest"] else []
    return ["run", "--cluster=auto", *options, *rest]


def _variables(base: Path) -> dict[str, str]:
    """Environment of the suite: that of the job, without the package on its path."""
    kept = {name: value for name, value in os.environ.items() if name not in JOB_VARIABLES}
    paths = [path for path in kept.pop("PYTHONPATH", "").split(os.pathsep) if path]
    if others := [path for path in paths if not (Path(path) / SUBMISSION).is_dir()]:
        kept["PYTHONPATH"] = os.pathsep.join(others)
    return {**kept, "PATH": f"{base / 'env' / 'bin'}:{kept.get('PATH', os.defpath)}"}


def make_environment(folder: Path) -> Path:
    """Make an environment with our packages, which sees those of this Python; return its Python."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    major, minor = sys.version_info[:2]
    own = folder / "lib" / f"python{major}.{minor}" / "site-packages"
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    seen = [*site.getsitepackages(), *users]
    lines = [f"import site; site.addsitedir({path!r})" for path in seen if Path(path).is_dir()]
    (own / "seatrial-of-this-python.pth").write_text("\n".join(lines) + "\n")
    for package in PACKAGES:
        shutil.copytree(package, own / package)
    shutil.copytree(SUBMISSION / "seatrial.dist-info", own / "seatrial.dist-info")
    python = folder / "bin" / "python"
    for name, target in COMMANDS.items():
        module, _, function = target.partition(":")
        script = folder / "bin" / name
        text = f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        script.write_text(f"#!{python}\n{text}")
        script.chmod(0o755)
    return python


def install_missing(python: Path, requires: list[str]) -> None:
    """Install what this Python lacks into the environment, from the wheels if there are some."""
    if not (missing := list_missing(requires)):
        return
    if never := [line for line in missing if _name(line) in NEVER_INSTALLED]:
        _refuse(
            f"{sys.executable} lacks {' and '.join(never)}, which seatrial never installs: add "
            "the missing packages to the image of the head"
        )
    wheels = sorted((SUBMISSION / "wheels").glob("*.whl"))
    limits = python.parents[1] / "constraints.txt"
    limits.write_text("".join(f"{line}\n" for line in pinned_versions()))
    offline = ["--no-index", "--find-links", str(SUBMISSION / "wheels")] if wheels else []
    settings = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-compile"]
    command = ["-m", "pip", "install", *settings, "--constraint", str(limits), *offline, *missing]
    print(f"{INSTALLING}{', '.join(missing)} for seatrial only", flush=True)
    environment = dict(os.environ)
    if pip := [wheel for wheel in wheels if wheel.name.startswith("pip-")]:
        environment["PYTHONPATH"] = str(pip[-1].resolve())  # a wheel of pip runs as it is
    if subprocess.run([str(python), *command], env=environment, check=False).returncode:
        _refuse(
            f"{sys.executable} lacks {', '.join(missing)}, and pip could not install them: add"
            " the missing packages to the image, or pass their wheels with --wheels"
        )


def pinned_versions() -> list[str]:
    """List what pip may not install in another version than is here."""
    found = {str(dist.metadata["Name"] or ""): dist.version for dist in metadata.distributions()}
    return [f"{name}=={version}" for name, version in sorted(found.items()) if PINNED.match(name)]


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()


def _refuse(sentence: str) -> None:
    print(f"error: {sentence}", flush=True)
    sys.exit(EXIT_USAGE)


def _remove_old() -> None:
    """Remove submissions of this user that were not brought back in time."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another run of this user has just removed it
            state = folder.lstat()
            if state.st_uid == os.geteuid() and time.time() - state.st_mtime > OLD_S:
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
