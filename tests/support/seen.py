"""Records which test saw which measure fail and which finding made, for the table of faults.

Hooks of this suite's own runs. They record what probes write, in this process and in the records of
runs on a lab. Faults that controls inject are not counted. For a test without a recorder they
record the findings that the readers of logs, settings and losses make. A test that `seen.toml`
lists must see what the file lists for it. A test that is marked as a near miss must see its
measures judged, and kept. `SEATRIAL_SEEN=write pytest tests/...` rewrites the file for the tests of
that run. Tests that draw their faults at random are left out.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest

from probes.check.recorder import Recorder, Trial, is_red
from probes.check.registry import CRITERIA
from probes.environment.lint import Flag
from probes.findings import CATALOGUE
from probes.toml_tables import read_tables
from reports.measurement import Verdict
from reports.record import Finding, RunRecord
from scaling.loss.causes import LossCause
from tests.support.paths import REPO

FILE = REPO / "tests" / "faults" / "seen.toml"
MOST = 3  # tests of each kind that are kept for a measure or a finding
LIVE = ("tests/faults/", "tests/lab/")
NOT_RUN = "NOT RUN"  # begins the reason of a test that is skipped for want of a lab
READERS = {  # modules whose findings count without a recorder
    Finding: ("probes.nccl.", "probes.cluster."),
    Flag: ("probes.",),
    LossCause: ("scaling.",),
}
RED = "measures seen red"  # property of a test's report
KEPT = (Verdict.PASS, Verdict.MARGINAL)


@dataclass
class Sight:
    """Observations of one test.

    `red` are measures that failed, as FABRIC.busbw, and codes of findings. A measure that never
    fails is red when it reports why nothing is proven. `near` are measures that the test's fault is
    near to, and that were kept.
    """

    red: set[str] = field(default_factory=set)
    near: set[str] = field(default_factory=set)


Sights = dict[str, Sight]  # by test


def read_sights() -> Sights:
    """Read the observations from the file."""
    tables = read_tables(FILE) if FILE.is_file() else {}
    return {
        test: Sight(set(entry.get("red", ())), set(entry.get("near", ())))
        for test, entry in tables.items()
    }


def is_live(test: str) -> bool:
    """Return whether a test injects its fault on a lab."""
    return test.startswith(LIVE)


class Watch:
    """Observations of the running test so far, and of each test that passed."""

    def __init__(self) -> None:
        self.passed: Sights = {}
        self.begin()

    def begin(self) -> None:
        """Start a new test without observations."""
        self.red, self.kept, self.read = set[str](), set[str](), set[str]()
        self.has_recorder = False

    @property
    def seen(self) -> set[str]:
        """Names seen red; findings that were only read count where no recorder was used."""
        return self.red if self.has_recorder else self.red | self.read

    def look_at(self, criterion: str, item: Any) -> None:
        """Record a measurement or a finding."""
        if code := getattr(item, "code", ""):
            self.red.add(code)
        elif getattr(item, "judged", False) and item.name in CRITERIA[criterion].measures:
            seen = self.kept if item.verdict in KEPT else set[str]()
            seen = self.red if is_red(criterion, item) else seen
            seen.add(f"{criterion}.{item.name}")

    def look_at_run(self, record: RunRecord) -> None:
        """Record all measurements and findings of a run on a lab."""
        for result in record.results:
            for item in (*result.measurements, *result.findings):
                self.look_at(result.criterion, item)


WATCH = Watch()
SIGHTS = pytest.StashKey[Sights]()


def pytest_configure(config: pytest.Config) -> None:
    """Listen to all recorders except those of controls."""
    config.addinivalue_line(
        "markers", "near_miss(*measures): near to a fault of these measures, which are kept"
    )
    write_down = Recorder._record

    def listened(self: Recorder, kind: str, item: Any) -> None:
        WATCH.has_recorder = True
        if type(self) is not Trial:
            WATCH.look_at(self.criterion, item)
        write_down(self, kind, item)

    setattr(Recorder, "_record", listened)  # noqa: B010 - mypy knows no other way to a method
    for kind, readers in READERS.items():
        _listen_to(kind, readers)


def _listen_to(kind: Any, readers: tuple[str, ...]) -> None:
    """Record each object of a kind that one of these modules makes, itself or by `finding()`."""
    make = kind.__init__

    def made(self: Any, *arguments: Any, **fields: Any) -> None:
        make(self, *arguments, **fields)
        at = sys._getframe(1)
        while at.f_back and at.f_globals["__name__"] == "probes.findings":
            at = at.f_back
        if self.code in CATALOGUE and at.f_globals["__name__"].startswith(readers):
            WATCH.read.add(self.code)

    kind.__init__ = made


def is_drawn(item: pytest.Item) -> bool:
    """Return whether hypothesis draws the test's faults: what it sees differs between runs."""
    return bool(getattr(getattr(item, "function", None), "is_hypothesis_test", False))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Observe one test; if the file lists it, it must have seen what the file lists."""
    WATCH.begin()
    yield
    near = {name for mark in item.iter_markers("near_miss") for name in mark.args}
    if spoilt := near - WATCH.kept | near & WATCH.red:
        pytest.fail(f"no near miss: {', '.join(sorted(spoilt))} not kept", pytrace=False)
    if is_drawn(item):
        return
    WATCH.passed[item.nodeid] = Sight(WATCH.seen, near)
    # The report reaches the process that prints the summary, which has no WATCH of other processes.
    item.user_properties.append((RED, sorted(name for name in WATCH.seen if "." in name)))
    if os.environ.get("SEATRIAL_SEEN") == "write":
        return
    named = item.config.stash[SIGHTS].get(item.nodeid, Sight())
    if missing := named.red - WATCH.seen | named.near - near:
        pytest.fail(
            f"{FILE.name} says that this test sees {', '.join(sorted(missing))}, which it did not; "
            f"it saw {', '.join(sorted(WATCH.seen)) or 'nothing'}",
            pytrace=False,
        )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Read the file once."""
    session.config.stash[SIGHTS] = read_sights()


