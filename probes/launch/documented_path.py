"""The documented path, followed literally: the commands of launch.md in a clean shell."""

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
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from probes.cluster.cleanup import stop_resource
from probes.cluster.cluster import Cluster
from reports.redact import redact_text

REQUIRED_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
SUBMIT = ["ray", "job", "submit"]
PATH_SECONDS = 700.0  # bounds all commands together; a first step alone may take 300 s


def documented_commands() -> list[list[str]]:
    """Read the commands of launch.md's shell block, each as a list of words."""
    text = (resources.files("probes.launch") / "launch.md").read_text(encoding="utf-8")
    block = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
    assert block is not None
    return [shlex.split(line) for line in block[1].splitlines() if line.strip()]


def login_env(cluster: Cluster, home: Path) -> dict[str, str]:
    """Make the environment of a user who has just logged in: nothing of ours is inherited."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "RAY_API_SERVER_ADDRESS": cluster.dashboard,
    }


@dataclass
class Transcript:
    """What was typed, what came back, and the exit code of the last command."""

    lines: list[str] = field(default_factory=list)
    exit_code: int | None = None
    failed_command: str = ""
    first_step: float | None = None  # seconds from the first command to the first step's line

    @property
    def text(self) -> str:
        """As a terminal would show it."""
        return "\n".join(self.lines) + "\n"


def follow_path(cluster: Cluster, folder: Path, extra: Sequence[str] = ()) -> Transcript:
    """Type the documented commands in `folder`; stop at the first that fails.

    `extra` words are appended to the job's own command (for the control).  The job gets a
    submission id of ours, so that cluster.cleanup can stop it whatever happens to this process.
    """
    transcript, cwd, started = Transcript(), folder, time.monotonic()
    for command in documented_commands():
        if command[0] == "cd":
            cwd = cwd / command[1]
            transcript.lines.append(f"$ {shlex.join(command)}")
            continue
        is_submit = command[:3] == SUBMIT
        job_id = f"seatrial-{uuid.uuid4().hex[:12]}"
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
                _stop_job(cluster, job)
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
    """Read one command line by line into the transcript; kill it when its time is up."""
    remaining_s = max(1.0, PATH_SECONDS - (time.monotonic() - started))
    alarm = threading.Timer(remaining_s, os.killpg, (child.pid, signal.SIGKILL))
    alarm.start()
    try:
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                transcript.lines.append(redact_text(line.rstrip("\n")))
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


def _stop_job(cluster: Cluster, job: str) -> None:
    """Stop the job if it still runs.  cluster.cleanup stops it later where that fails."""
    try:
        stop_resource("job", job)
    except urllib.error.HTTPError as error:
        if error.code != 404:  # 404: it never got as far as being submitted
            return
    except OSError:
        return
    cluster.cleanup.unregister("job", job)


def rank_variables(text: str) -> list[dict[str, str]]:
    """Read each rank's announced variables, with its host and node, from the job's output."""
    matches = (re.search(r"\battempt=1 (node=.*)$", line) for line in text.splitlines())
    words = (match[1].split() for match in matches if match)
    return [dict(word.split("=", 1) for word in row if "=" in word) for row in words]


def wrong_ranks(rows: list[dict[str, str]], size: int) -> dict[int, str]:
    """Find ranks (by position) whose variables are missing, no numbers or inconsistent; and why."""
    wrong: dict[int, str] = {}
    ranks = Counter(row.get("RANK") for row in rows)
    places = Counter((row.get("node"), row.get("LOCAL_RANK")) for row in rows)
    for i, row in enumerate(rows):
        missing = [name for name in REQUIRED_VARIABLES if not row.get(name)]
        if missing:
            wrong[i] = f"{', '.join(missing)} not set"
        elif not all(row[name].isdigit() for name in REQUIRED_VARIABLES if name != "MASTER_ADDR"):
            wrong[i] = "a variable that counts is not a number"
        elif int(row["WORLD_SIZE"]) != size:
            wrong[i] = f"WORLD_SIZE is {row['WORLD_SIZE']}, expected {size}"
        elif (row["MASTER_ADDR"], row["MASTER_PORT"]) != _rank0_rendezvous(rows):
            wrong[i] = f"MASTER is {row['MASTER_ADDR']}:{row['MASTER_PORT']}, others have another"
        elif ranks[row["RANK"]] > 1 or int(row["RANK"]) >= size:
            wrong[i] = f"RANK {row['RANK']} is taken twice or out of range"
        elif places[row["node"], row["LOCAL_RANK"]] > 1:
            wrong[i] = f"LOCAL_RANK {row['LOCAL_RANK']} is taken twice on {row['host']}"
    return wrong


def _rank0_rendezvous(rows: list[dict[str, str]]) -> tuple[str | None, str | None]:
    """Find the rendezvous of rank 0, which all must share."""
    first = next((row for row in rows if row.get("RANK") == "0"), rows[0])
    return first.get("MASTER_ADDR"), first.get("MASTER_PORT")


def make_user_home(parent: str) -> Path:
    """Make a fresh home folder for the user who follows the path."""
    home = Path(parent) / f"seatrial-user-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    home.mkdir(mode=0o700)
    return home
