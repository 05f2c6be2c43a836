"""Writes docs/use/hosts.md: what HOSTS judges, by which limit, and the faults that turn it red."""

from __future__ import annotations

import re

from probes.check.declarations import Check, Probe
from probes.check.registry import CRITERIA
from tests.faults.table import Row, make_rows, read_reasons
from tests.support.paths import REPO
from tests.support.seen import Sights, is_live, read_sights

HOSTS_PAGE = REPO / "docs" / "use" / "hosts.md"
TEST_ID = re.compile(r"`[^`]*::test_(\w+)`")
HEAD = """# HOSTS: what is judged of each machine

This page is generated from `probes/hosts/criterion.py` and from what the tests see.
{faults} faults turn a measure of HOSTS red in the tests. {live} of them are planted in a lab, on
real Ray nodes. GPUs of a lab are answers of a stand-in for the driver's library.

- *limit*: what a value must meet, and why. An ordered value has its key of `[cluster]`.
- *control*: what each run plants on the cluster under test, to show that the measure can fail.
- *fault*: a test that saw it fail. *near miss*: a test of what is sound and near to the fault.
  `docs/develop/faults.md` has their files.
"""


def hosts_faults(sights: Sights) -> tuple[int, int]:
    """Count the tests that saw a measure of HOSTS fail: all of them, and those in a lab."""
    red = [test for test, sight in sights.items() if any(n.startswith("HOSTS.") for n in sight.red)]
    return len(red), sum(is_live(test) for test in red)


def write_hosts() -> str:
    """Return the page: a table for each probe, a row for each measure."""
    row, sights = CRITERIA["HOSTS"], read_sights()
    cells = {one.name: one for one in make_rows("HOSTS", sights, read_reasons())}
    faults, live = hosts_faults(sights)
    parts = [HEAD.format(faults=faults, live=live)]
    parts += [_probe_table(duty, row.measures, cells) for duty in row.duties]
    return "\n".join(parts)


def _probe_table(duty: Probe, measures: dict[str, Check], rows: dict[str, Row]) -> str:
    name = duty.probe.partition("::test_")[2].replace("_", " ")
    text = f"## {name.capitalize()}\n\n`probes/{duty.probe}`, tier {duty.tier}.\n\n"
    text += (
        "| measure | limit | control | fault | near miss | finding |\n|---|---|---|---|---|---|\n"
    )
    for measure in duty.checks:
        cells = rows[measure].cells
        faults = cells["live fault"] if _has_tests(cells["live fault"]) else cells["other tests"]
        columns = [
            f"`{measure}`",
            limit_text(measures[measure]),
            *(
                "<br>".join(map(_shorten, column))
                for column in (cells["control"], faults, cells["near miss"], cells["finding"])
            ),
        ]
        text += f"| {' | '.join(columns)} |\n"
    return text


def _shorten(cell: str) -> str:
    """Show a test by its sentence; docs/develop/faults.md has its file."""
    return TEST_ID.sub(lambda match: match[1].replace("_", " "), cell)


def _has_tests(cells: list[str]) -> bool:
    return any(cell.startswith("`") for cell in cells)


def limit_text(measure: Check) -> str:
    """Describe a measure's limit and why it holds."""
    limit = measure.fixed or measure.default
    if limit is None:
        return f"from {measure.from_run}" if measure.from_run else "as agreed in the contract"
    agreed = "" if measure.fixed else " A contract may agree on another."
    return f"{limit}: {limit.because}.{agreed}"
