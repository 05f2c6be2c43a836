"""Follows a guide literally: its commands in a clean shell, as a user types them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from probes.acceptance.cluster_terms import ClusterTerms
from probes.cluster.cluster import ROOT, Cluster
from probes.cluster.unique_token import make_unique_token
from probes.launch.path.guide import Guide
from probes.launch.path.shell import RunningScript, Transcript
from probes.launch.path.user import NAME, SYSTEM_PATH, User

# Variables of a user of a cluster with token authentication (Ray 2.52 and later).  The token itself
# is in the user's home.
AUTH_VARIABLES = ("RAY_AUTH_MODE", "RAY_ENABLE_K8S_TOKEN_AUTH")
STEPS = 20  # enough for the loss to fall, and for its bytes to stand out
CHECKS = ("--digest-start", "--validate", "4")
# Words of launch.md: its job's name, its export's folder, its last words, and a variable that it
# gives to the job.
OWN_NAME, OWN_EXPORT, OWN_END = "--name myjob", "--export model", "--show MYJOB_STAGE"
OWN_VARIABLES = {"MYJOB_STAGE": "first"}


@dataclass(frozen=True)
class GuidedCluster:
    """A guide with its terms, for a cluster."""

    cluster: Cluster
    terms: ClusterTerms
    guide: Guide

    @property
    def variables(self) -> Mapping[str, str]:
        """Variables that the guide gives to the job."""
        return OWN_VARIABLES if self.guide.own else self.terms.launch.variables


@dataclass(frozen=True)
class LaunchPath(GuidedCluster):
    """What is followed: a guide, by a user."""

    user: User

    def job_command(self, name: str, extra: Sequence[str] = ()) -> str:
        """Return the command that starts the job on Ray, with further options."""
        words = ["python", "-m", "reference_trainer", "launch", "--workers", "all"]
        words += ["--steps", str(STEPS), "--name", name, *CHECKS, *export_options(name)]
        return shlex.join([*words, *self.show_options(), *extra])

    def show_options(self, more: Iterable[str] = ()) -> list[str]:
        """Return the option that lets each rank print the guide's variables, and `more`."""
        shown = ",".join([*self.variables, *more])
        return ["--show", shown] if shown else []

    def script(self, name: str, folder: Path, extra: Sequence[str] = ()) -> str:
        """Return what is typed, for a job of this name.  Raises GuideError."""
        if self.guide.own:
            own = {
                OWN_NAME: shlex.join(["--name", name]),
                OWN_EXPORT: shlex.join(export_options(name)),
                OWN_END: " ".join([OWN_END, *map(shlex.quote, extra)]),
            }
            return self.guide.script(own)
        known = {
            "{command}": self.job_command(name, extra),
            "{folder}": str(folder),
            "{name}": name,
            "{dashboard}": self.cluster.dashboard,
            "{nodes}": str(len(self.cluster.nodes)),
            "{ranks}": str(self.cluster.size),
            "{shared}": self.terms.shared or "",
        }
        pattern = re.compile("|".join(map(re.escape, known)))
        values = {
            placeholder: pattern.sub(lambda match: known[match[0]], value)
            for placeholder, value in self.terms.launch.values.items()
        }
        return self.guide.script(values)

    def login_env(self, home: Path) -> dict[str, str]:
        """Make the environment of a user who has just logged in.

        Our own guide asks for Ray and seatrial on the PATH, and for the dashboard's address.
        """
        own = {
            "PATH": f"{Path(sys.executable).parent}:{SYSTEM_PATH}",
            "RAY_API_SERVER_ADDRESS": self.cluster.dashboard,
        }
        return {
            "PATH": SYSTEM_PATH,
            **{name: os.environ[name] for name in AUTH_VARIABLES if name in os.environ},
            "HOME": str(home),
            "USER": NAME,
            "LOGNAME": NAME,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            **(own if self.guide.own else {}),
        }

    def follow(self, extra: Sequence[str] = ()) -> Transcript:
        """Type the guide's commands in a fresh home; stop at the first that fails.

        `extra` words are appended to the job's own command (for controls).  Raises GuideError.
        """
        with self.start(extra) as running:
            return running.wait()

    def start(
        self, extra: Sequence[str] = (), change: Mapping[str, str] | None = None
    ) -> RunningScript:
        """Start typing the guide's commands; `change` replaces texts of them, as a typo does."""
        name, home = new_name(), self.user.new_home()
        folder = home / "job"
        if not self.guide.own:
            copy_job(folder)
            self.user.own(folder)
        script = self.script(name, folder, extra)
        for text, instead in (change or {}).items():
            script = script.replace(text, instead)
        return self.run_script(script, home, name)

    def ask(self, script: str) -> Transcript:
        """Run a script of ours in the user's shell, in a fresh home."""
        with self.run_script(script, self.user.new_home(), new_name()) as running:
            return running.wait()

    def ask_identity(self) -> Transcript:
        """Ask who the user is: uid, group and groups."""
        return self.ask("id -u\nid -g\nid -G\n")

    def run_script(self, script: str, home: Path, name: str) -> RunningScript:
        """Start a script in the user's shell."""
        login, environment = not self.guide.own, self.login_env(home)
        return RunningScript(self.cluster, self.user, script, home, name, environment, login)


def export_options(name: str) -> list[str]:
    """Return where a test's job exports to: anybody can write there, and the job removes it."""
    return ["--export", f"/tmp/{name}", "--no-keep-export"]


def new_name() -> str:
    """Make a name that no other job has."""
    return f"seatrial-{make_unique_token()}"


def copy_job(folder: Path) -> None:
    """Write the user's own training job into a folder: an ordinary package, and nothing else."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "reference_trainer", folder / "reference_trainer", ignore=ignored)
