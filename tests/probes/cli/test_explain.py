"""`seatrial explain`: a code, all codes, and the findings of a run with their names."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from probes.check.registry import CRITERIA
from probes.cli.main import main
from probes.cli.report import WIDTH
from probes.findings import CATALOGUE
from reports.orders import in_capitals
from tests.support.paths import RECORDINGS


def explain(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["explain", *map(str, words)])


def joined(text: str) -> str:
    """Undo the breaks of lines."""
    return " ".join(text.replace("\\\n", "").split())


@pytest.mark.parametrize("code", CATALOGUE)
def test_a_code_is_explained_in_80_columns(code: str) -> None:
    told = explain(code)
    entry = CATALOGUE[code]
    assert told.exit_code == 0
    assert all(len(line) <= WIDTH for line in told.output.splitlines())
    text = joined(told.output)
    for part in (code, entry.meaning, entry.severity.value, entry.cause.value, entry.remedy):
        assert joined(part) in text
    for step in entry.list_steps():
        assert joined(in_capitals(step.command)) in text
        assert in_capitals(step.means).replace("NODES", "NODE") in text.replace("NODES", "NODE")
        assert f"on {in_capitals(step.on)}:" in text
    assert in_capitals(entry.mended).replace("NODES", "NODE") in text
    assert "made by" in text


def test_a_long_command_can_be_pasted() -> None:
    lines = explain("FAB-WRONG-INTERFACE").output.splitlines()
    first = next(n for n, line in enumerate(lines) if line.strip().startswith("pgrep"))
    command = "\n".join(line.strip() for line in lines[first : first + 2])
    expected = CATALOGUE["FAB-WRONG-INTERFACE"].list_steps()[0].command
    assert shlex.split(command.replace("\\\n", "")) == shlex.split(expected)


def test_all_codes_are_listed_with_their_severity() -> None:
    told = explain()
    assert told.exit_code == 0
    lines = told.output.splitlines()
    assert all(len(line) <= WIDTH for line in lines)
    assert [line.split()[:2] for line in lines if line[0] != " "] == [
        [code, entry.severity.value] for code, entry in CATALOGUE.items()
    ]


def test_a_run_fills_in_its_names() -> None:
    told = explain("FAB-TCP", "--run", RECORDINGS / "tcp-fallback")
    assert told.exit_code == 0
    text = joined(told.output)
    assert "do Make NCCL on atlas07 use RDMA: check its devices" in text
    assert "1. on atlas07: ibv_devinfo" in text
    assert "NCCL_IB_HCA names mlx4" in text
    assert "again seatrial again FABRIC --run runs/" in text
    assert all(len(line) <= WIDTH for line in told.output.splitlines())


def test_a_run_without_the_finding_lists_those_that_it_has() -> None:
    told = explain("GANG-LEAK", "--run", RECORDINGS / "tcp-fallback")
    assert told.exit_code == 4
    assert "no finding GANG-LEAK. The run's findings: FAB-TCP" in told.output
    told = explain("GANG-LEAK", "--run", RECORDINGS / "healthy-atlas")
    assert "no finding GANG-LEAK, and no other finding" in told.output


def test_a_hostile_run_prints_no_control_character() -> None:
    folder = RECORDINGS / "hostile"
    told = explain("FAB-TCP", "--run", folder)
    assert told.exit_code == 4
    assert "\x1b" not in told.output
    assert "\u202e" not in told.output


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    assert explain("FAB-TPC").exit_code == 4
    assert "did you mean FAB-TCP?" in explain("FAB-TPC").output
    assert "expected a CODE with --run" in explain("--run", tmp_path).output
    told = explain("FAB-TCP", "--run", tmp_path)
    assert told.exit_code == 4
    assert told.output.startswith("error: ")


@pytest.mark.parametrize("id", CRITERIA)
def test_a_criterion_is_explained(id: str) -> None:
    told = explain(id.lower())
    row, text = CRITERIA[id], joined(told.output)
    assert told.exit_code == 0
    assert all(len(line) <= WIDTH for line in told.output.splitlines())
    for part in (f"{id}: {row.title}", row.how, *row.needs, *row.measures):
        assert joined(part) in text
    assert text.count("test ") >= len(row.duties)


@pytest.mark.parametrize(
    "name", [f"{id}.{name}" for id, row in CRITERIA.items() for name in row.measures]
)
def test_a_measure_is_explained(name: str) -> None:
    told = explain(name)
    id, _, measure = name.partition(".")
    limit, because = CRITERIA[id].measures[measure].describe_limit()
    assert told.exit_code == 0
    assert all(len(line) <= WIDTH for line in told.output.splitlines())
    for part in (f"{name}: ", f"limit {limit}", f"because {because}", "self-test "):
        assert joined(part) in joined(told.output)
    doubts = CRITERIA[id].only_doubts(CRITERIA[id].measures[measure])
    assert ("the limit is UNPROVEN, not FAIL" in joined(told.output)) is doubts
    assert joined(told.output) in joined(explain(measure).output)


def test_what_is_nothing_is_told_with_what_is_near() -> None:
    assert "did you mean the measure busbw?" in joined(explain("busbv").output)
    assert "did you mean FABRIC?" in joined(explain("FABRIK").output)
    told = explain("elephant")
    assert told.exit_code == 4
    assert "no finding, criterion or measure is named 'elephant'" in joined(told.output)
    assert "no finding, criterion or measure is named 'GANG.busbw'" in joined(
        explain("GANG.busbw").output
    )
