"""Runs the suite on a lab, as tests and benchmarks start it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reports.acceptance import AcceptanceSummary, load_summary
from reports.record import NOT_RUN, RunRecord
from reports.run_folder.integrity import load
from tests.lab import network
from tests.lab.lab import Lab
from tests.lab.node import SHARED
from tests.lab.shell import LabError, require_machine
from tests.support.paths import REPO
from tests.support.seen import WATCH

# A shell without job control starts `make test &` with Ctrl-C ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
Planted = tuple[str, str] | None  # a plugin of tests/faults/launchers, and which of its faults


@contextmanager
def lab_of(
    nodes: int,
    name: str,
    **size: Any,
) -> Iterator[Lab]:
    """Start a lab and remove it at the end; if there can be none, skip the test with the reason.

    `size` are the other fields of LabSize.
    """
    try:
        require_machine(compiler=size.get("with_nvml", False))
    except LabError as missing:
        pytest.skip(f"NOT RUN: {missing}")  # reported: nothing here is proven without a lab
    lab = Lab(name)
    lab.up(nodes, **size)
    try:
        yield lab
    finally:
        lab.down()


@dataclass
class Trial:
    """One run of the suite in the lab."""

    process: subprocess.Popen[str]
    folder: Path
    log: Path

    def wait(self, seconds: float = 400) -> RunRecord:
        """Wait for the run to end and return its record."""
        self.process.wait(timeout=seconds)
        return self.record

    def wait_until(self, ready: Callable[[], object], seconds: float = 90) -> None:
        """Wait until it is so, while the run goes on."""
        deadline = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < deadline, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)  # between two looks: the shortest probe takes a tenth of a second

    @property
    def record(self) -> RunRecord:
        """Record as it is now, with what ran: a trial of a part owes the complete suite."""
        record = load(self.folder)
        ran = [result for result in record.results if result.state != NOT_RUN]
        record = record.model_copy(update={"results": ran})
        WATCH.look_at_run(record)
        return record

    @property
    def summary(self) -> AcceptanceSummary:
        """Summary of the run, with all that it owes."""
        return load_summary(self.folder)

    def events(self) -> list[dict[str, Any]]:
        """Return the complete lines of the event log so far."""
        path = self.folder / "events.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]


def start(
    lab: Lab,
    name: str,
    *arguments: str,
    contract: str = "lab",
    fault: Planted = None,
    outside: bool = False,
) -> Trial:
    """Start `pytest <arguments> --cluster auto --contract <contract>` on node 0.

    `outside`: on a machine that is no node, through Ray's client.
    """
    node = lab.nodes[0]
    where = f"ray://{network.address('eth0', 0)}:10001" if outside else "auto"
    space = network.namespace(lab.name, network.CLIENT) if outside else ""
    folder = lab.home / "shared" / "runs" / name
    folder.parent.mkdir(exist_ok=True)
    assert not folder.exists(), f"{name} has run in this lab: its record would be taken for this"
    log = folder.parent / f"{name}.log"
    command = [
        *[sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        *["--cluster", where, "--contract", contract, "--run-dir", f"{SHARED}/runs/{name}"],
    ]
    with_gpus = sum(node.gpus > 0 for node in lab.nodes)
    environment = {**node.environment(), "SEATRIAL_NODES": str(with_gpus), "CI": "1"}
    if fault:
        plugin, environment["SEATRIAL_TEST_FAULT"] = fault
        command += ["-p", f"tests.faults.launchers.{plugin}"]
    if tapes := os.environ.get("SEATRIAL_TEST_TAPES"):  # see tests/recordings/tape
        environment["SEATRIAL_TEST_TAPES"] = str(Path(tapes) / name)
        command += ["-p", "tests.recordings.tape.record"]
    with log.open("w") as out:
        process = subprocess.Popen(
            node.command(*command, cwd=str(REPO), space=space),
            env=environment,
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            text=True,
        )
    return Trial(process, folder, log)


def agreed(lab: Lab, other: dict[str, str], more: str = "") -> str:
    """Write a contract for `start` and return its path.

    It is the lab's, with some of its lines replaced, and `more` lines added.
    """
    (lab.home / "shared" / "agreed.toml").write_text(f"{otherwise(other)}\n{more}\n")
    return f"{SHARED}/agreed.toml"


def otherwise(other: dict[str, str]) -> str:
    """Return the lab's contract with some of its lines replaced."""
    text = (REPO / "probes" / "contract" / "contracts" / "lab.toml").read_text()
    for line, instead in other.items():
        assert text.count(line) == 1, line
        text = text.replace(line, instead)
    return text


def driver_pid(lab: Lab) -> int:
    """Return the host number of the pytest process on node 0."""
    for pid in lab.nodes[0].group.pids():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"pytest" in words and b"--cluster" in words and b"nsenter" not in words[0]:
            return pid
    raise AssertionError("no driver runs on node 0")


def acceptance(
    lab: Lab,
    name: str,
    *arguments: str,
    contract: str = "lab",
    fault: Planted = None,
    seconds: float = 400,
    outside: bool = False,
) -> tuple[RunRecord, Trial]:
    """Run the suite to its end and return its record; without a record, fail with its output."""
    trial = start(lab, name, *arguments, contract=contract, fault=fault, outside=outside)
    try:
        return trial.wait(seconds), trial
    except Exception as error:
        with suppress(AssertionError, ProcessLookupError):
            os.kill(driver_pid(lab), signal.SIGKILL)  # the process here only waits for that one
        trial.process.kill()
        raise AssertionError(f"{error}\n{trial.log.read_text()[-3000:]}") from error
