"""Host names, log lines and error texts are written by others: nothing of theirs takes effect."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.acceptance import load_summary
from reports.formats.prometheus import prometheus
from reports.page.render import render
from reports.sanitize import ascii_only, clean, csv_cell, label_value, one_line, relative_link
from reports.text import acceptance_table
from tests.recordings.generate.malicious_input import HOSTILE
from tests.support.paths import RECORDINGS

# The same examples each time, and no clock: a busy machine is no bug.
steady = settings(derandomize=True, deadline=None)
RUN = RECORDINGS / "hostile"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")


def test_the_terminal_gets_no_escape_and_no_line_of_theirs() -> None:
    text = acceptance_table(load_summary(RUN), color=False)
    assert not CONTROL.search(text)
    begun = [line.strip() for line in text.splitlines()]
    assert [line for line in begun if line.startswith("ACCEPTED:")] == []
    assert begun[-1].endswith("exit 4")


def test_the_worst_comes_first() -> None:
    summary = load_summary(RUN.parent / "tcp-fallback")
    table = acceptance_table(summary, unicode=False).split("\n\n")[1]
    words = [line.split()[1] for line in table.splitlines()]
    assert words == ["FAIL", "FAIL", "UNPROVEN", "PASS", "PASS", "PASS"]


def test_in_ascii_there_is_only_ascii() -> None:
    assert acceptance_table(load_summary(RUN), unicode=False).isascii()


def test_colours_come_only_from_us() -> None:
    escapes = set(re.findall("\x1b\\[[0-9;]*m", acceptance_table(load_summary(RUN), color=True)))
    assert escapes <= {f"\x1b[{code}m" for code in ("0", "32", "33", "33;1", "31;1")}


def test_lines_fit_the_width() -> None:
    for width in (60, 80, 120):
        text = acceptance_table(load_summary(RUN), width)
        assert max(map(len, text.splitlines())) <= width


def test_markup_is_shown_and_not_run() -> None:
    page = render(load_summary(RUN), RUN)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert page.count("<script>") == 1
    assert "{{ 7*7 }}{% raw %}" in page
    assert not CONTROL.search(page)


def test_links_stay_in_the_run_folder() -> None:
    page = render(load_summary(RUN), RUN)
    links = re.findall(r'href="([^"]*)"', page)
    assert links
    assert all(link.startswith(("#", "./")) for link in links)


def test_no_file_outside_the_run_folder_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret words")
    run = tmp_path / "run"
    (run / "evidence").mkdir(parents=True)
    (run / "evidence/x.log").symlink_to(secret)
    page = render(load_summary(RUN), run)
    assert "the secret words" not in page
    assert "the file is missing" in page


def test_a_series_that_cannot_be_read_costs_only_its_figure() -> None:
    page = render(load_summary(RUN), RUN)
    assert "could not be drawn" in page
    assert "Bandwidth of every pair" not in page or "<svg" in page


def test_prometheus_lines_keep_their_shape() -> None:
    lines = prometheus(load_summary(RUN)).splitlines()
    shape = re.compile(r'seatrial_\w+\{(\w+="([^"\\\n]|\\[\\"n])*",?)*\} -?[0-9.e+]+')
    assert all(line.startswith("# ") or shape.fullmatch(line) for line in lines)
    assert len(lines) == len(set(lines))


@steady
@given(st.text())
def test_clean_is_clean_and_stable(text: str) -> None:
    once = clean(text)
    assert not CONTROL.search(once)
    assert clean(once) == once
    assert "\n" not in one_line(text)
    assert ascii_only(once).isascii()


@steady
@given(st.text())
def test_labels_are_on_one_line(text: str) -> None:
    assert "\n" not in label_value(text)
    assert not re.search(r'(?<!\\)(\\\\)*"', label_value(text))


@pytest.mark.parametrize("lead", ["", "  ", "\t", "rank 3 on "])
@pytest.mark.parametrize(
    "command",
    [
        "::add-mask::x",
        "::set-output name=a::b",
        "::ERROR file=a,line=1::no",
        ":::error::no",
        "::stop-commands::t",
        "::\u200berror::no",
        "##vso[task.setvariable]x",
        "##[error]x",
        "###[error]x",
        "##\x00[error]x",
        "##teamcity[buildProblem]",
    ],
)
def test_no_ci_runner_sees_a_command(lead: str, command: str) -> None:
    """GitHub looks at the beginning of a line after blanks, and any word may come to stand there;
    Azure and TeamCity look anywhere in a line."""
    for shown in (clean(lead + command), one_line(lead + command), *textwrapped(lead + command)):
        assert not re.search(r"##(vso|teamcity)?\[", shown)
        for begin in range(len(shown)):
            assert not re.match(r"::[\w-]+(\s.*)?::", shown[begin:])


def textwrapped(text: str) -> list[str]:
    """The lines of a table at each width, down to one that breaks words."""
    return [line for width in range(8, 30) for line in textwrap.wrap(one_line(text), width)]


@pytest.mark.parametrize(
    "words",
    [
        "probes/gang/test_gang.py::test_gang_waits[4]",
        "tests/test_x.py::TestX::test_error",
        "a::b",
        "listens on ::1 and ::ffff:10.0.0.1",
        "## Title [1]",
        "std::vector<int>",
        "key: : value # #",
    ],
)
def test_what_only_looks_like_a_command_stays(words: str) -> None:
    assert one_line(words) == words


@pytest.mark.parametrize(
    "char",
    [
        *("\U000e0041", "\U000e007f", "\U000e0100", "\u115f", "\u1160", "\u3164"),
        *("\uffa0", "\u2800", "\u034f", "\ufe0f", "\u2065"),
    ],
)
def test_letters_without_ink_are_removed(char: str) -> None:
    assert one_line(f"node{char}1{char}") == "node1"


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("\uff1d1+1", "'\uff1d1+1"),
        ("\uff0b1", "'\uff0b1"),
        ("\uff0d1", "'\uff0d1"),
        ("\uff20SUM(1)", "'\uff20SUM(1)"),
        ("|cmd", "'|cmd"),
        (";=1+1", ";'=1+1"),
        ("node1; @x", "node1; '@x"),
        ("%0A=1+1", "%0A'=1+1"),
        ("%0d%0a-1", "%0d%0a'-1"),
        ("\u3164=1", "'=1"),
        (" =1", "'=1"),
        ("10.0.0.1 - x=y|z", "10.0.0.1 - x=y|z"),
    ],
)
def test_formulas_of_other_locales_and_after_a_split_are_defused(cell: str, shown: str) -> None:
    assert csv_cell(cell) == shown


@steady
@given(st.sampled_from("=+-@\t\r "), st.text())
def test_cells_are_defused(start: str, text: str) -> None:
    assert not csv_cell(start + text).startswith(("=", "+", "-", "@", "\t", "\r"))


@pytest.mark.parametrize("text", HOSTILE)
def test_ordinary_words_stay(text: str) -> None:
    assert clean("ordinary " + text).startswith("ordinary ")


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../x", "a/../../x", "//evil.example/x", "a\\b", "", "a\nb", "\u202ex"],
)
def test_paths_that_lead_elsewhere_get_no_link(path: str) -> None:
    assert relative_link(path) is None


def test_a_path_of_ours_gets_a_link() -> None:
    assert relative_link("evidence/a b#1.txt") == "./evidence/a%20b%231.txt"
    assert relative_link("javascript:alert(1)") == "./javascript%3Aalert%281%29"
