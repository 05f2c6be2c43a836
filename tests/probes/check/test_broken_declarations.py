"""A suite with a part that is missing or not whole ends with exit 3 and one sentence."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from probes.check.declarations import Check, ControlRow, CriterionRow, none_of
from probes.check.registry import ACCEPTANCE_TABLE, CRITERIA, find_problems
from tests.support.paths import REPO
from tests.support.scratch_suite import edit_file, run_probes, run_python

HOSTS, FABRIC = "probes/hosts/criterion.py", "probes/fabric/criterion.py"


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder / "probes" / "gang")
    edit_file(folder, "probes/plugin.py", '"probes.gang.fixtures", ', "")


# What is broken, and what the sentence says.
BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "a folder that is missing": (
        remove_folder,
        "probes/gang/criterion.py is missing, but GANG is a row of the acceptance table",
    ),
    "a module that cannot be imported": (
        lambda folder: edit_file(folder, FABRIC, "\n# fmt", "\nimport nothing_like_it\n# fmt"),
        "probes/fabric/criterion.py cannot be imported: No module named 'nothing_like_it'",
    ),
    "no criterion": (
        lambda folder: edit_file(folder, FABRIC, "\nCRITERION = ", "\nCRITERION_ = "),
        "probes/fabric/criterion.py: expected CRITERION, a CriterionRow, found None",
    ),
    "two checks of one name": (
        lambda folder: edit_file(folder, HOSTS, '"nvml_errors", "errors"', '"machines", "errors"'),
        "probes/hosts/criterion.py: two checks are named 'machines'",
    ),
    "a probe that is deleted": (
        lambda folder: edit_file(
            folder, "probes/fabric/test_fabric.py", "def test_allreduce_takes", "def test_takes"
        ),
        "test_allreduce_takes_the_fabric_at_line_rate is not defined in test_fabric.py",
    ),
    "an unknown key of a finding": (
        lambda folder: edit_file(
            folder, "probes/gang/findings.toml", "\nmeaning = ", "\nmeaningg = 1\nmeaning = "
        ),
        "unknown key 'meaningg', did you mean 'meaning'?",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_suite_is_refused(scratch: Path, name: str) -> None:
    break_it, sentence = BROKEN[name]
    break_it(scratch)
    done = run_probes(scratch, "--contract", "local")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the suite is incomplete: " in done.stdout
    assert sentence in " ".join(done.stdout.split())
    assert "Traceback" not in done.stdout + done.stderr
    assert not (scratch / "run").exists()


def test_a_command_says_it_too(scratch: Path) -> None:
    edit_file(scratch, FABRIC, 'tier="quick"', 'tier="quikc"')
    done = run_python(scratch, "-m", "probes.cli.main", "plan", "--contract", "local")
    assert done.returncode == 3
    assert "expected a tier of quick, standard, soak, found 'quikc'" in done.stderr
    assert "Traceback" not in done.stderr


def test_collecting_shows_no_part_of_a_broken_suite(scratch: Path) -> None:
    BROKEN["no criterion"][0](scratch)
    assert run_probes(scratch, "--collect-only").returncode == 3


def problems(**changes: object) -> list[str]:
    """Find the problems of FABRIC with some declarations changed."""
    row = dataclasses.replace(CRITERIA["FABRIC"], **changes)  # type: ignore[arg-type]
    return [*find_problems(row, REPO / "probes" / "fabric")]


def test_the_six_rows_are_whole() -> None:
    assert set(ACCEPTANCE_TABLE) <= {*CRITERIA}
    for id, row in CRITERIA.items():
        assert [*find_problems(row, REPO / "probes" / id.lower())] == []


def test_each_hole_in_the_declarations_is_named() -> None:
    row = CRITERIA["FABRIC"]
    new = none_of("new", "things", "nothing of this kind is allowed")
    assert problems(checks=(*row.checks, new)) == [
        "check 'new' has no control, and its no_control is empty",
        "check 'new' is not in any probe",
    ]
    reasoned = Check("new", "s", no_control="it has none", not_owed="it is never owed")
    assert problems(checks=(*row.checks, reasoned)) == []
    assert problems(planted=(*row.planted, ControlRow("empty"))) == [
        "control 'empty' names no check. Expected: those that it must make fail",
        "control 'empty' is not in any probe",
    ]
    other = ControlRow("other", new)
    assert problems(planted=(*row.planted, other)) == [
        "control 'other' names 'new', which is not a check of FABRIC",
        "control 'other' is not in any probe",
    ]
    lost = row.checks[0]
    assert f"a probe lists the check {str(lost)!r}, which is not declared" in problems(
        checks=row.checks[1:]
    )
    (probe,) = row.duties
    assert problems(duties=(probe, probe))[0] == f"two probes are named {probe.test!r}"
    quiet = dataclasses.replace(probe, disturbs=())
    assert problems(duties=(quiet,)) == [f"probe {probe.test!r} does not say what it disturbs"]
    late = dataclasses.replace(probe, tier="later")
    assert problems(duties=(late,)) == [
        f"probe {probe.test!r}: expected a tier of quick, standard, soak, found 'later'"
    ]
    doubled = [
        Check(str(one), one.unit, no_control="none") if one is lost else one for one in row.checks
    ]
    assert problems(checks=tuple(doubled)) == [
        f"check {str(lost)!r} has a control, but also a no_control"
    ]


def test_a_criterion_keeps_what_its_module_declares() -> None:
    row = CRITERIA["RESTART"]
    assert isinstance(row, CriterionRow)
    assert [str(one) for one in row.planted if one.startswith("resume forgets")] == [
        f"resume forgets: {part}" for part in ("rng", "data", "optimizer", "peer", "all")
    ]
    assert all(duty.probe.startswith("restart/test_") for duty in row.duties)
