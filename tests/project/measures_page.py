"""Writes docs/reference/measures.md: every measure, its limit, and what makes it fail."""

from __future__ import annotations

import re

from probes.check.registry import CRITERIA
from reports.sanitize import one_line
from tests.support.paths import REPO

COLUMNS = ("measure", "if it fails", "unit", "limit", "because", "self-test")
PLACE = re.compile(r"\{\w+\}")
MEASURES_PAGE = REPO / "docs" / "reference" / "measures.md"
HEAD = """# Measures

What each criterion measures, generated from `probes/*/criterion.py`. `seatrial contract check FILE --limits` shows the limits
of your contract. A measure with a limit that is not met makes its criterion FAIL. A measure that was not read leaves it
UNPROVEN.

The column *limit* says where a limit comes from ([how limits are derived](limits.md)):

- *fixed*: it holds on every cluster. No contract may change it.
- *default*: it holds unless the contract gives another.
- *agreed*: the contract gives it, or it is derived from the contract's `[cluster]`.
- *from the run*: it follows from the run's own set-up.

The column *if it fails* is what a report then says. The column *self-test* names the fault that a probe plants on your
cluster and that this measure must find: its control. Where there is none, it says why.
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
            failing = one_line(PLACE.sub("X", measure.failing.replace("{on}", " on X")))
            cells = (f"`{name}`", failing, measure.unit or "a word", limit, because, control)
            parts.append(f"| {' | '.join(cells)} |")
        parts.append("")
    return "\n".join(parts)
