"""`make mutants` tells tests that see a change from tests that do not, and from broken ones."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.__main__ import LEAST_COUNT, read_modules, read_reasons, share_out
from tests.mutants.mutate import mutants
from tests.mutants.run import FIRST_S, FIRST_TESTS, Module, choose_mutants, seen_to_run
from tests.mutants.watch import (
    ALL,
    Watched,
    bodies_by_line,
    names_never_run,
    read_report,
    split_by_file,
    watch_calls,
)
from tests.support.paths import REPO

SCRIPT = """
import json, sys
from pathlib import Path
from tests.mutants import run
from tests.mutants.mutate import mutants

run.REPO, run.COPIED, run.FILES, run.HEAVY = Path(sys.argv[1]), ("package",), (), ("pytest",)
copy = Path(sys.argv[2])
run.copy_checkout(copy)
worker = run.Worker(copy)
harmless = dict.fromkeys(sys.argv[4:], "a reason")
module = run.Module("package/judge.py", [f"package/{sys.argv[3]}"], harmless=harmless)
outcomes = []
try:
    source = (run.REPO / module.path).read_bytes()
    keys = run.list_test_files(module, copy)
    seen = {key: worker.watch_tests([module.path], key) for key in keys}
    found = worker.try_module(module, mutants(source), seen)
    outcomes += [[o.mutant.name, o.verdict] for o in found]
    error = ""
except RuntimeError as failure:
    error = str(failure)
assert (copy / module.path).read_bytes() == source
print(json.dumps([outcomes, error]))
"""
JUDGE = "def passes(value):\n    return value > 3\n"
TESTS = {
    "test_sharp.py": "def test_it():\n    assert (passes(3), passes(4)) == (False, True)\n",
    "test_blunt.py": "def test_it():\n    assert passes(9)\n",
    "test_blind.py": "def test_it():\n    assert passes\n",
    "test_source.py": """import inspect
def test_it():
    assert inspect.getsource(passes) == "def passes(value):\\n    return value > 3\\n"
""",
    "test_starts_pytest.py": """import os, subprocess, sys
