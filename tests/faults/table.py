"""What turns each judged measure red: docs/develop/faults.md, of criteria, controls, seen.toml.

python -m tests.faults.table
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from probes.check.registry import CRITERIA
from probes.findings import CATALOGUE
from probes.toml_tables import read_tables
from tests.support.paths import REPO
from tests.support.seen import Sights, in_order, is_live, read_sights

PAGE = REPO / "docs" / "develop" / "faults.md"
REASONS = REPO / "tests" / "faults" / "reasons.toml"  # why a cell has no test
MOST = 2  # tests that a cell names
MAX_CASE = 60  # characters of a case's name
COLUMNS = ("measure", "control", "live fault", "near miss", "finding", "other tests")
HEAD = """# What turns each measure red

Written by `python -m tests.faults.table`; do not edit.

- *control*: what each run plants for it on the cluster under test.
- *live fault*: tests that planted a fault on a lab and saw the measure fail.
- *near miss*: tests of what is near to the fault and sound: the measure is judged, and kept.
- *finding*: the code that the page then shows.
- *other tests*: tests without a lab that saw it fail, on recorded or simulated observations.

The tests themselves tell what they see (`tests/support/seen.py`): one that no longer sees it fails.
A cell in brackets says why it has no test.
"""


@dataclass(frozen=True)
class Row:
    """One measure: the cells by column; an empty one has neither a test nor a reason."""

    name: str
    cells: dict[str, list[str]]

    @property
    def empty(self) -> list[str]:
        """Columns without anything."""
        return [column for column, entries in self.cells.items() if not entries]


def read_reasons() -> dict[str, dict[str, str]]:
    """Read why cells have no test: measure or code -> column -> reason."""
    return read_tables(REASONS)


def make_rows(criterion: str, sights: Sights, reasons: dict[str, dict[str, str]]) -> list[Row]:
    """One row for each measure that the criterion judges."""
    rows = []
    for measure in CRITERIA[criterion].measures:
        name = f"{criterion}.{measure}"
        red = _smallest(sights, name)
        controls = [c for c, targets in CRITERIA[criterion].controls.items() if measure in targets]
        cells = {
            "control": [f"{control!r}".replace("'", "") for control in dict.fromkeys(controls)],
            "live fault": _codes(test for test in red if is_live(test)),
            "near miss": _codes(test for test, one in sorted(sights.items()) if name in one.near),
            "finding": _finding_codes(red, sights),
            "other tests": _codes(test for test in red if not is_live(test)),
        }
        why = {"control": CRITERIA[criterion].no_control.get(measure, ""), **reasons.get(name, {})}
        filled = {
            column: entries or ([f"({why[column]})"] if why.get(column) else [])
            for column, entries in cells.items()
        }
        rows.append(Row(measure, filled))
    return rows


def code_rows(sights: Sights, reasons: dict[str, dict[str, str]]) -> list[Row]:
    """One row for each finding of the catalogue."""
    rows = []
    for code in CATALOGUE:
        tests = _smallest(sights, code)
        live = _codes(test for test in tests if is_live(test))
        fast = _codes(test for test in tests if not is_live(test))
        why = reasons.get(code, {}).get("tests", "")
        rows.append(Row(code, {"tests": live + fast or ([f"({why})"] if why else [])}))
    return rows


def _smallest(sights: Sights, name: str) -> list[str]:
    """Tests that saw it, the one first that saw the least beside it."""
    return in_order((test for test, sight in sights.items() if name in sight.red), name, sights)


def _codes(tests: Iterable[str]) -> list[str]:
    """The first tests, each function once, with one of its cases."""
    cases: dict[str, str] = {}
    for test in tests:
        function, _, case = test.partition("[")
        cases.setdefault(function, case.removesuffix("]").replace("|", "/")[:MAX_CASE])
    return [f"`{name}`{f' ({case})' * bool(case)}" for name, case in list(cases.items())[:MOST]]


def _finding_codes(tests: list[str], sights: Sights) -> list[str]:
    """What was found where this measure failed with the least beside it."""
    codes = [{name for name in sights[test].red if name in CATALOGUE} for test in tests]
    found = [each for each in codes if each]
    return [f"`{code}`" for code in sorted(found[0])] if found else []


def write_page() -> str:
    """The whole page."""
    sights, reasons = read_sights(), read_reasons()
    parts = [HEAD]
    for criterion in CRITERIA:
        parts.append(f"## {criterion}\n\n{_line(COLUMNS)}{_line(['---'] * len(COLUMNS))}")
        for row in make_rows(criterion, sights, reasons):
            cells = [f"`{row.name}`", *("<br>".join(entries) for entries in row.cells.values())]
            parts[-1] += _line(cells)
    parts.append(f"## Findings\n\n{_line(['code', 'tests'])}{_line(['---'] * 2)}")
    for row in code_rows(sights, reasons):
        parts[-1] += _line([f"`{row.name}`", "<br>".join(row.cells["tests"])])
    return "\n".join(parts)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(write_page())
