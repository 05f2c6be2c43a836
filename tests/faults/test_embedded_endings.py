"""Ways to end a run on an embedded cluster: exit code, record, table and report agree."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from probes.cluster.address import find_embedded
from reports.acceptance import AcceptanceSummary, load_summary
from reports.measurement import Verdict
from tests.support.paths import REPO

pytestmark = pytest.mark.soak(criterion="endings")
# A shell without job control starts `make soak &` with Ctrl-C ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
LONGEST_S = 300.0  # a run of the two probes takes a minute
PROGRAM_WORDS = 3  # `python -I script`
GONE_S = 60.0  # Ray's processes look for a lost head for a minute


@dataclass
class Run:
    """A run of GANG's first probe on two embedded raylets."""

    process: subprocess.Popen[bytes]
    folder: Path
    log: Path

    def family(self) -> dict[int, list[str]]:
        """Return the words of all processes that this one and its children started, by pid."""
        parents: dict[int, tuple[int, list[str]]] = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                words = (path / "cmdline").read_bytes().decode().split("\0")
            except OSError:  # it has ended
                continue
            parents[int(path.name)] = parent, words
        found: dict[int, list[str]] = {self.process.pid: []}
        while more := {p: w for p, (up, w) in parents.items() if up in found and p not in found}:
            found |= more
        return found

    def find(self, name: str) -> int:
        """Return the pid of the process of ours that runs this program or script."""
        (pid,) = [
            pid
            for pid, words in self.family().items()
            if name in [Path(word).name for word in words[:PROGRAM_WORDS]]
        ]
        return pid

    def wait_for(self, text: str) -> None:
        """Wait until the run has printed this text."""
        deadline = time.monotonic() + LONGEST_S
        while text not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)  # between two looks

    def end(self) -> AcceptanceSummary:
        """Wait for the end and for all that it started; return what the folder says."""
        family = self.family()
        self.process.wait(timeout=LONGEST_S)
        deadline = time.monotonic() + GONE_S
        while left := [words for pid, words in family.items() if Path(f"/proc/{pid}").exists()]:
            assert time.monotonic() < deadline, left
            time.sleep(0.5)  # between two looks
        return load_summary(self.folder)


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    """Start the run, on as many raylets as a test asks for."""
    raylets = getattr(request, "param", 2)
    log = tmp_path / "log"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "probes/gang/test_gang.py"]
    command += ["-k", "two_gangs", "--cluster", f"local:{raylets}", "--contract", "local"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--run-dir", str(tmp_path / "run")],
            cwd=REPO,
            env={**os.environ, "PYTHONPATH": str(REPO), "COLUMNS": "100", "PYTHONUNBUFFERED": "1"},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    yield Run(process, tmp_path / "run", log)
    process.kill()
    process.wait()


def kill(*names: str) -> Callable[[Run], None]:
    """Make a fault: kill these processes."""

    def fault(run: Run) -> None:
        for name in names:
            os.kill(run.find(name), signal.SIGKILL)

    return fault


def send(*signals: signal.Signals, every_s: float = 0.3) -> Callable[[Run], None]:
    """Make a fault: send these signals to the driver."""

    def fault(run: Run) -> None:
        for number in signals:
            run.process.send_signal(number)
            time.sleep(every_s)  # as who sends them does

    return fault


PROBE, START = "GANG ", "test session starts"
FAULTS = [
    pytest.param(PROBE, kill("gcs_server"), 20, "HOST-HEAD", id="the head dies"),
    pytest.param(PROBE, kill("embedded.py"), 20, "HOST-HEAD", id="the whole cluster dies"),
    pytest.param(PROBE, kill("cleanup.py"), 3, "", id="the process that cleans up dies"),
    pytest.param(PROBE, send(*[signal.SIGINT] * 3), 2, "", id="SIGINT three times"),
    pytest.param(PROBE, send(signal.SIGINT, signal.SIGTERM), 2, "", id="SIGINT, SIGTERM"),
    pytest.param(PROBE, send(signal.SIGHUP), 2, "", id="SIGHUP"),
    pytest.param(START, send(signal.SIGTERM), 2, "", id="SIGTERM while the cluster starts"),
]


@pytest.mark.parametrize(("moment", "fault", "code", "finding"), FAULTS)
def test_a_run_ends_with_its_record(
    run: Run, moment: str, fault: Callable[[Run], None], code: int, finding: str
) -> None:
    run.wait_for(moment)
    time.sleep(1)  # into what begins at that moment
    fault(run)
    summary = run.end()
    log = run.log.read_text()
    assert run.process.returncode == code, log
    assert summary.exit_code == code, summary.reasons
    assert not summary.integrity.problems
    assert f"exit {code}" in log
    assert (run.folder / "report.html").is_file()
    assert not finding or summary.findings[0].code == finding


@pytest.mark.parametrize("times", range(3))
@pytest.mark.parametrize("run", [3], indirect=True)
def test_a_second_trial_disturbs_nothing(run: Run, times: int, tmp_path: Path) -> None:
    """By itself it joins no cluster of another run; on purpose it is refused by its claim."""
    run.wait_for(PROBE)
    (address,) = [
        address
        for address, whose in find_embedded().items()
        if f"3 raylets of process {run.process.pid} of " in whose
    ]
    for named in ("", address):
        second = subprocess.run(
            [sys.executable, "-m", "probes.cli.main", "run", "--contract", "local"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPO), "RAY_ADDRESS": named},
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
        )
        said = f"{second.stdout}{second.stderr}"
        assert second.returncode == 4, said
        refused = f"--cluster auto joins no embedded cluster of another run, found {address} "
        assert (f"process {run.process.pid} on " if named else refused) in said
        assert said.count(str(run.process.pid)) == 1
        assert run.process.poll() is None, "it ended too early to be disturbed"
    summary = run.end()
    assert run.process.returncode == summary.exit_code == 20  # a part of the suite
    (result,) = [one for one in summary.record.results if "two_gangs" in one.probe]
    assert result.verdict is Verdict.PASS, run.log.read_text()
    assert not summary.integrity.problems
    assert not [*tmp_path.glob("runs/*")]
    assert not re.search("^held ", run.log.read_text(), re.MULTILINE)  # a fresh cluster is free