def test_it(tmp_path):
    inner = tmp_path / "test_inner.py"
    inner.write_text("from package.judge import passes\\ndef test_it():\\n    assert passes(9)\\n")
    command = [sys.executable, "-m", "pytest", "-q", str(inner)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": os.getcwd()}, check=True)
""",
    "test_broken.py": "def test_it():\n    assert passes(0)\n",
    # Once it failed it fails for ever: it would kill each mutant after the first.
    "test_poisoned.py": """import os
def test_it():
    assert not os.path.exists("failed")
    if not passes(4) or passes(3):
        open("failed", "w").close()
        assert False
""",
}


def try_mutants(folder: Path, test: str, *harmless: str) -> tuple[dict[str, str], str]:
    """Mutate judge.py against one test file: verdict by mutant, and the error."""
    package, copy = folder / "checkout" / "package", folder / "copy"
    package.mkdir(parents=True)
    copy.mkdir()
    (package / "__init__.py").write_text("")
    (package / "judge.py").write_text(JUDGE)
    for name, text in TESTS.items():
        (package / name).write_text(f"from package.judge import passes\n{text}")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder / "checkout"), str(copy), test, *harmless],
        cwd=REPO, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcomes, error = json.loads(done.stdout)
    assert outcomes or error
    return dict(outcomes), error


def test_what_the_tests_see_is_killed(tmp_path: Path) -> None:
    outcomes, error = try_mutants(tmp_path, "test_sharp.py")
    assert (set(outcomes.values()), error) == ({"killed"}, "")


def test_what_no_test_sees_survives(tmp_path: Path) -> None:
    outcomes, error = try_mutants(tmp_path, "test_blunt.py")
    assert error == ""
    assert outcomes["passes: value > 3 -> (value >= 3)"] == "survived"


def test_a_function_that_no_test_runs_is_named(tmp_path: Path) -> None:
    outcomes, error = try_mutants(tmp_path, "test_blind.py")
    expected = "package/judge.py: `live` should be what its tests never run: passes"
    assert (outcomes, error) == ({}, expected)


def test_a_function_that_needs_a_cluster_is_not_mutated(tmp_path: Path) -> None:
    module = Module("package/judge.py", [], live=["passes"])
    (tmp_path / "package").mkdir()
    (tmp_path / module.path).write_text(JUDGE + "LEAST = 3 + 4\n")
    assert {one.function for one in choose_mutants(module, 20, 1, tmp_path)} == {"module"}


def test_tests_that_look_at_the_source_are_tried_without_a_note(tmp_path: Path) -> None:
    outcomes, error = try_mutants(tmp_path, "test_source.py")
    assert (set(outcomes.values()), error) == ({"killed"}, "")


def test_a_test_that_starts_pytest_is_run_itself(tmp_path: Path) -> None:
    """The inner test cannot be run: that would count as a kill."""
    outcomes, error = try_mutants(tmp_path, "test_starts_pytest.py")
    assert error == ""
    assert outcomes["passes: value > 3 -> (value >= 3)"] == "survived"


def test_tests_that_fail_without_a_mutant_kill_nothing(tmp_path: Path) -> None:
    outcomes, error = try_mutants(tmp_path, "test_broken.py")
    assert (outcomes, error) == ({}, "the tests of package/judge.py fail without a mutant")


def test_tests_that_a_mutant_broke_are_told(tmp_path: Path) -> None:
    error = try_mutants(tmp_path, "test_poisoned.py")[1]
    assert error == "the tests of package/judge.py fail after its mutants, without one"


ORPHAN = """
import os, time
from tests.mutants.run import die_with_parent

if not os.fork():
    die_with_parent()
    print(os.getpid(), flush=True)
time.sleep(600)  # longer than the test waits: both end by a signal only
"""


SOURCE = b'''"""A module."""

from __future__ import annotations

LIMIT = 3


class Judge:
    def passes(self, value: int = LIMIT) -> bool:
        """Say so."""
        return value > LIMIT

    def fails(self, value: int) -> bool:
        if value > LIMIT:
            return False
        return True


def late(value: int) -> int: return value + 1
'''


def test_a_watched_module_notes_the_functions_that_are_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, names = tmp_path / "report", dict[str, Any]()
    here = ["tests/x.py::test_one"]
    monkeypatch.setenv("MUTANTS_TEST", here[0])
    exec(compile(watch_calls(SOURCE, "judge.py", report), "judge.py", "exec"), names)
    assert read_report(report) == {}
    judge = names["Judge"]()
    assert judge.passes(4)
    assert judge.passes(5)
    assert not judge.fails(4)
    assert names["late"](1) == 2
    assert judge.passes.__doc__ == "Say so."
    assert read_report(report) == {"judge.py": {9: here, 13: here, 19: here}}
    assert not report.exists()


def test_a_function_is_known_by_its_line_and_its_default_values_are_not_of_its_body() -> None:
    assert bodies_by_line(SOURCE) == {9: range(10, 12), 13: range(14, 17), 19: range(19, 20)}


@pytest.mark.parametrize(("line", "seen"), [(9, False), (13, True), (None, True)])
def test_tests_see_what_they_run_and_what_the_import_runs(line: int | None, seen: bool) -> None:
    assert Watched(("test_x.py",), 1.0, {13: []}).sees(line) is seen
    assert Watched(("test_x.py",), 1.0, {ALL: []}).sees(line)


def test_functions_that_no_test_runs_are_named() -> None:
    tests = [Watched(("test_x.py",), 1.0, {13: []}), Watched(("test_y.py",), 1.0)]
    assert names_never_run(SOURCE, tests) == {"Judge.passes", "late"}
    assert names_never_run(SOURCE, [*tests, Watched(("z.py",), 1.0, {ALL: []})]) == set()


def test_the_quickest_tests_of_a_file_come_first_and_each_is_named_once() -> None:
    """Of a test with many cases, one comes before the second case of another."""
    runs = {13: ["x::slow", "x::many[a]", "x::many[b]", "x::many[a]"], 9: ["x::other"]}
    each = {"x::slow": 3.0, "x::many[a]": 0.2, "x::many[b]": 0.1}
    watched = [
        Watched(("test_x.py",), 4.0, runs, each),
        Watched(("test_y.py",), 1.0, {13: ["y::quick"]}, {"y::quick": 0.1}),
    ]
    chosen = ["x::many[a]", "x::slow", "x::many[b]", "y::quick"]
    assert seen_to_run(watched, 13) == chosen
    each["x::slow"] = FIRST_S
    assert seen_to_run(watched, 13) == ["x::many[a]", "x::many[b]", "y::quick"]
    assert seen_to_run(watched, None) == []
    many = Watched(("test_x.py",), 1.0, {13: [f"x::test_{i}" for i in range(99)]})
    assert len(seen_to_run([many], 13)) == FIRST_TESTS


def test_tests_are_split_by_their_files(tmp_path: Path) -> None:
    for name in ("a/test_one.py", "a/test_two.py", "test_three.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    asked = ["test_three.py::test_a", "test_three.py::test_b", "a/test_two.py::test_c", "a"]
    assert split_by_file(asked, tmp_path) == [
        ("test_three.py::test_a", "test_three.py::test_b"),
        ("a/test_two.py",),
        ("a/test_one.py",),
    ]


def test_nothing_of_a_killed_run_goes_on() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True, cwd=REPO
    ) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 30
    while is_running(child):
        assert time.monotonic() < deadline, "the child goes on"
        time.sleep(0.05)  # between two looks


def is_running(pid: int) -> bool:
    """Return whether a process runs: one that ended may wait to be reaped."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_each_reason_is_of_a_module_that_is_mutated() -> None:
    reasons, modules = read_reasons(), {module.path for module in read_modules()}
    assert reasons
    assert reasons.keys() <= modules
    assert all(why for each in reasons.values() for why in each.values())
    assert all((REPO / path).is_file() for path in modules)


def test_each_reason_is_of_a_mutant_that_there_is() -> None:
    stale = [
        f"{module.path}: {name}"
        for module in read_modules()
        for name in module.harmless.keys()
        - {mutant.name for mutant in mutants((REPO / module.path).read_bytes())}
    ]
    assert stale == []


def test_a_mutant_with_a_reason_is_not_tried(tmp_path: Path) -> None:
    outcomes, error = try_mutants(tmp_path, "test_sharp.py", "passes: value > 3 -> (value >= 3)")
    assert (outcomes.pop("passes: value > 3 -> (value >= 3)"), error) == ("survived", "")
    assert set(outcomes.values()) == {"killed"}


def test_each_module_names_tests_that_are_there() -> None:
    for module in read_modules():
        files = [name.partition("::")[0] for name in module.tests]
        assert all((REPO / name).exists() for name in files), module.path


def test_a_module_gets_the_share_of_its_lines() -> None:
    modules = read_modules()
    shares = share_out(modules, 3070)
    longest = max(modules, key=lambda one: len((REPO / one.path).read_bytes().splitlines()))
    assert shares[longest.path] == max(shares.values()) > LEAST_COUNT == min(shares.values())
    assert sum(shares.values()) >= 3070
