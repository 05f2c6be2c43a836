"""One row more of docs/develop/healthy-runs.md: the whole suite on a sound cluster.

    python -m tests.lab.healthy --kind lab --runs 1

Ends with 1 where a run was not accepted.  Its record and its output stay in `runs/`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import click

from reports.acceptance import load_summary
from reports.run_folder.event_log import UnreadableRun
from tests.support.paths import REPO

TABLE = REPO / "docs" / "develop" / "healthy-runs.md"
SIZES = (3, 4, 5, 6, 7, 8)  # nodes of a lab, in turn
LARGE, LARGE_CONTRACT = 5, "tests/lab/large-lab.toml"  # nodes from which on steps are longer
LOCAL_NODES = 4  # raylets of an embedded cluster: what `make trial` takes
LOAD_EVERY = 3  # every third run shares the host with other work
IDLE_LOAD = 0.5  # an idle host's load average of one minute is lower
CALM_SECONDS = 180  # seconds for the load of the run before to fade from the average
PASSED = ("ACCEPTED", "REHEARSAL PASSED")  # no other, such as "ACCEPTED (PARTIAL)"
RUN_SECONDS = 1800  # a lab of 8 with other work takes 6 minutes: a longer run hangs


@dataclasses.dataclass(frozen=True)
class Plan:
    """One planned run; `busy` is whether a busy process runs at the same time."""

    kind: str
    nodes: int
    busy: bool


def plan_run(kind: str, number: int) -> Plan:
    """Plan run `number`, from 0, of its kind: each size in turn, and busy once in 18 runs."""
    turn, size = divmod(number, len(SIZES))
    busy = (number + turn) % LOAD_EVERY == LOAD_EVERY - 1
    return Plan(kind, SIZES[size] if kind == "lab" else LOCAL_NODES, busy)


def command_of(plan: Plan, folder: Path) -> list[str]:
    """Return the command that a user would give, with a folder for the record."""
    cluster = "auto" if plan.kind == "lab" else f"local:{plan.nodes}"
    contract = LARGE_CONTRACT if plan.nodes >= LARGE else plan.kind
    probes = ["pytest", "probes", "--cluster", cluster, "--contract", contract]
    probes += ["--run-dir", str(folder)]
    if plan.kind == "local":
        return [sys.executable, "-m", *probes]
    lab = ["tests.lab", "--name", "healthy", "run", "--nodes", str(plan.nodes)]
    return [sys.executable, "-m", *lab, "--", *probes]


@contextlib.contextmanager
def other_work(busy: bool) -> Iterator[None]:
    """Keep one process of the host busy, at usual priority, if `busy`."""
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    try:
        yield
    finally:
        if loop:
            loop.kill()
            loop.wait()


def describe_load(busy: bool, average: float) -> str:
    """Describe what else the host is busy with during the run."""
    own = "one busy process" if busy else "none"
    foreign = ", foreign" if average > IDLE_LOAD else ""
    return f"{own}{foreign} ({average:.2f})"


def wait_until_idle() -> float:
    """Wait for the load of the run before to fade; return the host's load average."""
    deadline = time.monotonic() + CALM_SECONDS
    while os.getloadavg()[0] > IDLE_LOAD and time.monotonic() < deadline:
        time.sleep(1)
    return os.getloadavg()[0]


def run_to_end(command: list[str], log: Path) -> int:
    """Run the command and return its exit code; one that hangs is ended, and its lab with it."""
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=REPO, stdout=out, stderr=out)
        try:
            return process.wait(RUN_SECONDS)
        except BaseException as why:
            process.terminate()  # a lab's command takes its lab down
            code = process.wait()
            if not isinstance(why, subprocess.TimeoutExpired):
                raise
            return code


def read_verdict(folder: Path) -> tuple[str, str]:
    """Return the verdict of a run, and the codes of all its findings."""
    try:
        summary = load_summary(folder)
    except (UnreadableRun, OSError):
        return "no record", ""
    return summary.word, ", ".join(sorted({finding.code for finding in summary.findings}))


def current_commit() -> str:
    """Return the commit under test, with a + if tracked files except the table differ from it."""
    git = ["git", "-C", str(REPO)]
    changes = [*git, "status", "--porcelain", "-uno", "--", ".", f":!{TABLE.relative_to(REPO)}"]
    try:
        head, dirty = (
            subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
            for words in ([*git, "rev-parse", "--short", "HEAD"], changes)
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if dirty else "")


def count_rows(kind: str) -> int:
    """Count the runs of this kind in the table."""
    return TABLE.read_text().count(f" | {kind} | ")


def add_row(kind: str) -> bool:
    """Run once and add a row to the table; return whether the cluster was accepted."""
    plan, commit = plan_run(kind, count_rows(kind)), current_commit()
    average, date = wait_until_idle(), datetime.now(timezone.utc)
    folder = REPO / "runs" / f"healthy-{date:%Y%m%dT%H%M%SZ}"
    folder.parent.mkdir(exist_ok=True)
    began = time.monotonic()
    with other_work(plan.busy):
        code = run_to_end(command_of(plan, folder), folder.with_suffix(".log"))
    seconds, (verdict, codes) = time.monotonic() - began, read_verdict(folder)
    if current_commit() != commit:  # sources that change during a run belong to no commit
        commit = f"{commit.removesuffix('+')}+"
    load = describe_load(plan.busy, average)
    cells = [f"{date:%Y-%m-%d %H:%M}", commit, kind, str(plan.nodes), load, verdict, str(code)]
    row = " | ".join([*cells, codes or "none", f"{seconds:.0f}"])
    with TABLE.open("a") as table:
        table.write(f"| {row} |\n")
    click.echo(row)
    return code == 0 and verdict in PASSED


@click.command(help=__doc__)
@click.option("--kind", type=click.Choice(["lab", "local"]), default="lab", show_default=True)
@click.option("--runs", type=click.IntRange(min=1), default=1, show_default=True)
def main(kind: str, runs: int) -> None:
    """Run so often, and end with 1 where a run was not accepted."""
    accepted = [add_row(kind) for _ in range(runs)]
    sys.exit(0 if all(accepted) else 1)


if __name__ == "__main__":
    main()
