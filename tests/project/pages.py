"""Writes the pages that follow from the code: README's table of criteria, pages of docs.

`python -m tests.project.pages` writes them; a test fails where a page is another than this.
"""

from __future__ import annotations

import json

from probes.check.registry import CRITERIA
from probes.findings import NAMED_NODE, Entry, read_groups
from reports.exports import SCHEMA_FILE
from reports.orders import in_capitals
from reports.record import SCHEMA, RunRecord
from tests.faults.field.page import FIELD_PAGE, write_field
from tests.project.commands_page import COMMANDS_PAGE, write_commands
from tests.project.contracts_page import CONTRACTS_PAGE, write_contracts
from tests.project.coverage_page import COVERAGE_PAGE, write_coverage
from tests.project.disturbance_page import DISTURBANCE_PAGE, write_disturbance
from tests.project.hosts_page import HOSTS_PAGE, write_hosts
from tests.project.measures_page import MEASURES_PAGE, write_measures
from tests.support.paths import REPO

README, FINDINGS = REPO / "README.md", REPO / "docs" / "use" / "findings.md"
HEAD = "| id | criterion | how it is proved |\n|---|---|---|\n"
INTRODUCTION = """# Findings

A finding names what is wrong, where, and what to do. It never changes a verdict.
`seatrial explain CODE` prints the same text. With `--run RUN` it has the names of that run.
This page is generated from `findings.toml` of each folder of `probes`.

- **blocks**: no acceptance until the fault is fixed. **degrades**: jobs run, but slower
  or less reliably.
  **notes**: information.
- Run each command on the node that the finding names, as root where needed. Another machine is
  named before the command.
- Words in capitals are names of your case. The report fills in those that it knows.
- No command destroys anything. If a command changes something, the text after it says so.
"""


def write_readme() -> str:
    """Return README with its table of criteria as the criteria declare it."""
    before, head, after = README.read_text().partition(HEAD)
    if not head:
        raise ValueError(f"README.md has no table that begins with {HEAD!r}")
    rest = after[after.index("\n\n") :]
    rows = [f"| {id} | {row.title} | {row.how} |" for id, row in CRITERIA.items()]
    return before + head + "\n".join(rows) + rest


def write_findings() -> str:
    """Return the page of findings, one heading for each code."""
    parts = [INTRODUCTION]
    for group in read_groups().values():
        parts.append(f"## {group.about.heading}\n")
        parts += [write_entry(code, entry) for code, entry in group.entries.items()]
    return "\n".join(parts)


def write_entry(code: str, entry: Entry) -> str:
    """Return the part of one code."""
    cause = entry.cause.value.lower().replace("_", " ")
    lines = [
        f"### {code}\n\n{entry.meaning} Severity: {entry.severity.value}. Cause: {cause}.\n",
        f"**Do:** {entry.order}.\n",
    ]
    for number, step in enumerate(entry.list_steps(), 1):
        where = "" if step.on == NAMED_NODE else f"On {step.on}: "
        lines.append(f"{number}. {where}`{step.command}`: {step.means}")
    lines += [f"\n**Fixed when:** {entry.mended}\n"]
    return in_capitals("\n".join(lines))


def build_schema() -> str:
    """Build the schema of record.json from the fields of the record and their descriptions."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:seatrial:record:{SCHEMA}",
    }
    schema = {**head, **RunRecord.model_json_schema(), "title": "record.json of seatrial"}
    return json.dumps(schema, indent=1) + "\n"


PAGES = {
    README: write_readme,
    FINDINGS: write_findings,
    COMMANDS_PAGE: write_commands,
    CONTRACTS_PAGE: write_contracts,
    MEASURES_PAGE: write_measures,
    HOSTS_PAGE: write_hosts,
    FIELD_PAGE: write_field,
    COVERAGE_PAGE: write_coverage,
    DISTURBANCE_PAGE: write_disturbance,
    REPO / "reports" / "formats" / SCHEMA_FILE: build_schema,
}

if __name__ == "__main__":
    for path, write in PAGES.items():
        path.write_text(write())
        print(path.relative_to(REPO))