def pytest_sessionfinish() -> None:
    """Rewrite the file if SEATRIAL_SEEN asks for it."""
    if os.environ.get("SEATRIAL_SEEN") == "write":
        others = {test: one for test, one in read_sights().items() if test not in WATCH.passed}
        chosen = choose(others | WATCH.passed)
        own = {test: one for test, one in chosen.items() if test in WATCH.passed}
        FILE.write_text(as_toml(others | own))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report the lab tests that did not run, and the measures that were seen red."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = {report.longrepr[2] for report in skipped if NOT_RUN in str(report.longrepr)}
    for reason in sorted(reasons):
        count = sum(reason in str(report.longrepr) for report in skipped)
        text = f"{NOT_RUN}: {count} tests, {reason.partition(NOT_RUN)[2].lstrip(': ')}"
        terminalreporter.write_sep("!", text, red=True, bold=True)
    passed = terminalreporter.stats.get("passed", [])
    red = {name for report in passed for name in dict(report.user_properties).get(RED, ())}
    each = [
        f"{id} {sum(name.startswith(f'{id}.') for name in red)} of {len(row.measures)}"
        for id, row in CRITERIA.items()
    ]
    if red:
        terminalreporter.write_line(f"measures seen red: {', '.join(each)}")


def choose(sights: Sights) -> Sights:
    """Keep tests that saw a measure or a finding and little else, and one test of each pair."""
    seeing: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for test, sight in sights.items():
        kind = "live" if is_live(test) else "fast"
        for name in sight.red:
            seeing[kind, name].append(test)
        for name in sight.near:
            seeing["near", name].append(test)
        for pair in product(
            *([n for n in sight.red if ("." in n) is dot] for dot in (True, False))
        ):
            seeing[pair].append(test)
    kept: Sights = {}
    for (kind, name), tests in seeing.items():
        most = MOST if kind in ("live", "fast", "near") else 1
        first_of = {test.partition("[")[0]: test for test in in_order(tests, name, sights)[::-1]}
        kept |= {test: sights[test] for test in in_order(first_of.values(), name, sights)[:most]}
    return kept


def in_order(tests: Iterable[str], name: str, sights: Sights) -> list[str]:
    """Sort tests of a measure: its own probes' tests first, then by how little else they saw."""
    home = f"tests/probes/{name.partition('.')[0].lower()}/"
    elsewhere = lambda test: not (is_live(test) or test.startswith(home))  # noqa: E731
    return sorted(tests, key=lambda test: (elsewhere(test), len(sights[test].red), test))


def as_toml(sights: Sights) -> str:
    """Format the observations as the file has them."""
    lines = ["# Written by the tests themselves: see tests/support/seen.py.", ""]
    for test, sight in sorted(sights.items()):
        lines.append(f"[{json.dumps(test)}]")
        for key, names in (("red", sight.red), ("near", sight.near)):
            if names:
                lines.append(f"{key} = [{', '.join(json.dumps(name) for name in sorted(names))}]")
        lines.append("")
    return "\n".join(lines)
