"""Writes docs/use/field-faults.md: faults that people reported, and what seatrial says today."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal

from pydantic import Field

from probes.toml_tables import ClosedTable, read_tables, validate
from tests.support.paths import REPO

TABLE = Path(__file__).with_name("faults.toml")
FIELD_PAGE = REPO / "docs" / "use" / "field-faults.md"
HEAD = """# Faults that people reported

Each row is a fault from a public thread, planted in a lab of Linux namespaces with a real Ray
cluster. The last columns have what seatrial reports today.

- *named*: the report fails, with the finding and the place.
- *noted*: nothing fails, and the report says on which node it is. Sound clusters may have it.
- *unproven*: seatrial does not accept the cluster, and does not name the cause.
- *missed*: the report says nothing.

"""
ROWS = """
| fault | reported | planted | today | finding, or reason |
|---|---|---|---|---|
"""


class FieldFault(ClosedTable):
    """A report of users; the file says what the keys mean."""

    symptom: str = Field(min_length=10)
    threads: list[str] = Field(min_length=1)
    planted: str = Field(min_length=3)
    now: Literal["named", "noted", "unproven", "missed"]
    codes: list[str] = []
    kept_by: list[str] = []
    why: str = ""


def read_field() -> dict[str, FieldFault]:
    """Read the museum.  Raises TableError."""
    rows = read_tables(TABLE)
    return {name: validate(FieldFault, row, f"{TABLE}: {name}") for name, row in rows.items()}


def write_field() -> str:
    """Return the page."""
    field = read_field()
    counts = Counter(row.now for row in field.values())
    total = ", ".join(f"{counts[now]} {now}" for now in ("named", "noted", "unproven", "missed"))
    text = f"{HEAD}Of {len(field)} reports: {total}.\n{ROWS}"
    for row in field.values():
        threads = ", ".join(f"[{n}]({url})" for n, url in enumerate(row.threads, 1))
        planted = row.planted if row.planted.startswith("by hand") else f"`{row.planted}`"
        says = "; ".join([*(f"`{code}`" for code in row.codes), *filter(None, [row.why])])
        text += f"| {row.symptom} | {threads} | {planted} | {row.now} | {says} |\n"
    return text
