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
# What makes a measure UNPROVEN that is never a failure.
UNPROVEN_IF = {
    "agreeing_sources": "byte counters and NCCL's log name different networks, or one of them names none",
    "nodes_killed": "seatrial could not prove that the raylet died",
    "sample_rate": "seatrial took too few samples",
    "faults_injected": "seatrial could not plant the fault",
    "public_entrances": "a public address of a node accepts requests without a token",
}
HEAD = """# Measures

This page lists what each criterion measures. A value outside its limit makes the criterion FAIL. In {unproven} rows the criterion is
only UNPROVEN: the column *if it fails* says so. A measure without a value is UNPROVEN too.

For the limits of your contract, run `seatrial contract check FILE --limits`. For one row of this page: `seatrial explain FABRIC.busbw`.

A *ratio* is shown in percent. In a contract, write a ratio as a number: 10 % is `at_most = 0.10` with `unit = "ratio"`. `at_most = 10` is refused.

The column *limit* says where a limit comes from ([how limits are derived](limits.md)):

- *fixed*: it holds on every cluster. No contract may change it.
- *default*: it holds unless the contract gives another limit.
- *agreed*: the contract gives it. The column *because* then names the key of `[cluster]` that gives the limit ([Limits](limits.md) says what
  holds if the key is missing), or says after `without a limit:` what holds if the contract has no limit. *only noted* means that the
  report shows the value, and that nothing judges it.
- *from the run*: it follows from the run's own set-up. The column *because* says how.

The column *if it fails* has the words of a report for a bad value. `<value>` is the measured value. `<place>` is the node, link or
rank of that value, or a number of nodes. The unit *text* means that the value is one of some words. *number* is a value without a
unit. *1/min* is a number per minute. *reordered* means that NCCL added in a different order, and that all else is equal bit by bit.
*busbw* is the bus bandwidth of nccl-tests. The [glossary](glossary.md) explains the other words.

The column *self-test* names the faults (controls) that a probe plants on your cluster, and that this measure must find. Below
each table, a list says what each fault is. *none* means that no planted fault makes this measure fail. The reason follows.
"""


def write_measures() -> str:
    """Return the page: a table for each criterion."""
    unproven = sum(row.only_doubts(check) for row in CRITERIA.values() for check in row.checks)
    parts = [HEAD.format(unproven=unproven)]
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
    if row.only_doubts(measure):
        return f"UNPROVEN, not FAIL: {UNPROVEN_IF.get(measure, 'the limit is not met')}"
    return one_line(PLACE.sub(lambda place: NAMES[place[1]], text))


def read_self_tests() -> dict[str, dict[str, str]]:
    """Read what each control plants, by criterion and control."""
    return tomllib.loads(SELF_TESTS.read_text())
