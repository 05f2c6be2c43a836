"""Writes docs/reference/measures.md: every measure, its limit, and what makes it fail.

self_tests.toml has a line for each control.
"""

from __future__ import annotations

import re
from pathlib import Path

from probes.check.declarations import Check, CriterionRow
from probes.check.registry import CRITERIA
from probes.toml_tables import tomllib
from reports.sanitize import one_line
from tests.support.paths import REPO

COLUMNS = ("measure", "if it fails", "unit", "limit", "because", "self-test")
NAMES = {
    "value": "`<value>`",
    "subject": "`<place>`",
    "on": " on `<place>`",
    "work": "(for example) 64 GPUs do the work of 58",
}
PLACE = re.compile(r"\{(\w+)\}")
SELF_TESTS = Path(__file__).with_name("self_tests.toml")
MEASURES_PAGE = REPO / "docs" / "reference" / "measures.md"
HEAD = """# Measures

What each criterion measures, generated from `probes/*/criterion.py`. `seatrial contract check FILE --limits` shows the limits
of your contract. A measure with a limit that is not met makes its criterion FAIL. A measure that was not read leaves it
UNPROVEN.

The column *limit* says where a limit comes from ([how limits are derived](limits.md)):

- *fixed*: it holds on every cluster. No contract may change it.
- *default*: it holds unless the contract gives another.
- *agreed*: the contract gives it. The column *because* names its key in `[cluster]`, or says what holds if the contract has no
  limit.
- *from the run*: it follows from the run's own set-up.

The column *if it fails* is what a report then says. `<value>` is the measured value. `<place>` is its node, link, rank or number
of nodes. The unit *text* means that the value is one of some words. *number* is a value without a unit. *busbw* is the bus
bandwidth of nccl-tests. The [glossary](glossary.md) explains the other words.

The column *self-test* names the faults (controls) that a probe plants on your cluster, and that this measure must find. Below
each table, a line says what each fault is. If a measure has no self-test, the column says why.
"""


def write_measures() -> str:
    """Return the page: a table for each criterion."""
    parts = [HEAD]
    for id, row in CRITERIA.items():
        parts.append(f"## {id}: {row.title}\n")
        parts.append(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
        for name, measure in row.measures.items():
            limit, because = measure.describe_limit()
            control = row.describe_control(name)
            failing = describe_failure(row, measure)
            cells = (f"`{name}`", failing, measure.describe_unit(), limit, because, control)
            parts.append(f"| {' | '.join(cells)} |")
        lines = [f"- *{name}*: {text}" for name, text in read_self_tests().get(id, {}).items()]
        parts += ["", f"Self-tests of {id}:", "", *lines, ""]
    return "\n".join(parts)


def describe_failure(row: CriterionRow, measure: Check) -> str:
    """Return what a report says of a bad value, with names in the places of values."""
    text = row.headlines.get(measure) or measure.failing
    if measure.doubted and not text:
        return "(never a failure)"
    return one_line(PLACE.sub(lambda place: NAMES[place[1]], text))


def read_self_tests() -> dict[str, dict[str, str]]:
    """Read what each control plants, by criterion and control."""
    return tomllib.loads(SELF_TESTS.read_text())
