"""Runs a competing job as a separate driver process that the probe commands through pipes."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from probes.cluster.cluster import Cluster
from probes.faults.process_faults import start_driver
from reports.sanitize import last_line

ANSWER_SECONDS = 60  # for a command: longer than any wait inside a driver
SCRIPT = Path(__file__).with_name("job_driver.py")


class JobUnresponsive(RuntimeError):
    """Raised when a job's driver did not answer in time, or died."""

    explains_itself = True  # a traceback would add nothing


class CompetingJob:
    """One competing job. `id` is its Ray job id, known once `wait_ready` has returned."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.name, self.id, self._cluster = name, "", cluster
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  (`end` closes it)
        command = [sys.executable, str(SCRIPT), cluster.address, cluster.resource]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._stderr}
        # Its pipes are there: the type of a process says that they may be None.
        self._child: Any = start_driver(cluster, command, **pipes)

    def wait_ready(self) -> str:
        """Wait until the driver has joined the cluster; return the Ray job id."""
        self.id = self.id or str(self.read_answer())
        return self.id

    def send(self, command: str, *arguments: Any) -> None:
        """Send a command without waiting for its answer."""
        self._child.stdin.write(json.dumps({"do": command, "with": arguments}) + "\n")
        self._child.stdin.flush()

    def read_answer(self) -> Any:
        """Read the next answer. Raises JobUnresponsive after 60 s, or if the driver died."""
        readable, _, _ = select.select([self._child.stdout], [], [], ANSWER_SECONDS)
        line = self._child.stdout.readline() if readable else ""
        if not line:
            reason = self._failure_reason()
            self._child.kill()  # a late answer would be read as that of the next command
            raise JobUnresponsive(reason)
        return json.loads(line)

    def _failure_reason(self) -> str:
        """Explain why there is no answer."""
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=1)
        driver = f"the Ray driver process of test job {self.name}"
        if self.alive:
            return f"{driver} did not answer within {ANSWER_SECONDS} s"
        self._stderr.seek(0)
        why = last_line(self._stderr.read(), f"exit code {self._child.returncode}")
        return f"{driver} died: {why}"

    def call(self, command: str, *arguments: Any) -> Any:
        """Send a command and wait for its answer."""
        self.send(command, *arguments)
        return self.read_answer()

    def signal(self, signum: int) -> None:
        """Send a signal to the driver; after SIGKILL, wait up to 10 s for its exit."""
        if signum == signal.SIGKILL:
            self._cluster.note_kill()  # Ray ends the job's actors, wherever they are
        self._child.send_signal(signum)
        if signum == signal.SIGKILL:
            self._child.wait(timeout=10)

    @property
    def alive(self) -> bool:
        """Whether the driver process runs."""
        return self._child.poll() is None

    def end(self) -> None:
        """Close the driver's input, which ends it; kill it if it still runs after 10 s."""
        if self.alive:
            os.kill(self._child.pid, signal.SIGCONT)  # SIGSTOP may have stopped it
        self._child.stdin.close()
        try:
            self._child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()
        self._stderr.close()
        self._cluster.cleanup.unregister("process", str(self._child.pid))
