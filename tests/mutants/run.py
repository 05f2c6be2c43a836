"""Runs the tests of one mutant after the other, each in a fork of a process that is warm.

The mutant lies on the disk, in a copy of the checkout, so that what tests start meets it too.
"""

from __future__ import annotations

import ast
import ctypes
import gc
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.mutants.imports import keep_warm, name_of, read_imports
from tests.mutants.mutate import Mutant, mutants
from tests.mutants.watch import (
    ALL,
    EVERY,
    TEST,
    Runs,
    Watched,
    bodies_by_line,
    names_never_run,
    outermost,
    read_report,
    split_by_file,
    watch_calls,
)
from tests.support.paths import REPO

COPIED = (
    *("probes", "reports", "reference_trainer", "scaling", "seatrial"),
    *("tests", "docs", "benchmarks"),
)
FILES = ("conftest.py", "pyproject.toml", "constraints.txt", "README.md", "Makefile")
# What many tests import, and is not ours: a fork of a process that has it starts at once.
HEAVY = (
    *("pytest", "hypothesis", "pydantic", "click", "jinja2", "pandas"),
    *("matplotlib.figure", "matplotlib.backends.backend_svg"),
    *("torch", "torch.distributed.fsdp", "torch.distributed.checkpoint"),
    *("ray", "ray.util.state", "ray.job_submission"),
)
# By row: the names of its probes of which there are recordings.
RECORDED = {
    "probes/fabric": "allreduce", "probes/hosts": "hosts_are", "probes/scaling": "each_node",
    "probes/gang": "gang", "probes/launch": "documented_path",
    "probes/restart": "(killed_run or checkpoint or repeated)",
}  # fmt: skip
SLACK, LEAST_S = 5, 20.0  # times the tests' usual time that a mutant's may take, and at least
FIRST_TESTS, FIRST_S = 30, 4.0  # of those that run a function: if they pass, whole files are tried
EXAMPLES = 20  # of a test by hypothesis, which draws 100 otherwise
TIMES = "times"  # in the copy: the seconds of each test that was watched
CACHE = ".mutants"  # in the copy: the tests that killed the last mutants of a module
PR_SET_PDEATHSIG = 1  # prctl.h
NONE_CHOSEN = 5  # pytest's exit code where -k leaves none of a file's tests
FIRST_TIME = 1_000_000_000  # s since the epoch: the first mutant's file is as old


@dataclass(frozen=True)
class Module:
    """A module to mutate, and the tests that must see it.

    `without` names slow tests that are left out, as pytest's -k does.  `live` names the functions
    that need processes, GPUs or a cluster, so that only live tests run them: they are not mutated.
    `harmless` has the reason for each mutant that may survive: it counts as one, and is not tried
    unless another has the same name.
    """

    path: str
    tests: list[str]
    without: str = ""
    live: list[str] = field(default_factory=list)
    harmless: Mapping[str, str] = field(default_factory=dict)

    @property
    def options(self) -> list[str]:
        """Options for pytest.  Of the recorded probes only those of the module's own row run."""
        row = "/".join(self.path.split("/")[:2])
        chosen = [f"(not test_recorded_probes or {RECORDED[row]})"] if row in RECORDED else []
        chosen += [f"not ({self.without})"] if self.without else []
        return ["-k", " and ".join(chosen)] if chosen else []


@dataclass(frozen=True)
class Outcome:
    """What the tests made of one mutant: killed, survived, or timeout."""

    module: str
    mutant: Mutant
    verdict: str


Key = tuple[tuple[str, ...], tuple[str, ...]]  # pytest's options, and the tests of one file
# How long these tests take, what they run (None: they fail), and how long each takes.
Seen = tuple[float, Runs | None, Mapping[str, float]]


def list_test_files(module: Module, root: Path = REPO) -> list[Key]:
    """List what is watched for a module: its tests, file by file."""
    return [(tuple(module.options), tests) for tests in split_by_file(module.tests, root)]


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends: a mutant may loop for ever."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def choose_mutants(module: Module, count: int, seed: int, root: Path = REPO) -> list[Mutant]:
    """Draw so many mutants of a module, or take all where it has no more; the same for a seed."""
    source = (root / module.path).read_bytes()
    functions = outermost(ast.parse(source))
    live = {
        line
        for name, one in functions
        if name in module.live
        for line in range(one.lineno, (one.end_lineno or 0) + 1)
    }
    found = [mutant for mutant in mutants(source) if mutant.line not in live]
    if len(found) <= count:
        return found
    chosen = random.Random(f"{seed} {module.path}").sample(range(len(found)), count)
    return [found[index] for index in sorted(chosen)]


