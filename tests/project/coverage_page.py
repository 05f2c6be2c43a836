"""Writes docs/develop/coverage.md: the features that users rely on, and where each is checked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from probes.toml_tables import read_tables
from tests.support.paths import REPO

COVERAGE_PAGE = REPO / "docs" / "develop" / "coverage.md"
DATA = REPO / "tests" / "project" / "coverage.toml"
STATES = {"works": "works", "thin": "is thin", "missing": "is missing"}  # state -> words for one
PLURALS = {"works": "work", "thin": "are thin", "missing": "are missing"}
GROUPS = {"": "What a training job needs", "s": "What else users ask for"}  # prefix of an id
COLUMNS = ("row", "feature", "state", "code", "tests", "not checked")
HEAD = """# What is checked

Users of a cluster rely on these features. Each row says where seatrial checks a feature, and how well.
This page is generated from `tests/project/coverage.toml` (`make docs`).

- *works*: it is checked, and a test fails if the check breaks.
- *thin*: part of it is checked. The last column says what is not.
- *missing*: it is not checked.

"""


@dataclass(frozen=True)
class Feature:
    """One row: a feature, how well it is checked, the files that do it and the tests of them."""

    id: str
    feature: str
    state: str
    code: list[str]
    tests: list[str]
    note: str = field(default="")


def read_features() -> list[Feature]:
    """Read the rows, in the order of the file."""
    rows = read_tables(DATA)
    return [Feature(id=id, **row) for id, row in rows.items()]


def write_coverage() -> str:
    """Return the whole page."""
    features = read_features()
    parts = [HEAD, f"**{summarise_states(features)}**\n"]
    for prefix, title in GROUPS.items():
        rows = [row for row in features if row.id.rstrip("0123456789") == prefix]
        lines = [_format_line(COLUMNS), _format_line(["---"] * len(COLUMNS))]
        lines += [_format_line(_make_cells(row)) for row in rows]
        parts.append(f"\n## {title}\n\n{''.join(lines)}")
    return "".join(parts)


def summarise_states(features: list[Feature]) -> str:
    """Count the states in one sentence: `3 work, 1 is thin, 0 are missing.`"""
    counts = Counter(row.state for row in features)
    words = [
        f"{counts[state]} {one if counts[state] == 1 else PLURALS[state]}"
        for state, one in STATES.items()
    ]
    return f"Of {len(features)} features {', '.join(words)}."


def _make_cells(row: Feature) -> list[str]:
    code, tests = ("<br>".join(f"`{name}`" for name in names) for names in (row.code, row.tests))
    return [row.id, row.feature, row.state, code, tests, row.note]


def _format_line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |\n"
