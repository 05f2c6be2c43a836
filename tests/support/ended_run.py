"""Runs two sound probes on a stand-in cluster in a process of its own, and lets a fault end it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from reports.acceptance import AcceptanceSummary, load_summary
from reports.run_folder.event_log import SUMS
from tests.support.paths import REPO
from tests.support.stand_in import CAUGHT, CONTRACT, GOOD, OWES, PROBE, STAND_IN

# A shell without job control starts `make test &` with Ctrl-C ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# What a probe and its teardown need to plant a fault in their own run.
HEAD = """
import os, pathlib, shutil, signal, time
import pytest

RUN = pathlib.Path({run!r})

def send(*names, wait=0.0):
    for name in names:
        os.kill(os.getpid(), getattr(signal, name))
    time.sleep(wait)

@pytest.fixture(autouse=True)
def torn_down():
    yield
    {teardown}
"""
# `seatrial run` takes its probes from the package: here from this folder.
COMMAND = """
import sys
sys.path.insert(0, {place!r})
import stand_in
import probes.cli.main, probes.cli.run
probes.cli.run.__file__ = {place!r} + "/cli/run.py"
probes.cli.main.main()
"""
WHOLE = {"events.jsonl", "record.json", "report.html", "junit.xml", SUMS}
LONGEST_S = 150.0  # a run takes 3 s, and what a fault waits for takes longer than this


@dataclass(frozen=True)
class Ended:
    """How a run ended: exit code, all that it printed, and its folder."""

    code: int
    text: str
    folder: Path

    @property
    def summary(self) -> AcceptanceSummary:
        """What a later look at the folder says."""
        return load_summary(self.folder)

    @property
    def is_whole(self) -> bool:
        """Whether the folder has every file, and verifies."""
        names = {path.name for path in self.folder.iterdir()}
        return names >= WHOLE and not self.summary.integrity.problems

    @property
    def sentences(self) -> str:
        """What was printed, and what the record says of the run."""
        return "\n".join([self.text, *self.summary.reasons])


@dataclass(frozen=True)
class Stage:
    """A folder in which a run is started; `run` is the run folder."""

    place: Path
    run: Path

    def prepare(
        self, fault: str = "pass", teardown: str = "pass", value: str = GOOD, plant: str = ""
    ) -> None:
        """Write both probes: the first one plants `fault`; `plant` is added to the stand-in."""
        stand_in = f"{STAND_IN}{OWES}\n{plant}\n"
        (self.place / "conftest.py").write_text(stand_in)
        (self.place / "stand_in.py").write_text(stand_in)
        (self.place / "command.py").write_text(COMMAND.format(place=str(self.place)))
        (self.place / "agreed.toml").write_text(CONTRACT)
        head = HEAD.format(run=str(self.run), teardown=teardown)
        for name, body in (("broken", fault), ("sound", "pass")):
            steps = [value if name == "broken" else GOOD, CAUGHT, body]
            text = PROBE.format(criterion="GANG", body="\n    ".join(steps))
            (self.place / f"test_{name}.py").write_text(head + text)

    def words(self, program: str) -> list[str]:
        """Return the command line."""
        start = ["-m", "pytest", "-p", "no:cacheprovider"]
        if program == "seatrial":
            start = [str(self.place / "command.py"), "run"]
        options = ["--cluster", "auto", "--run-dir", str(self.run), "--contract", "agreed.toml"]
        return [sys.executable, *start, *options]

    def start(
        self, program: str = "pytest", shell: str = "", **variables: str
    ) -> subprocess.Popen[bytes]:
        """Start the run; `shell` is of a shell, such as `ulimit -n 40; exec "$@"`."""
        kept = {name: text for name, text in os.environ.items() if name != "PYTEST_ADDOPTS"}
        words = self.words(program)
        return subprocess.Popen(
            ["bash", "-c", shell, "sh", *words] if shell else words,
            cwd=self.place,
            env={**kept, "PYTHONPATH": str(REPO), "COLUMNS": "100", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def end(self, program: str = "pytest", shell: str = "", **variables: str) -> Ended:
        """Run to the end."""
        child = self.start(program, shell, **variables)
        try:
            text, _ = child.communicate(timeout=LONGEST_S)
        finally:
            child.kill()
        return Ended(child.returncode, text.decode(errors="replace"), self.run)

    def clear(self) -> None:
        """Remove the run folder, so that the next run can begin."""
        shutil.rmtree(self.run)
