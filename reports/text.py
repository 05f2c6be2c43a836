"""The acceptance table for the terminal, and for pasting into a ticket.

Worst first, at most `width` columns, no colour and no glyph unless asked for.  Every word
from the cluster is made harmless first: a host name cannot print a green line.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from reports.acceptance import Row, decision_sentence, findings, headline, rows, worst_first
from reports.record import Finding, RunRecord, Verdict
from reports.redact import redact_text
from reports.sanitize import ascii_only, one_line, titled

__all__ = ["acceptance_table", "decision_sentence", "headline", "record_lines"]

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
COMPLAINTS = 4  # sentences shown per criterion; the page has them all


def acceptance_table(
    record: RunRecord, width: int = 80, color: bool = False, unicode: bool = True
) -> str:
    """The whole answer: header, one line per criterion, what to do, and the decision."""
    pen = Pen(width, color, unicode)
    table = worst_first(rows(record))
    blocks = [record_lines(record, pen), _table(table, pen), _why(table, pen)]
    blocks += [_finding(finding, pen) for finding in findings(record)]
    blocks.append(_decision(record, pen))
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


class Pen:
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
        words = textwrap.wrap(
            self.plain(text),
            max(20, self.width - len(first) - 2),
            break_on_hyphens=False,
            break_long_words=False,
        )
        starts = [first] + [" " * len(first)] * (len(words) - 1)
        ends = [" \\"] * (len(words) - 1) + [""]
        return [start + part + end for start, part, end in zip(starts, words, ends, strict=True)]


def record_lines(record: RunRecord, pen: Pen) -> list[str]:
    """Which run, which cluster, which contract; a rehearsal or derived limits are said here."""
    contract = record.contract
    hashed = contract.sha256[:12] or "no hash"
    lines = pen.wrap(f"{record.id} started {record.started}", " " * 10, "run       ")
    lines += pen.wrap(f"{contract.name} @ {hashed}", " " * 10, "contract  ")
    if not contract.agreed:
        lines += pen.wrap("none was agreed: the limits were derived", " " * 10)
    if record.rehearsal:
        lines += pen.wrap(record.rehearsal, " " * 11, "REHEARSAL: ")
    return lines


@dataclass(frozen=True)
class Columns:
    """Widths of the table's columns, for one set of rows."""

    id: int
    title: int
    value: int
    limit: int


def _columns(table: list[Row], pen: Pen) -> Columns:
    """Values and limits are never cut if it can be helped; the title takes what is left."""
    ids = min(12, max((len(pen.plain(row.criterion.id)) for row in table), default=2))
    rest = pen.width - (2 + 2 + 8 + 2 + ids + 2 + 2 + 2)
    limit = min(rest // 4, max((len(_limit(row, pen)) for row in table), default=0))
    value = min(rest // 3, max((len(_value(row, pen)) for row in table), default=0))
    title = min(rest - limit - value, max(len(pen.plain(row.criterion.title)) for row in table))
    return Columns(ids, title, rest - limit - title, limit)


def _table(table: list[Row], pen: Pen) -> list[str]:
    """One line per criterion, in columns that fit the width."""
    columns = _columns(table, pen) if table else Columns(2, 0, 0, 0)
    return [_line(row, pen, columns) for row in table]


def _line(row: Row, pen: Pen, columns: Columns) -> str:
    glyph = pen.paint(f"{pen.glyph(row.verdict)} {row.verdict.value:<8}", row.verdict)
    value, name = _value(row, pen), pen.plain(row.what)
    if name and len(name) + 1 + len(value) <= columns.value:
        value = f"{name} {value}"
    cells = [
        pen.fit(row.criterion.id, columns.id),
        pen.fit(titled(row.criterion.title), columns.title),
        pen.fit(value, columns.value),
        pen.fit(_limit(row, pen), columns.limit),
    ]
    return "  ".join(["", glyph, *cells]).rstrip()


def _value(row: Row, pen: Pen) -> str:
    """`41.2 GB/s`, or in words why there is none."""
    if row.results:
        return pen.plain(row.measured.split(" +/- ")[0].split(" (")[0])
    if row.criterion.not_provable:
        return "not provable here"
    return "no probe ran"


def _limit(row: Row, pen: Pen) -> str:
    """The bound without its unit, which stands beside the value."""
    return pen.plain(row.limit).removesuffix(f" {pen.plain(row.unit)}")


def _why(table: list[Row], pen: Pen) -> list[str]:
    """Under the table: the complaints of every row that is not a PASS, and its label."""
    ids = min(12, max((len(pen.plain(row.criterion.id)) for row in table), default=2))
    lines: list[str] = []
    for row in table:
        first = f"  {pen.fit(row.criterion.id, ids)}  "
        for text in _complaints(row):
            lines += pen.wrap(text, " " * len(first), first)
    return lines


def _complaints(row: Row) -> list[str]:
    if not row.results:
        found = [row.complaint] if row.criterion.required else []
    else:
        bad = [result for result in row.results if result.verdict is not Verdict.PASS]
        bad.sort(key=lambda result: -result.verdict.rank)
        found = [line for result in bad for line in result.complaints()]
    more = len(found) - COMPLAINTS
    shown = found[:COMPLAINTS] + ([f"and {more} more, see the report"] if more > 0 else [])
    return shown + ([row.label] if row.label else [])


def _finding(finding: Finding, pen: Pen) -> list[str]:
    """`FAB-TCP  statement`, then what to do and how to see it again."""
    indent = " " * 7
    lines = pen.wrap(finding.statement, indent, f"  {pen.plain(finding.code)[:24]}  ")
    if finding.suspects:
        lines += pen.wrap(", ".join(finding.suspects), indent + " " * 9, indent + "suspect: ")
    lines += pen.wrap(f"{finding.remedy}", indent + " " * 4, indent + "do: ")
    if finding.reproduce:
        lines += pen.command(redact_text(finding.reproduce), indent + "again: ")
    return lines


def _decision(record: RunRecord, pen: Pen) -> list[str]:
    """The sentence is counts and words of our own, so its spacing can stay as it is."""
    sentence = decision_sentence(record).replace("exit ", "exit\xa0")  # never apart
    lines = textwrap.wrap(sentence, pen.width - 2, break_long_words=False)
    verdict = Verdict.UNPROVEN if record.exit_code in (2, 20) else record.decision
    return ["  " + pen.paint(line.replace("\xa0", " "), verdict) for line in lines]
