"""The acceptance table for the terminal, and for pasting into a ticket.

Worst first, at most `width` columns, no colour and no glyph unless asked for.  Every word
from the cluster is made harmless first: a host name cannot print a green line.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from reports.acceptance import (
    ReportRow,
    all_findings,
    decision_sentence,
    report_rows,
    summary_sentence,
    worst_first,
)
from reports.record import Finding, RunRecord, Verdict
from reports.redact import redact_text
from reports.sanitize import ascii_only, capitalise, one_line

__all__ = ["acceptance_table", "decision_sentence", "record_lines", "summary_sentence"]

GLYPHS = {
    Verdict.PASS: "\N{CHECK MARK}",
    Verdict.MARGINAL: "\N{WHITE UP-POINTING TRIANGLE}",
    Verdict.UNPROVEN: "?",
    Verdict.FAIL: "\N{BALLOT X}",
}
ASCII_GLYPHS = {
    Verdict.PASS: "v",
    Verdict.MARGINAL: "~",
    Verdict.UNPROVEN: "?",
    Verdict.FAIL: "x",
}
COLOURS = {
    Verdict.PASS: "32",
    Verdict.MARGINAL: "33",
    Verdict.UNPROVEN: "33;1",
    Verdict.FAIL: "31;1",
}
MAX_PROBLEMS = 4  # sentences shown per criterion; the page has them all


def acceptance_table(
    record: RunRecord, width: int = 80, color: bool = False, unicode: bool = True
) -> str:
    """The whole answer: header, one line per criterion, what to do, and the decision."""
    fmt = TextFormatter(width, color, unicode)
    table = worst_first(report_rows(record))
    blocks = [record_lines(record, fmt), _table_lines(table, fmt), _problem_lines(table, fmt)]
    blocks += [_finding_lines(finding, fmt) for finding in all_findings(record)]
    blocks.append(_decision_lines(record, fmt))
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


class TextFormatter:
    """How wide, in which colours and with which glyphs to write."""

    def __init__(self, width: int = 80, color: bool = False, unicode: bool = True) -> None:
        self.width = max(width, 40)
        self.color = color
        self.unicode = unicode

    def glyph(self, verdict: Verdict) -> str:
        """The verdict's sign: a check mark, or `v` where only ASCII can be shown."""
        return (GLYPHS if self.unicode else ASCII_GLYPHS)[verdict]

    def paint(self, text: str, verdict: Verdict) -> str:
        """`text` in the colour of the verdict, when colours are on."""
        return f"\x1b[{COLOURS[verdict]}m{text}\x1b[0m" if self.color else text

    def plain(self, text: object) -> str:
        """One harmless line of text, in the characters that can be shown."""
        line = one_line(text)
        return line if self.unicode else ascii_only(line)

    def fit(self, text: object, columns: int) -> str:
        """`plain`, cut with three dots or padded to exactly `columns`."""
        line = self.plain(text)
        if len(line) > columns:
            line = line[: max(columns - 3, 0)].rstrip() + "..."[:columns]
        return line.ljust(columns)

    def wrap(self, text: object, indent: str, first: str = "") -> list[str]:
        """Lines within the width; the first begins with `first`, the others with `indent`."""
        return textwrap.wrap(
            self.plain(text),
            self.width,
            initial_indent=first or indent,
            subsequent_indent=indent,
            break_on_hyphens=False,
        )

    def command(self, text: object, first: str) -> list[str]:
        """A command in lines that can still be pasted: broken at spaces, with backslashes."""
        chunks = textwrap.wrap(
            self.plain(text),
            max(20, self.width - len(first) - 2),
            break_on_hyphens=False,
            break_long_words=False,
        )
        starts = [first] + [" " * len(first)] * (len(chunks) - 1)
        ends = [" \\"] * (len(chunks) - 1) + [""]
        return [start + chunk + end for start, chunk, end in zip(starts, chunks, ends, strict=True)]


def record_lines(record: RunRecord, fmt: TextFormatter) -> list[str]:
    """Which run, which cluster, which contract; a rehearsal or derived limits are said here."""
    contract = record.contract
    digest = contract.sha256[:12] or "no hash"
    lines = fmt.wrap(f"{record.id} started {record.started}", " " * 10, "run       ")
    lines += fmt.wrap(f"{contract.name} @ {digest}", " " * 10, "contract  ")
    if not contract.agreed:
        lines += fmt.wrap("none was agreed: the limits were derived", " " * 10)
    if record.rehearsal:
        lines += fmt.wrap(record.rehearsal, " " * 11, "REHEARSAL: ")
    return lines


