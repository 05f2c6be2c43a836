"""Writes docs/use/hosts.md: what HOSTS judges, by which limit, and what shows that it can fail."""

from __future__ import annotations

from probes.check.declarations import Check, Probe
from probes.check.registry import CRITERIA
from tests.faults.table import Row, make_rows, read_reasons
from tests.support.paths import REPO
from tests.support.seen import Sights, is_live, read_sights

HOSTS_PAGE = REPO / "docs" / "use" / "hosts.md"
HEAD = """# HOSTS: what is judged of each machine

This page is generated from `probes/hosts/criterion.py`. "From [cluster] nodes" means: the limit is the value of that key
in your contract. "If agreed" means: it is judged only if the contract has a limit for it.
`docs/reference/measures.md` says which limits a contract may change.
*Self-test* names the fault that each run plants to prove that the check works. Most of them change what one node reports,
before it is judged. seatrial's own tests turn a measure of HOSTS red by {faults} faults, {live} of them in a lab:
`docs/develop/faults.md` has them.
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
    text += "| measure | limit | self-test | finding |\n|---|---|---|---|\n"
    for measure in duty.checks:
        cells = rows[measure].cells
        columns = [f"`{measure}`", limit_text(measures[measure])]
        columns += ["<br>".join(cells[name]) for name in ("control", "finding")]
        text += f"| {' | '.join(columns)} |\n"
    return text


def limit_text(measure: Check) -> str:
    """Describe a measure's limit and why it holds."""
    limit = measure.fixed or measure.default
    if limit is None:
        return f"from {measure.from_run}" if measure.from_run else "if agreed"
    return f"{limit}: {limit.because}"
