"""Writes the acceptance table for the terminal and for tickets.

The worst rows come first, at most `width` columns wide. Colours are off by default; glyphs can be
replaced by ASCII. All text from the cluster is sanitized: a host name cannot print a green line.
"""

from __future__ import annotations

import re
import textwrap

from reports.acceptance import AcceptanceSummary, ReportRow
from reports.measurement import Verdict
from reports.orders import again_command, break_command, fill
from reports.record import NOT_RUN, Finding, RunRecord
from reports.redact import redact_text
from reports.sanitize import ascii_only, one_line

STYLES = {  # by verdict: glyph, ASCII sign, ANSI colour
    Verdict.PASS: ("\N{CHECK MARK}", "v", "32"),
    Verdict.MARGINAL: ("\N{WHITE UP-POINTING TRIANGLE}", "~", "33"),
    Verdict.UNPROVEN: ("?", "?", "33;1"),
    Verdict.FAIL: ("\N{BALLOT X}", "x", "31;1"),
}
MAX_PROBLEMS = 4  # sentences shown per criterion; the page shows all


def acceptance_table(
    summary: AcceptanceSummary,
    width: int = 80,
    color: bool = False,
    unicode: bool = True,
    *,
    decision_first: bool = False,
) -> str:
    """Write the complete table: header, one line per criterion, problems, findings, decision.

    The decision is last, where the screen of a run stands still, or first.
    """
    fmt = TextFormatter(width, color, unicode)
    rows = summary.worst_first
    columns = _column_widths(rows, fmt)
    blocks = [
        _header_lines(summary.record, fmt),
        [_row_line(row, fmt, columns) for row in rows],
        [line for row in rows for line in _problem_lines(row, fmt, columns[0])],
        _not_run_lines(summary, fmt),
        *(_finding_lines(one, summary.record, fmt) for one in summary.findings),
    ]
    blocks.insert(0 if decision_first else len(blocks), _decision_lines(summary, fmt))
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


class TextFormatter:
    """Formatter for a width in columns (at least 40), with or without colours and Unicode."""

    def __init__(self, width: int = 80, color: bool = False, unicode: bool = True) -> None:
        self.width = max(width, 40)
        self.color = color
        self.unicode = unicode

    def paint(self, text: str, verdict: Verdict) -> str:
        """Return `text` in the colour of the verdict if colours are on."""
        return f"\x1b[{STYLES[verdict][2]}m{text}\x1b[0m" if self.color else text

    def plain(self, text: object) -> str:
        """Return the text as one sanitized line, in ASCII if Unicode is off."""
        line = one_line(text)
        return line if self.unicode else ascii_only(line)

    def fit(self, text: object, columns: int) -> str:
        """Return `plain` text, cut with three dots or padded to exactly `columns`."""
        line = self.plain(text)
        if len(line) > columns:
            line = line[: max(columns - 3, 0)].rstrip() + "..."[:columns]
        return line.ljust(columns)

    def wrap(self, text: object, first: str, indent: str = "") -> list[str]:
        """Break into lines that start with `first`, later lines with `indent` or spaces."""
        return textwrap.wrap(
            self.plain(text),
            self.width,
            initial_indent=first,
            subsequent_indent=indent or " " * len(first),
            break_on_hyphens=False,
        )

    def command(self, text: object, first: str) -> list[str]:
        """Break a command so that it can still be pasted: with backslashes, not inside quotes."""
        head, *rest = break_command(self.plain(text), max(20, self.width - len(first))) or [""]
        return [first + head, *(" " * len(first) + line for line in rest)]


def _header_lines(record: RunRecord, fmt: TextFormatter) -> list[str]:
    """Write the run, the contract, and whether limits were derived or it is a rehearsal."""
    contract = record.contract
    digest = contract.sha256[:12] or "no hash"
    lines = fmt.wrap(f"{record.id} started {record.started}", "run       ")
    lines += fmt.wrap(f"{contract.name} @ {digest}", "contract  ")
    if not contract.agreed:
        lines += fmt.wrap("none was agreed: the limits were derived from the cluster", " " * 10)
    if record.baseline:
        lines += fmt.wrap(record.baseline_text, "baseline  ")
    if record.rehearsal:
        lines += fmt.wrap(record.rehearsal, "REHEARSAL: ")
    return lines