@dataclass(frozen=True)
class ColumnWidths:
    """Widths of the table's columns, for one set of rows."""

    id: int
    title: int
    value: int
    limit: int


def _column_widths(table: list[ReportRow], fmt: TextFormatter) -> ColumnWidths:
    """Values and limits are never cut if it can be helped; the title takes what is left."""
    ids = min(12, max((len(fmt.plain(row.criterion.id)) for row in table), default=2))
    room = fmt.width - (2 + 2 + 8 + 2 + ids + 2 + 2 + 2)
    limit = min(room // 4, max((len(_limit_cell(row, fmt)) for row in table), default=0))
    value = min(room // 3, max((len(_value_cell(row, fmt)) for row in table), default=0))
    title = min(room - limit - value, max(len(fmt.plain(row.criterion.title)) for row in table))
    return ColumnWidths(ids, title, room - limit - title, limit)


def _table_lines(table: list[ReportRow], fmt: TextFormatter) -> list[str]:
    """One line per criterion, in columns that fit the width."""
    columns = _column_widths(table, fmt) if table else ColumnWidths(2, 0, 0, 0)
    return [_row_line(row, fmt, columns) for row in table]


def _row_line(row: ReportRow, fmt: TextFormatter, columns: ColumnWidths) -> str:
    glyph = fmt.paint(f"{fmt.glyph(row.verdict)} {row.verdict.value:<8}", row.verdict)
    value, name = _value_cell(row, fmt), fmt.plain(row.measure_name)
    if name and len(name) + 1 + len(value) <= columns.value:
        value = f"{name} {value}"
    cells = [
        fmt.fit(row.criterion.id, columns.id),
        fmt.fit(capitalise(row.criterion.title), columns.title),
        fmt.fit(value, columns.value),
        fmt.fit(_limit_cell(row, fmt), columns.limit),
    ]
    return "  ".join(["", glyph, *cells]).rstrip()


def _value_cell(row: ReportRow, fmt: TextFormatter) -> str:
    """`41.2 GB/s`, or in words why there is none."""
    if row.results:
        return fmt.plain(row.measured.split(" +/- ")[0].split(" (")[0])
    if row.criterion.not_provable:
        return "not provable here"
    return "no probe ran"


def _limit_cell(row: ReportRow, fmt: TextFormatter) -> str:
    """The bound without its unit, which stands beside the value."""
    return fmt.plain(row.limit).removesuffix(f" {fmt.plain(row.unit)}")


def _problem_lines(table: list[ReportRow], fmt: TextFormatter) -> list[str]:
    """Under the table: the complaints of every row that is not a PASS, and its label."""
    ids = min(12, max((len(fmt.plain(row.criterion.id)) for row in table), default=2))
    lines: list[str] = []
    for row in table:
        first = f"  {fmt.fit(row.criterion.id, ids)}  "
        for text in _row_problems(row):
            lines += fmt.wrap(text, " " * len(first), first)
    return lines


def _row_problems(row: ReportRow) -> list[str]:
    if not row.results:
        problems = [row.problem] if row.criterion.required else []
    else:
        not_passed = [result for result in row.results if result.verdict is not Verdict.PASS]
        not_passed.sort(key=lambda result: -result.verdict.rank)
        problems = [line for result in not_passed for line in result.problems()]
    more = len(problems) - MAX_PROBLEMS
    shown = problems[:MAX_PROBLEMS] + ([f"and {more} more, see the report"] if more > 0 else [])
    return shown + ([row.label] if row.label else [])


def _finding_lines(finding: Finding, fmt: TextFormatter) -> list[str]:
    """`FAB-TCP  statement`, then what to do and how to see it again."""
    indent = " " * 7
    lines = fmt.wrap(finding.statement, indent, f"  {fmt.plain(finding.code)[:24]}  ")
    if finding.suspects:
        lines += fmt.wrap(", ".join(finding.suspects), indent + " " * 9, indent + "suspect: ")
    lines += fmt.wrap(f"{finding.remedy}", indent + " " * 4, indent + "do: ")
    if finding.reproduce:
        lines += fmt.command(redact_text(finding.reproduce), indent + "again: ")
    return lines


def _decision_lines(record: RunRecord, fmt: TextFormatter) -> list[str]:
    """The sentence is counts and words of our own, so its spacing can stay as it is."""
    sentence = decision_sentence(record).replace("exit ", "exit\xa0")  # never apart
    lines = textwrap.wrap(sentence, fmt.width - 2, break_long_words=False)
    verdict = Verdict.UNPROVEN if record.exit_code in (2, 20) else record.decision
    return ["  " + fmt.paint(line.replace("\xa0", " "), verdict) for line in lines]
