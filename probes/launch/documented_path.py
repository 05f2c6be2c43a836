"""Follows the documented path literally: the commands of launch.md in a clean shell."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.error
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from probes.cluster.cleanup import find_token, stop_resource, token_path
from probes.cluster.cluster import Cluster
from probes.cluster.unique_token import make_unique_token
from reports.redact import REDACTED, redact_text

# Variables of a user of a cluster with token authentication (Ray 2.52 and later).
TOKEN_VARIABLES = (
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_AUTH_TOKEN_PATH",
    "RAY_ENABLE_K8S_TOKEN_AUTH",
)
SUBMIT = ["ray", "job", "submit"]
PATH_SECONDS = 700.0  # bounds all commands together; a first step alone may take 300 s


def documented_commands() -> list[list[str]]:
    """Read the commands of launch.md's shell block, each as a list of words."""
    text = (resources.files("probes.launch") / "launch.md").read_text(encoding="utf-8")
    block = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
    assert block is not None
    return [shlex.split(line) for line in block[1].splitlines() if line.strip()]


def login_env(cluster: Cluster, home: Path) -> dict[str, str]:
    """Make the environment of a user who has just logged in.

    Only the token is inherited: Ray's commands would look for it in our home folder.
    """
    token = {name: os.environ[name] for name in TOKEN_VARIABLES if name in os.environ}
    if find_token() and not token.get("RAY_AUTH_TOKEN"):
        token["RAY_AUTH_TOKEN_PATH"] = str(token_path().absolute())
    return {
        **token,
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "RAY_API_SERVER_ADDRESS": cluster.dashboard,
    }


@dataclass
class Transcript:
    """Commands typed, their output, and the exit code of the last command."""

    lines: list[str] = field(default_factory=list)
    exit_code: int | None = None
    failed_command: str = ""
    stop_error: str = ""  # why the dashboard refused to stop the job
    first_step: float | None = None  # seconds from the first command to the first step's line

    @property
    def text(self) -> str:
        """Transcript as a terminal would show it."""
        return "\n".join(self.lines) + "\n"


def follow_path(cluster: Cluster, folder: Path, extra: Sequence[str] = ()) -> Transcript:
    """Run the documented commands in `folder`; stop at the first that fails.

    `extra` words are appended to the job's own command (for the control).  The job gets a
    submission id of ours, so cluster.cleanup can stop it even if this process dies.
    """
    transcript, cwd, started = Transcript(), folder, time.monotonic()
    for command in documented_commands():
        if command[0] == "cd":
            cwd = cwd / command[1]
            transcript.lines.append(f"$ {shlex.join(command)}")
            continue
        is_submit = command[:3] == SUBMIT
        job_id = f"seatrial-{make_unique_token()}"
        job = f"{cluster.dashboard} {job_id}"
        argv = [*SUBMIT, "--submission-id", job_id, *command[3:], *extra] if is_submit else command
        transcript.lines.append(f"$ {shlex.join(argv)}")
        if is_submit:
            cluster.cleanup.register("job", job)
        try:
            child = _start_command(argv, cwd, login_env(cluster, folder))
            _transcribe_output(child, transcript, started)
        finally:
            if is_submit:
                transcript.stop_error = _stop_job(cluster, job)
        if transcript.exit_code != 0:
            transcript.failed_command = shlex.join(command)
            break
    return transcript


def _start_command(
    command: list[str], cwd: Path, environment: dict[str, str]
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _transcribe_output(
    child: subprocess.Popen[str], transcript: Transcript, started: float
) -> None:
    """Read a command's output line by line into the transcript; kill it when its time is up."""
    token = find_token()
    remaining_s = max(1.0, PATH_SECONDS - (time.monotonic() - started))
    alarm = threading.Timer(remaining_s, os.killpg, (child.pid, signal.SIGKILL))
    alarm.start()
    try:
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                transcript.lines.append(hide_secrets(line.rstrip("\n"), token))
                if transcript.first_step is None and re.search(r"\bstep 1/\d+ ", line):
                    transcript.first_step = time.monotonic() - started
        transcript.exit_code = child.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise
    finally:
        alarm.cancel()


def hide_secrets(line: str, token: str) -> str:
    """Remove secrets from a line: those with known names, and the cluster's token anywhere."""
    return redact_text(line.replace(token, REDACTED) if token else line)


def _stop_job(cluster: Cluster, job: str) -> str:
    """Stop the job if it still runs; return why the dashboard refused, or "".

    If stopping fails, cluster.cleanup stops the job later.
    """
    try:
        stop_resource("job", job)
    except PermissionError as error:
        return str(error)
    except urllib.error.HTTPError as error:
        if error.code != 404:  # 404: the job was never submitted
            return ""
    except OSError:
        return ""
    cluster.cleanup.unregister("job", job)
    return ""


def make_user_home(parent: str) -> Path:
    """Make a fresh home folder for the user who follows the path."""
    home = Path(parent) / f"seatrial-user-{make_unique_token()}"
    home.mkdir(mode=0o700)
    return home
