"""What GitHub Actions is shown: a summary and annotations that no host name can break."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.acceptance import AcceptanceSummary, load_summary
from reports.formats import github
from reports.formats.github import (
    MAX_ANNOTATIONS,
    MAX_SUMMARY,
    list_annotations,
    report_to_github,
    step_summary,
)
from reports.record import Finding
from reports.sanitize import one_line
from tests.reports.formats.runs import ODD, every_run, measured, result_of, summary_of
from tests.support.paths import RECORDINGS

COMMAND = re.compile(r"::(error|warning|notice) title=([^:,\r\n]*)::([^\r\n]*)")
TAGS = {"h2", "h3", "p", "table", "tr", "th", "td", "b", "br"}
FALLBACK = load_summary(RECORDINGS / "tcp-fallback")
steady = settings(derandomize=True, deadline=None)  # a busy machine is slow


class Reader(HTMLParser):
    """Reads a summary as a browser does: its rows, its text, and the tags that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not attrs
        self.tags.append(tag)
        self.open += [tag] if tag != "br" else []
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if "td" in self.open:
            self.rows[-1][-1] += data


def read(text: str) -> Reader:
    """The summary as GitHub shows it: HTML blocks of Markdown, which hold no Markdown."""
    assert text.startswith("\n\n")
    assert text.endswith("\n\n")
    for line in text.splitlines():
        assert not line or re.match(r"</?(h2|h3|p|table|tr)>", line), line
    found = Reader(text)
    assert set(found.tags) <= TAGS
    assert not found.open
    return found


def parse(line: str) -> tuple[str, str, str]:
    """Kind, title and message of an annotation, as the runner reads it."""
    match = COMMAND.fullmatch(line)
    assert match, line
    kind, title, message = match.groups()
    for code, char in (("%3A", ":"), ("%2C", ","), ("%0A", "\n"), ("%0D", "\r"), ("%25", "%")):
        title = title.replace(code, char)
        message = message.replace(code, char) if char not in ":," else message
    return kind, title, message


def hostile() -> AcceptanceSummary:
    note = Finding(code=ODD, statement=ODD, remedy=ODD, reproduce=ODD)
    result = result_of(measured(ODD, 0.5, ODD, low=1.0), criterion=ODD, findings=[note], probe=ODD)
    contract = {"name": ODD, "criteria": [{"id": ODD, "title": ODD, "how": ODD}]}
    return summary_of(result, id=ODD, cluster={"name": ODD}, contract=contract, partial=ODD)


def many(count: int, text: str = "x") -> AcceptanceSummary:
    """A run with as many criteria that failed, and as many findings."""
    results = [
        result_of(
            measured("busbw", 0.5, text, low=1.0),
            criterion=f"C{number}",
            findings=[Finding(code=f"F{number}", statement=text, remedy=text)],
        )
        for number in range(count)
    ]
    return summary_of(*results)


@every_run
def test_the_summary_has_verdict_criteria_and_findings(run: Path) -> None:
    summary = load_summary(run)
    found = read(step_summary(summary))
    text = " ".join(found.text)
    assert f"seatrial: {summary.word}" in text
    assert f"Exit code {summary.exit_code}." in text
    shown = [(row[0], row[1]) for row in found.rows if row]
    rows = [(row.verdict.value, one_line(row.criterion.id)) for row in summary.worst_first]
    assert shown == rows
    for finding in summary.findings:
        assert one_line(finding.statement) in text
        assert f"Do: {one_line(finding.remedy)}" in text


def test_a_row_has_value_limit_and_reason() -> None:
    (row, *_) = [row for row in read(step_summary(FALLBACK)).rows if row]
    assert row[:4] == ["FAIL", "FABRIC", "busbw 41.2 GB/s", ">= 340 GB/s"]
    assert row[4].startswith("all-reduce runs at 41.2 +/- 4.1 GB/s (n=20)")


@every_run
def test_annotations_are_those_of_the_decision(run: Path) -> None:
    summary = load_summary(run)
    notes = [parse(line) for line in list_annotations(summary)]
    decision = [note for note in notes if note[1].startswith("seatrial: ")]
    assert [note[0] for note in decision] == ["error" if summary.exit_code else "notice"]
    assert summary.word in decision[0][2]
    for row in summary.rows:
        if not row.verdict.accepted and row.can_decide:
            assert ("error", f"{one_line(row.criterion.id)} {row.verdict.value}") in [
                note[:2] for note in notes
            ]
    if summary.exit_code == 0:
        assert "error" not in {note[0] for note in notes}


def test_marginal_and_findings_are_warnings_and_what_is_not_required_is_a_notice() -> None:
    note = Finding(code="FAB-SLOW", statement="It is slow.", remedy="Check the cable.")
    marginal = measured("busbw", 1.1, low=1.0, marginal_low=1.2)
    criteria = [
        {"id": "FABRIC", "title": "t", "how": "h"},
        {"id": "GANG", "title": "t", "how": "h", "required": False},
    ]
    lines = list_annotations(summary_of(result_of(marginal, findings=[note]), criteria=criteria))
    notes = [parse(line) for line in lines]
    assert ("warning", "FAB-SLOW", "It is slow. Do: Check the cable.") in notes
    assert ("warning", "FABRIC MARGINAL") in [note[:2] for note in notes]
    assert ("notice", "GANG UNPROVEN", "no test ran for this criterion") in notes


