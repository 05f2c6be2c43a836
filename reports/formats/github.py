"""Reports the end of a run to GitHub Actions: a step summary and annotations.

The summary is HTML, which Markdown passes on as it is: a block lasts up to a blank line, and no
text here has one. So escaping for HTML is enough, and no host name is a link or a heading.
"""

from __future__ import annotations

import html
import os
import sys
from collections.abc import Mapping
from contextlib import suppress

from reports.acceptance import AcceptanceSummary, ReportRow
from reports.measurement import Verdict
from reports.orders import again_command
from reports.record import Finding, RunRecord
from reports.sanitize import one_line

MAX_SUMMARY = 1 << 20  # bytes of a step: GitHub shows no summary that has more
MAX_ANNOTATIONS = 10  # of one kind and step: GitHub drops the others without a word
MAX_TEXT = 1000  # characters of one text: a log line can be as long as the whole summary
MAX_REASONS = 20  # against acceptance: with more, the table would not be seen
FRAME = 1000  # bytes for the tags around the rows, and for two lines on what is left out
MORE = "<p>{} more are in report.html of the run folder.</p>"
HEADINGS = "<tr><th>verdict</th><th>criterion</th><th>measured</th><th>limit</th><th>why</th></tr>"


def report_to_github(summary: AcceptanceSummary, environ: Mapping[str, str] = os.environ) -> None:
    """Append the step summary and print the annotations, on GitHub Actions only.

    What cannot be written is one sentence, and never an error: the run has its verdict.
    """
    if environ.get("GITHUB_ACTIONS") != "true":
        return
    path = environ.get("GITHUB_STEP_SUMMARY", "")
    lines = list_annotations(summary)
    try:
        with open(path, "ab") as file:  # to what other commands of the step have written
            file.write(step_summary(summary, MAX_SUMMARY - file.tell()).encode())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        found = f"step summary in {one_line(path) or 'no file'}: not written ({one_line(reason)})"
        lines.append(f"{found}. Expected: GITHUB_STEP_SUMMARY names a writable file")
    # The runner reads commands at the start of a line only, and pytest's last one is not ended.
    text = "\n".join(["", *lines, ""])
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    with suppress(OSError, ValueError):
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()


def step_summary(summary: AcceptanceSummary, room: int = MAX_SUMMARY) -> str:
    """Return verdict, criteria and findings in at most `room` bytes; the last ones are left out.

    Raises ValueError if there is no room for the verdict.
    """
    record, reasons = summary.record, summary.reasons[:MAX_REASONS]
    head = [
        f"<h2>seatrial: {_html(summary.word)}</h2>",
        f"<p>{_html(summary.counts_text)}. Exit code {summary.exit_code}.</p>",
        f"<p>Cluster {_html(record.cluster_name)}, run {_html(record.id)}, contract "
        f"{_html(record.contract.name)}.</p>",
        *(f"<p>{_html(reason)}</p>" for reason in reasons),
        "<table>",
        HEADINGS,
    ]
    room -= len("\n".join(head).encode()) + FRAME
    if room < 0:
        raise ValueError("the summary of this step has no space left")
    rows = _fill([_table_row(row) for row in summary.worst_first], room // 2)
    findings = _fill([_finding(one, summary.record) for one in summary.findings], room // 2)
    parts = [*head, *rows, "</table>", *(["<h3>Findings</h3>", *findings] if findings else [])]
    return "\n".join(["\n", *parts, "\n"])


def _fill(items: list[str], room: int) -> list[str]:
    """Return the first items that fit into `room` bytes, and a line on those that do not."""
    kept: list[str] = []
    for item in items:
        room -= len(item.encode()) + 1
        if room < 0:
            return [*kept, MORE.format(len(items) - len(kept))]
        kept.append(item)
    return kept


def _table_row(row: ReportRow) -> str:
    shown = bool(row.results) and not row.is_only_information
    limit = row.key.limit if shown else None
    measured = f"{row.key.title} {row.key.short_text}" if shown else ""
    why = "; ".join(filter(None, [row.problem, row.label]))
    cells = [row.verdict.value, row.criterion.id, measured, str(limit or ""), why]
    return "<tr>" + "".join(f"<td>{_html(cell)}</td>" for cell in cells) + "</tr>"


def _finding(finding: Finding, record: RunRecord) -> str:
    lines = [finding.statement, f"Do: {finding.remedy}"]
    if again := again_command(record, finding):
        lines.append(f"Again: {again}")
    return f"<p><b>{_html(finding.code)}</b> {'<br>'.join(map(_html, lines))}</p>"


def _html(text: object) -> str:
    return html.escape(_cut(text))


def _cut(text: object) -> str:
    line = one_line(text)
    return line if len(line) <= MAX_TEXT else line[:MAX_TEXT] + "..."


def list_annotations(summary: AcceptanceSummary) -> list[str]:
    """Return the workflow commands of the decision, each criterion that is not PASS, each finding.

    The last annotation of a kind counts those that GitHub would not show.
    """
    kind = "error" if summary.exit_code else "notice"
    notes = [(kind, f"seatrial: {summary.word}", "; ".join([summary.headline, *summary.reasons]))]
    notes += [_row_note(row) for row in summary.worst_first if row.verdict is not Verdict.PASS]
    notes += [
        ("warning", finding.code, f"{finding.statement.rstrip('.')}. Do: {finding.remedy}")
        for finding in summary.findings
    ]
    lines = []
    for kind in ("error", "warning", "notice"):
        mine = [note for note in notes if note[0] == kind]
        if len(mine) > MAX_ANNOTATIONS:
            left = len(mine) - MAX_ANNOTATIONS + 1
            mine[MAX_ANNOTATIONS - 1 :] = [(kind, "seatrial", f"{left} more: see the summary")]
        lines += [_command(*note) for note in mine]
    return lines


def _row_note(row: ReportRow) -> tuple[str, str, str]:
    kind = "warning" if row.verdict.accepted else "error" if row.can_decide else "notice"
    title = f"{row.criterion.id} {row.verdict.value}"
    return kind, title, row.problem or row.label or row.criterion.title


def _command(kind: str, title: str, message: str) -> str:
    """Write a workflow command, escaped as GitHub's toolkit does it."""
    data = [_cut(text).replace("%", "%25") for text in (title, message)]
    data = [text.replace("\r", "%0D").replace("\n", "%0A") for text in data]
    return f"::{kind} title={data[0].replace(':', '%3A').replace(',', '%2C')}::{data[1]}"
