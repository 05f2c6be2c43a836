"""Writes the pages that follow from the code: README's table of criteria, pages of docs.

`python -m tests.project.pages` writes them; a test fails where a page is another than this.
"""

from __future__ import annotations

from probes.acceptance.criteria import CRITERIA
from probes.findings.catalogue import GROUPS
from reports.formats.record_schema import SCHEMA_FILE, build_schema
from tests.project.coverage_page import COVERAGE_PAGE, write_coverage
from tests.project.hosts_page import HOSTS_PAGE, write_hosts
from tests.support.paths import REPO

README, FINDINGS = REPO / "README.md", REPO / "docs" / "use" / "findings.md"
HEAD = "| id | criterion | how it is proved |\n|---|---|---|\n"
INTRODUCTION = """# Findings

A finding names what is wrong, where, and what to do. It never changes a verdict.
`seatrial explain CODE` prints the same text. This page is generated from `probes/findings/`.
"""


def write_readme() -> str:
    """Return README with its table of criteria as criteria.py has it."""
    before, head, after = README.read_text().partition(HEAD)
    if not head:
        raise ValueError(f"README.md has no table that begins with {HEAD!r}")
    rest = after[after.index("\n\n") :]
    rows = [f"| {id} | {row.title} | {row.how} |" for id, row in CRITERIA.items()]
    return before + head + "\n".join(rows) + rest


def write_findings() -> str:
    """Return the page of findings, one heading for each code."""
    parts = [INTRODUCTION]
    for title, entries in GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [
            f"### {code}\n\n{entry.meaning} Cause: {entry.cause.value.lower().replace('_', ' ')}."
            f"\n\n**Do:** {entry.remedy}\n"
            for code, entry in entries.items()
        ]
    return "\n".join(parts)


PAGES = {
    README: write_readme,
    FINDINGS: write_findings,
    HOSTS_PAGE: write_hosts,
    COVERAGE_PAGE: write_coverage,
    REPO / "reports" / "formats" / SCHEMA_FILE: build_schema,
}

if __name__ == "__main__":
    for path, write in PAGES.items():
        path.write_text(write())
        print(path.relative_to(REPO))