def _column_widths(rows: list[ReportRow], fmt: TextFormatter) -> tuple[int, int, int]:
    """Divide the width over id, sentence and limit; the sentence is cut before the limit."""
    ids = min(12, max((len(fmt.plain(row.criterion.id)) for row in rows), default=2))
    room = fmt.width - (2 + 2 + 8 + 2 + ids + 2 + 2)
    limit = min(room // 4, max((len(_limit_cell(row, fmt)) for row in rows), default=0))
    return ids, room - limit, limit


def _row_line(row: ReportRow, fmt: TextFormatter, columns: tuple[int, int, int]) -> str:
    """Write one criterion in columns that fit the width."""
    glyph = STYLES[row.verdict][0 if fmt.unicode else 1]
    verdict = fmt.paint(f"{glyph} {row.verdict.value:<8}", row.verdict)
    cells = [row.criterion.id, _sentence_cell(row, columns[1], fmt), _limit_cell(row, fmt)]
    return "  ".join(["", verdict, *map(fmt.fit, cells, columns)]).rstrip()


def _sentence_cell(row: ReportRow, room: int, fmt: TextFormatter) -> str:
    """Write what the run showed, with what it proves where there is room."""
    whole = fmt.plain(row.claim)
    return whole if row.verdict.accepted and len(whole) <= room else fmt.plain(row.sentence)


def _limit_cell(row: ReportRow, fmt: TextFormatter) -> str:
    """Write the limit, or nothing."""
    limit = row.key.limit if row.shows_limit else None
    return fmt.plain(limit) if limit else ""


def _problem_lines(row: ReportRow, fmt: TextFormatter, id_width: int) -> list[str]:
    """Write the lines of a row below the table: its problems if it is not PASS, and its label."""
    problems = []
    if not row.is_only_information:
        ran = [result for result in row.results if result.state != NOT_RUN]
        worst_first = sorted(ran, key=lambda result: -result.verdict.rank)
        not_passed = [result for result in worst_first if result.verdict is not Verdict.PASS]
        problems = [one.sentence for one in row.regressions]
        problems += [line for result in not_passed for line in result.problems(row.criterion)]
        problems = [*dict.fromkeys(problems)]  # a full disk ends many probes
    more = len(problems) - MAX_PROBLEMS
    shown = problems[:MAX_PROBLEMS] + ([f"and {more} more: see report.html"] if more > 0 else [])
    first = f"  {fmt.fit(row.criterion.id, id_width)}  "
    texts = [*shown, row.label] if row.label else shown
    return [line for text in texts for line in fmt.wrap(text, first)]


def _not_run_lines(summary: AcceptanceSummary, fmt: TextFormatter) -> list[str]:
    """Write once which criteria, or how many of their probes, did not run."""
    missing = []
    for row in summary.worst_first:
        id = fmt.plain(row.criterion.id)[:24]
        count = sum(result.state == NOT_RUN for result in row.results)
        if count < len(row.results):
            missing += [f"{count} of {len(row.results)} tests of {id}"] * bool(count)
        elif row.criterion.required or count:
            missing.append(id)
    selected = re.search(r"(?<=\s)-k[ =]?('[^']*'|\S+)", summary.record.command)
    reason = f" ({redact_text(selected[0])})" if selected else ""
    return fmt.wrap(f"{', '.join(missing)}{reason}", "  not run: ") if missing else []


def _finding_lines(finding: Finding, record: RunRecord, fmt: TextFormatter) -> list[str]:
    """Write `FAB-TCP  statement`, then suspects, what to do by which commands, and the test."""
    indent, filled = " " * 7, fill(finding, record.cluster)
    lines = fmt.wrap(finding.statement, f"  {fmt.plain(finding.code)[:24]}  ", indent)
    if finding.suspects:
        lines += fmt.wrap(", ".join(finding.suspects), indent + "suspect: ")
    lines += fmt.wrap(filled.order or finding.remedy, indent + "do: ")
    for step in filled.steps:
        on = f"{fmt.plain(step.on)} " if step.on else ""
        lines += fmt.command(redact_text(step.command), f"{indent}{on}$ ")
    if again := again_command(record, finding):
        lines += fmt.command(again, indent + "again: ")
    return lines


def _decision_lines(summary: AcceptanceSummary, fmt: TextFormatter) -> list[str]:
    """Write the reasons and the clock's steps, then the headline.

    It is the suite's own text, so its spacing stays.
    """
    headline = summary.headline if fmt.unicode else ascii_only(summary.headline)
    sentence = headline.replace("exit ", "exit\xa0")  # keeps both on one line
    lines = textwrap.wrap(sentence, fmt.width - 2, break_long_words=False)
    verdict = summary.shown_verdict
    text = ["  " + fmt.paint(line.replace("\xa0", " "), verdict) for line in lines]
    remarks = [*summary.reasons, *summary.record.clock_steps]
    return [line for remark in remarks for line in fmt.wrap(remark, "  - ")] + text
