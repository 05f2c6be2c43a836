"""Ways to end a run on an embedded cluster: exit code, record, table and report agree."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from probes.cluster.address import find_embedded
from reports.acceptance import AcceptanceSummary, load_summary
from reports.measurement import Verdict
from tests.support.paths import REPO
from tests.support.processes import runs_program
from tests.support.small_disk import needs_root, small_disk

pytestmark = pytest.mark.soak(criterion="endings")
# A shell without job control starts `make soak &` with Ctrl-C ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
LONGEST_S = 300.0  # a run of the two probes takes a minute
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
        (pid,) = [pid for pid, words in self.family().items() if runs_program(words, name)]
        return pid

    def wait_for(self, text: str) -> None:
        """Wait until the run has printed this text."""
        self.wait_until(lambda: text in self.log.read_text())

    def wait_until(self, happened: Callable[[], bool]) -> None:
        """Wait for something that the run does, for LONGEST_S at most."""
        deadline = time.monotonic() + LONGEST_S
        while not happened():
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


@contextmanager
def begin(
    place: Path, shell: str = 'exec "$@"', raylets: int = 2, **variables: str
) -> Iterator[Run]:
    """Start a run whose folder is `place`/run, by a shell that may change what it meets."""
    log = place / "log"
    command = ["sh", "-c", shell, "sh", sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    command += ["probes/gang/test_gang.py", "-k", "two_gangs"]
    command += ["--cluster", f"local:{raylets}", "--contract", "local"]
    command += ["--run-dir", str(place / "run")]
    own = {"PYTHONPATH": str(REPO), "COLUMNS": "100", "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=REPO,
            env={**os.environ, **own, **variables},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Run(process, place / "run", log)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    """Start the run, on as many raylets as a test asks for."""
    with begin(tmp_path, raylets=getattr(request, "param", 2)) as run:
        yield run


def kill(*names: str) -> Callable[[Run], None]:
    """Make a fault: kill these processes."""

    def fault(run: Run) -> None:
        for name in names:
            os.kill(run.find(name), signal.SIGKILL)

    return fault


def lose_node(run: Run) -> None:
    """Kill the raylet of the node that has neither the head nor the driver: the second one."""
    raylets = [
        pid
        for pid, words in run.family().items()
        if Path(words[0] if words else "").name == "raylet"
    ]
    os.kill(max(raylets), signal.SIGKILL)


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
    pytest.param(PROBE, lose_node, 20, "HOST-NODE-LOST", id="a node dies"),
    pytest.param(PROBE, kill("cleanup.py"), 3, "", id="the process that cleans up dies"),
    pytest.param(PROBE, send(*[signal.SIGINT] * 3), 2, "", id="SIGINT three times"),
    pytest.param(PROBE, send(signal.SIGINT, signal.SIGTERM), 2, "", id="SIGINT, SIGTERM"),
    pytest.param(PROBE, send(signal.SIGHUP), 2, "", id="SIGHUP"),
    pytest.param(START, send(signal.SIGTERM), 2, "", id="SIGTERM while the cluster starts"),
    pytest.param(START, send(signal.SIGINT), 2, "", id="SIGINT while the cluster starts"),
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


@pytest.mark.parametrize("moment", [START, PROBE])
def test_a_driver_that_is_killed_leaves_nothing(run: Run, moment: str) -> None:
    run.wait_for(moment)
    time.sleep(1)  # into what begins at that moment
    events = run.folder / "events.jsonl"
    # Before the first event, no run is there to end.
    run.wait_until(lambda: events.exists() and events.stat().st_size > 0)
    run.process.kill()
    summary = run.end()
    assert (run.process.returncode, summary.exit_code) == (-9, 2)


def proven(summary: AcceptanceSummary) -> bool:
    """Return whether the one probe that was asked for proved its part of GANG."""
    (ran,) = [one for one in summary.record.results_of("GANG") if one.state == "finished"]
    return ran.verdict.accepted


def sound(run: Run) -> None:
    """Assert that a run of one probe proved it."""
    summary, log = run.end(), run.log.read_bytes().decode(errors="replace")
    assert (run.process.returncode, summary.exit_code) == (20, 20), log  # PARTIAL
    assert proven(summary), log
    assert not summary.record.problems


def test_odd_paths_rights_and_terminals_change_nothing(tmp_path: Path) -> None:
    place, home = tmp_path / "a ü'\"b", tmp_path / "home"
    for folder in (place, home):
        folder.mkdir()
    home.chmod(0o500)
    ray = tmp_path / ("r" * (102 - len(str(tmp_path)) - 1))
    terminal = {"LC_ALL": "C", "PYTHONIOENCODING": "latin-1"}
    variables = {"HOME": str(home), "RAY_TMPDIR": str(ray), "TMPDIR": "/proc", **terminal}
    with begin(place, 'umask 000; exec "$@"', **variables) as run:
        sound(run)
    assert run.folder.stat().st_mode & 0o077 == 0
    assert not any(path.stat().st_mode & 0o077 for path in run.folder.rglob("*"))


def test_letters_that_python_cannot_read_are_one_sentence(tmp_path: Path) -> None:
    place = tmp_path / "ü"
    place.mkdir()
    with begin(place, LC_ALL="C", PYTHONUTF8="0") as run:
        run.process.wait(timeout=LONGEST_S)
    log = run.log.read_text()
    assert run.process.returncode == 4
    assert "cannot be joined: the command line has letters that" in log
    assert "Set PYTHONUTF8=1" in log
    assert "Traceback" not in log


def test_a_reader_of_the_output_may_leave(tmp_path: Path) -> None:
    with begin(tmp_path, '"$@" | head -3') as run:
        summary = run.end()
    assert summary.exit_code == 20
    assert proven(summary)
    assert not summary.integrity.problems


@needs_root
def test_a_disk_that_is_full_in_the_middle_is_no_interrupt(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "300m") as small, begin(Path(small)) as run:
        run.wait_for(PROBE)
        with suppress(OSError), (Path(small) / "filler").open("wb") as file:
            while True:
                file.write(bytes(2**16))
                file.flush()
        summary, log = run.end(), run.log.read_text()
        assert (run.process.returncode, summary.exit_code) == (3, 3), log
        assert "No space left on device" in log


RANDOM = Random(20)


@pytest.mark.parametrize("after_s", [round(RANDOM.uniform(0, 45), 1) for _ in range(4)])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_at_any_moment_a_signal_ends_a_run_with_its_record(
    run: Run, number: signal.Signals, after_s: float
) -> None:
    """Live and record agree: interrupted, or ended before the signal came."""
    run.wait_for(START)
    with suppress(subprocess.TimeoutExpired):
        run.process.wait(after_s)
    with suppress(ProcessLookupError):
        run.process.send_signal(number)
    summary = run.end()
    assert run.process.returncode == summary.exit_code, run.log.read_text()
    assert summary.exit_code in (2, 20)
    assert not summary.integrity.problems
    assert (run.folder / "report.html").is_file()


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
        refused = f"the cluster of another run (--cluster local), found {address} "
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
