"""A machine that submits: it has the lab's management network, click and seatrial, and no Ray."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import click

from reports.record import RunRecord
from reports.run_folder.integrity import load
from reports.version import PACKAGES, SOURCES
from tests.lab import network
from tests.lab.lab import Lab

RUN = re.compile(r"^run folder (.+)$", re.MULTILINE)
ID = re.compile(r"seatrial-submit-[0-9a-f]{12}")


def furnish(folder: Path) -> Path:
    """Make a folder with what `pip install --no-deps . click` installs; return it."""
    folder.mkdir(parents=True)
    for name in PACKAGES:
        (folder / name).symlink_to(SOURCES / name)
    (folder / "click").symlink_to(Path(str(click.__file__)).parent)
    found = metadata.distribution("seatrial")
    info = folder / f"seatrial-{found.version}.dist-info"
    info.mkdir()
    text = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
    (info / "METADATA").write_text(text)
    return folder


class Submission:
    """`seatrial submit` on a machine that is no node of the lab."""

    def __init__(
        self,
        lab: Lab,
        folder: Path,
        *words: str,
        variables: Mapping[str, str] | None = None,
        machine: int | str = network.CLIENT,
    ) -> None:
        self.lab, self.folder, self.log = lab, folder, folder / "output.log"
        packages = furnish(folder / "packages")
        address = f"http://{network.address('eth0', 0)}:8265"
        code = "from probes.cli.main import main; main()"
        command = [sys.executable, "-S", "-c", code, "submit", "--address", address, *words]
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [*network.inside(lab.name, machine), *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=folder,
                env={
                    "PATH": "/usr/bin:/bin",
                    "PYTHONPATH": str(packages),
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "PYTHONUNBUFFERED": "1",
                    "HOME": str(folder),
                    "RAY_AUTH_MODE": "disabled",
                    **(variables or {}),
                },
            )

    @property
    def said(self) -> str:
        """What it has printed so far."""
        return self.log.read_text()

    @property
    def id(self) -> str:
        """Id of the submission, once it was printed."""
        self.until(ID)
        found = ID.search(self.said)
        assert found
        return found[0]

    def until(self, words: re.Pattern[str], seconds: float = 120) -> None:
        """Wait until it has printed this."""
        deadline = time.monotonic() + seconds
        while not words.search(self.said):
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.1)

    def end(self, seconds: float = 300) -> int:
        """Wait for its end; return its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(self.said) from None

    def kill(self) -> None:
        """Kill it, as a machine that loses power does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    @property
    def record(self) -> RunRecord:
        """The record that came back, whole and unchanged."""
        found = RUN.search(self.said)
        assert found, self.said
        return load(self.folder / found[1])
