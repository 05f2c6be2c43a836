"""Writes the other renderings of a record, and checks those of a run."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from reports.acceptance import AcceptanceSummary
from reports.formats.junit import ctrf, junit
from reports.formats.prometheus import prometheus
from reports.frames.measurements import csv_text
from reports.page.render import render
from reports.run_folder.event_log import SUMS, UnreadableRun, open_regular, write_atomically
from reports.run_folder.store import record_text
from reports.version import same_version

SCHEMA_FILE = "record.schema.json"  # `make docs` writes it from the models


def read_schema() -> str:
    """Read the published schema, which is the same with every version of pydantic."""
    return (resources.files("reports.formats") / SCHEMA_FILE).read_text(encoding="utf-8")


def render_all(
    run: Path | None,
    summary: AcceptanceSummary,
    baseline: AcceptanceSummary | None = None,
    evidence_at: str = ".",
) -> dict[str, str]:
    """Return the text of every rendering, by file name.

    `evidence_at` is the path of the run folder as links on the page reach it.
    """
    return {
        "report.html": render(summary, run, baseline, evidence_at),
        "measurements.csv": csv_text(summary.record.frame()),
        "metrics.prom": prometheus(summary),
        "ctrf.json": json.dumps(ctrf(summary), indent=1) + "\n",
        "junit.xml": junit(summary),
        SCHEMA_FILE: read_schema(),
    }


def write_all(target: Path, texts: dict[str, str]) -> None:
    """Write the renderings into the folder `target`."""
    for name, text in texts.items():
        write_atomically(target / name, text)


def check_renderings(run: Path, summary: AcceptanceSummary) -> tuple[list[str], str]:
    """Find the renderings of a finished run that do not match its events.

    Returns (problems, reason why something was not compared). The reason is "" if all were
    compared. Nothing is compared if another version wrote them, because its wording may differ,
    or if the run was killed. The page of a run with a baseline is not compared either, because
    the baseline run would be needed.
    """
    record = summary.record
    if not (run / SUMS).exists():
        return [], "the run did not finish"
    if not same_version(record.versions):
        return [], "a different version of seatrial or of its libraries wrote the reports"
    texts = {**render_all(run, summary), "record.json": record_text(record)}
    del texts[SCHEMA_FILE]  # does not depend on the run
    if record.baseline:
        del texts["report.html"]
    wrong = [name for name, text in texts.items() if read_content(run / name) != text.encode()]
    other = "report.html (it also shows the baseline run, whose events are elsewhere)"
    problems = [f"{name} does not match events.jsonl" for name in wrong]
    return problems, other if record.baseline else ""


def read_content(path: Path) -> bytes:
    """Return the bytes of a rendering; none if it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read()
    except UnreadableRun:
        return b""