def copy_checkout(target: Path) -> None:
    """Copy what the tests need."""
    ignore = shutil.ignore_patterns("__pycache__", "runs", ".hypothesis")
    for name in COPIED:
        shutil.copytree(REPO / name, target / name, ignore=None if name == "tests" else ignore)
    for name in FILES:
        shutil.copy(REPO / name, target / name)


def _forget_ours() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in COPIED]:
        del sys.modules[name]


class Worker:
    """Mutates modules in a copy of the checkout, and runs their tests."""

    def __init__(self, copy: Path) -> None:
        self.copy, self.written = copy, 0
        self._sources: dict[str, bytes] = {}  # of modules that note what is run
        # What they ran when they were imported: each file of tests may notice a change of it.
        self._imported: dict[str, dict[int, list[str]]] = {}
        os.chdir(copy)
        # Tests that start Python elsewhere get the mutant too, before an installed seatrial.
        os.environ |= {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        # What pytest made of a test is kept for the next mutant.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.dont_write_bytecode = False
        sys.path[:] = [str(copy), *(path for path in sys.path if path not in ("", str(REPO)))]
        _forget_ours()
        for name in HEAVY:
            with suppress(ImportError):
                __import__(name)
        self.graph = read_imports(copy, COPIED)

    def watch_tests(self, paths: Iterable[str], key: Key) -> Seen:
        """Run the tests of one file while each of these modules notes which functions they run.

        What a process computes once, and keeps, is then run by each file that needs it.
        """
        options, tests = key
        report, arguments = self.copy / "watched", [*options, *tests]
        if not self._sources:
            _forget_ours()
            for path in paths:
                self._sources[path] = source = (self.copy / path).read_bytes()
                self._write(self.copy / path, watch_calls(source, path, report))
        keep_warm(self.graph, "", self._names_of(tests))
        for path, lines in read_report(report).items():
            self._imported.setdefault(path, {}).update({line: [] for line in lines})
        report.touch()
        report.chmod(0o666)  # tests become other users, whatever the umask
        started, times = time.monotonic(), self.copy / TIMES
        passed = self.run_tests(arguments, 600, times) == "survived"
        seconds, runs = time.monotonic() - started, read_report(report)
        if passed:
            found = {
                path: {**self._imported.get(path, {}), **runs.get(path, {})}
                for path in runs.keys() | self._imported.keys()
            }
            return seconds, found, json.loads(times.read_text())
        self._stop_noting()  # they may look at the source
        sound = self.run_tests(arguments, 600) == "survived"
        return seconds, {EVERY: {ALL: []}} if sound else None, {}

    def _stop_noting(self) -> None:
        if self._sources:
            _forget_ours()
        for path, source in self._sources.items():
            self._write(self.copy / path, source)
        self._sources, self._imported = {}, {}

    def try_module(
        self, module: Module, chosen: Sequence[Mutant], seen: Mapping[Key, Seen]
    ) -> Iterator[Outcome]:
        """Yield what comes of each mutant.  RuntimeError where the tests fail without any.

        Only test files that run the changed function are run, the quickest first.  Tests that a
        mutant left broken would kill all after it, and run first.  So at the end those that tried
        the last one run once more.
        """
        self._stop_noting()
        file = self.copy / module.path
        source = file.read_bytes()
        keep_warm(self.graph, name_of(Path(module.path)), self._names_of(module.tests))
        shutil.rmtree(self.copy / CACHE, ignore_errors=True)
        verdict, tests = "", list[str]()
        names = Counter(mutant.name for mutant in mutants(source))
        known = {name for name in module.harmless if names[name] == 1}
        try:
            watched = sorted(_watched(module, seen, self.copy), key=lambda one: one.seconds)
            if (unseen := names_never_run(source, watched)) != {*module.live}:
                missing = ", ".join(sorted(unseen)) or "none"
                raise RuntimeError(
                    f"{module.path}: `live` should be what its tests never run: {missing}"
                )
            for mutant in chosen:
                if mutant.name in known:
                    yield Outcome(module.path, mutant, "survived")
                    continue
                within = [at for at, body in bodies_by_line(source).items() if mutant.line in body]
                self._write(file, mutant.apply(source))
                verdict, tests = self._try(module, watched, within[0] if within else None)
                yield Outcome(module.path, mutant, verdict)
        finally:
            self._write(file, source)
        if verdict != "survived" and self.run_tests(tests, 600) != "survived":
            raise RuntimeError(f"the tests of {module.path} fail after its mutants, without one")

    def _try(
        self, module: Module, watched: Sequence[Watched], line: int | None
    ) -> tuple[str, list[str]]:
        """Run what may notice a change of the function of this line; return the last tests too.

        The first are single tests that were seen to run it, the others whole files.
        """
        mine = [one for one in watched if one.sees(line)]
        limit_s = max(LEAST_S, SLACK * sum(one.seconds for one in mine))
        verdict, tests = "survived", list[str]()
        files = [test for one in mine for test in one.tests]
        for chosen in (seen_to_run(mine, line), files):
            if chosen and verdict == "survived":
                tests = [*module.options, *chosen]
                verdict = self.run_tests(tests, limit_s)
        return verdict, tests

    def _names_of(self, tests: Sequence[str]) -> Iterator[str]:
        """Yield the modules of tests, which are files, folders or single tests of a file.

        The suite's plugin and `conftest` of each folder are imported too.
        """
        yield "probes.plugin"
        for test in tests:
            place = self.copy / test.partition("::")[0]
            for file in place.rglob("*.py") if place.is_dir() else [place]:
                name = file.relative_to(self.copy)
                yield name_of(name)
                yield from (name_of(folder / "conftest.py") for folder in name.parents)

    def _write(self, file: Path, source: bytes) -> None:
        """Write a file that no compiled one is taken for: each has a time of its own."""
        self.written += 1
        file.write_bytes(source)
        os.utime(file, (FIRST_TIME + self.written,) * 2)

    def run_tests(self, tests: Sequence[str], limit_s: float, times: Path | None = None) -> str:
        """Run tests in a fork of this process; write how long each took to `times`."""
        gc.freeze()  # pytest collects thrice, and what is warm (torch, Ray) has a million objects
        pid = os.fork()
        if not pid:
            _run_pytest(tests, times)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if (ended := os.waitpid(pid, os.WNOHANG))[0]:
                passed = os.waitstatus_to_exitcode(ended[1]) in (0, NONE_CHOSEN)
                return "survived" if passed else "killed"
            time.sleep(0.02)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return "timeout"


def _watched(module: Module, seen: Mapping[Key, Seen], root: Path) -> Iterator[Watched]:
    """Yield what was seen of a module's tests.  RuntimeError where they fail without any mutant."""
    for key in list_test_files(module, root):
        seconds, runs, each = seen[key]
        if runs is None:
            raise RuntimeError(f"the tests of {module.path} fail without a mutant")
        yield Watched(key[1], seconds, runs.get(module.path, runs.get(EVERY, {})), each)


def seen_to_run(watched: Sequence[Watched], line: int | None) -> list[str]:
    """List quick tests that were seen to run a function: they notice most changes.

    File by file, because to collect one takes longer than most tests; in a file one case of each
    test comes first, by its time.
    """
    found = dict[str, float]()
    for one in watched:
        cases, mine = Counter[str](), list[tuple[int, float, str]]()
        for test in dict.fromkeys(one.runs.get(line or ALL, ())):
            name = test.partition("[")[0]
            mine.append((cases[name], one.each.get(test, 0.0), test))
            cases[name] += 1
        found |= {test: seconds for _, seconds, test in sorted(mine)}
    chosen, total = list[str](), 0.0
    for test, seconds in found.items():
        if len(chosen) < FIRST_TESTS and total + seconds <= FIRST_S:
            chosen.append(test)
            total += seconds
    return chosen


def _try_few_examples() -> None:
    """Let hypothesis draw fewer examples: a mutant that only a rare one kills needs a test."""
    from hypothesis import settings

    settings.register_profile("mutants", max_examples=EXAMPLES)
    settings.load_profile("mutants")


class NamesTest:
    """Plugin for `pytest.main`: names each test in the environment, for what the test starts.

    It writes the seconds of each test to `times`.
    """

    def __init__(self, times: Path | None = None) -> None:
        self.times = times
        self.seconds = Counter[str]()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Name the test that begins."""
        os.environ[TEST] = nodeid

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add a phase of a test."""
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write the seconds."""
        if self.times:
            self.times.write_text(json.dumps(self.seconds))


def _run_pytest(arguments: Sequence[str], times: Path | None) -> None:
    """Run them and end this process, without a word."""
    die_with_parent()
    os.setsid()
    devnull = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(devnull, descriptor)
    import pytest

    code = 1
    with suppress(BaseException):
        _try_few_examples()
        options = ["-x", "-q", "-m", "not soak", "--no-header"]
        # A test that killed the last mutant often kills the next one: it runs first.
        options += ["--failed-first", "-o", f"cache_dir={CACHE}"]
        # Of what is warm: none of it needs pytest's own asserts.
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        code = int(pytest.main([*options, *arguments], plugins=[NamesTest(times)]))
    os._exit(code)