def test_hostile_names_stay_text() -> None:
    read(step_summary(hostile()))
    for line in [
        *list_annotations(hostile()),
        *list_annotations(load_summary(RECORDINGS / "hostile")),
    ]:
        parse(line)
        assert not re.search(r"##(vso|teamcity)?\[", line)


@steady
@given(st.text(), st.text())
def test_an_annotation_is_one_command_and_loses_nothing(title: str, message: str) -> None:
    line = github._command("error", title, message)
    assert parse(line) == ("error", github._cut(title), github._cut(message))


@steady
@given(st.text())
def test_a_text_is_one_line_of_text(text: str) -> None:
    assert "".join(Reader(github._html(text)).text) == github._cut(text)


@pytest.mark.parametrize("count", [MAX_ANNOTATIONS - 2, MAX_ANNOTATIONS - 1, MAX_ANNOTATIONS, 40])
def test_there_are_no_more_annotations_than_github_shows(count: int) -> None:
    """The decision and FABRIC, for which no probe ran, are errors too."""
    notes = [parse(line) for line in list_annotations(many(count))]
    for kind, total in (("error", count + 2), ("warning", count)):
        mine = [note for note in notes if note[0] == kind]
        assert len(mine) == min(total, MAX_ANNOTATIONS)
        if total > MAX_ANNOTATIONS:
            left = total - MAX_ANNOTATIONS + 1
            assert mine[-1][2] == f"{left} more: see the summary"


@pytest.mark.parametrize("text", ["x" * 10**4, "\N{SNOWMAN}" * 5000, "&" * 5000])
def test_the_summary_has_at_most_a_mebibyte(text: str) -> None:
    for count in (1, 400):
        shown = step_summary(many(count, text))
        assert len(shown.encode()) <= MAX_SUMMARY
        found = read(shown)
        assert any("more are in report.html" in one for one in found.text) == (count == 400)
        assert len(found.rows) > 1


def on_github(path: object) -> dict[str, str]:
    return {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(path)}


def test_it_is_appended_to_what_the_step_wrote(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "summary.md"
    path.write_text("# Build\n\nfine")
    report_to_github(FALLBACK, on_github(path))
    assert path.read_text() == "# Build\n\nfine" + step_summary(FALLBACK)
    printed = capsys.readouterr().out
    assert printed == "\n" + "\n".join(list_annotations(FALLBACK)) + "\n"


@pytest.mark.parametrize("value", [None, "", "false", "1", "TRUE"])
def test_elsewhere_nothing_is_printed_or_written(
    value: str | None, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "summary.md"
    environ = {**on_github(path), "GITHUB_ACTIONS": value} if value is not None else {}
    report_to_github(FALLBACK, {k: v for k, v in environ.items() if v is not None})
    assert not path.exists()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (".", "Is a directory"),
        ("missing/summary.md", "No such file or directory"),
        ("\0", "embedded null byte"),
        ("a\n::error::b/x", "No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_one_sentence(
    name: str, reason: str, tmp_path: Path, capsys: Any
) -> None:
    report_to_github(FALLBACK, on_github(tmp_path / name))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:-1] == list_annotations(FALLBACK)
    assert lines[-1].startswith("step summary in ")
    assert lines[-1].endswith(
        f": not written ({reason}). Expected: GITHUB_STEP_SUMMARY names a writable file"
    )


def test_a_step_without_a_file_is_one_sentence(capsys: Any) -> None:
    report_to_github(FALLBACK, {"GITHUB_ACTIONS": "true"})
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith("step summary in no file: not written (")
    )


@pytest.mark.parametrize(("left", "written"), [(100, False), (20_000, True)])
def test_what_the_step_wrote_counts(left: int, written: bool, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "summary.md"
    path.write_bytes(b"x" * (MAX_SUMMARY - left))
    report_to_github(many(200), on_github(path))
    size = path.stat().st_size
    assert size <= MAX_SUMMARY
    assert (size > MAX_SUMMARY - left) == written
    assert ("no space" in capsys.readouterr().out) != written


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_terminal_can_be_printed_to(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding=encoding))
    report_to_github(summary_of(id="\N{SNOWMAN}"), on_github(tmp_path / "x"))
    report_to_github(many(1, "\N{SNOWMAN}"), on_github(tmp_path / "x"))
    assert raw.getvalue().count(b"::error title=seatrial%3A") == 2
    assert "\N{SNOWMAN}" in (tmp_path / "x").read_text("utf-8")


def test_a_closed_terminal_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr("sys.stdout", stream)
    report_to_github(FALLBACK, on_github(tmp_path / "x"))
    assert (tmp_path / "x").read_text() == step_summary(FALLBACK)
