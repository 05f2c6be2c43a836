"""Progress of a run: lines in a log, one live line on a terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import termios
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, TextIO, cast

import pytest

from probes.session.terminal import (
    LiveProgress,
    ProgressLines,
    can_be_live,
    count_columns,
    cut_columns,
    open_screen,
    write_span,
)

BEGUN = 1764043896.0  # 2025-11-25 04:11:36 UTC


class Clock:
    """A clock that a test sets."""

    now = BEGUN

    def __call__(self) -> float:
        return self.now


def screen(encoding: str = "utf-8") -> Any:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")


def text_of(stream: Any) -> str:
    stream.flush()
    return str(stream.buffer.getvalue().decode(stream.encoding))


@pytest.fixture
def clock() -> Clock:
    return Clock()


def run_probe(progress: ProgressLines, clock: Clock) -> None:
    """A probe with two steps, which fails after 55 s."""
    clock.now = BEGUN + 30
    progress.begin("FABRIC", "test_allreduce_runs", 18)
    clock.now = BEGUN + 31
    progress.step("fabric: all-reduce sweep")
    progress.step("FAIL busbw on 4 nodes: 0.02 GB/s. Expected: >= 0.09 GB/s (75 % of line rate)")
    clock.now = BEGUN + 85
    progress.end("FAIL")


def test_a_log_has_a_line_for_each_step_and_probe(clock: Clock) -> None:
    stream = screen()
    run_probe(ProgressLines(stream, clock=clock, wall=clock), clock)
    assert text_of(stream).splitlines() == [
        "04:12:07 +0:31 [1/18] FABRIC all-reduce sweep",
        "04:12:07 +0:31 [1/18] FABRIC FAIL busbw on 4 nodes: 0.02 GB/s. Expected: >= 0.09",
        "               GB/s (75 % of line rate)",
        "04:13:01 +1:25 [1/18] FABRIC FAIL 55 s allreduce runs",
    ]


def test_a_probe_begins_with_its_usual_time_where_that_is_known(clock: Clock) -> None:
    stream = screen()
    progress = ProgressLines(stream, clock=clock, wall=clock)
    progress.begin("RESTART", "test_killed_run_resumes", 18, usual_s=55)
    progress.begin("GANG", "test_x", 18)
    assert text_of(stream).splitlines() == [
        "04:11:36 +0:00 [1/18] RESTART killed run resumes (usually 55 s)"
    ]


def test_times_count_by_a_clock_that_is_never_set(clock: Clock) -> None:
    stream = screen()
    run_probe(ProgressLines(stream, clock=clock, wall=lambda: 0.0), clock)
    last = text_of(stream).splitlines()[-1]
    assert last == "00:00:00 +1:25 [1/18] FABRIC FAIL 55 s allreduce runs"


@pytest.mark.parametrize(("level", "lines"), [(0, 4), (1, 4), (-1, 1), (-2, 0)])
def test_less_is_printed_with_q(clock: Clock, level: int, lines: int) -> None:
    stream = screen()
    run_probe(ProgressLines(stream, level, clock=clock, wall=clock), clock)
    assert len(text_of(stream).splitlines()) == lines


def test_untrusted_text_stays_in_its_line(clock: Clock) -> None:
    stream = screen("ascii")
    progress = ProgressLines(stream, clock=clock, wall=clock)
    progress.begin("GANG", "test_\x1b[2Jx")
    progress.step("n0\n04:00:00 +0:00 GANG PASS 0 s forged\x1b[31m \N{SNOWMAN}" + "x" * 200)
    progress.end("PASS")
    lines = text_of(stream).splitlines()
    assert all(line.isascii() and line.isprintable() and len(line) <= 80 for line in lines)
    assert sum(line.startswith("04:") for line in lines) == 2
    assert "\\u2603" in lines[0]


def test_a_closed_terminal_does_not_end_the_run(clock: Clock) -> None:
    tried = []

    def write(text: str) -> None:
        tried.append(text)
        raise OSError("the terminal is gone")

    gone: Any = SimpleNamespace(encoding="utf-8", write=write)
    run_probe(ProgressLines(gone, clock=clock, wall=clock), clock)
    assert len(tried) == 1, "it is not tried again"


def test_a_verdict_is_coloured_where_colours_are_shown(clock: Clock) -> None:
    stream = screen()
    run_probe(
        ProgressLines(stream, paint=lambda text, **how: f"<{text} {how}>", clock=clock, wall=clock),
        clock,
    )
    assert "FABRIC <FAIL {'red': True, 'bold': True}> 55 s" in text_of(stream)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (31.9, "0:31"), (3599, "59:59"), (3723, "1:02:03")]
)
def test_a_time_is_written(seconds: float, text: str) -> None:
    assert write_span(seconds) == text


class Terminal:
    """A pseudo terminal of a given width, and what was written to it."""

    def __init__(self, columns: int = 80) -> None:
        self._master, slave = pty.openpty()
        self.stream: TextIO = os.fdopen(slave, "w", encoding="utf-8")
        os.set_blocking(self._master, False)
        self.resize(columns)

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def read(self) -> str:
        """What was written since the last reading."""
        found = b""
        with suppress(BlockingIOError):
            while True:
                found += os.read(self._master, 1 << 16)
        return found.decode().replace("\r\n", "\n")

    def close(self) -> None:
        self.stream.close()
        os.close(self._master)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


@pytest.fixture
def live(terminal: Terminal, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`live(usual_s=...)`: progress on the terminal, without a ticker of its own."""
    monkeypatch.setattr("probes.session.terminal.TICK_S", 60)
    begun: list[LiveProgress] = []

    def start(**options: Any) -> LiveProgress:
        begun.append(LiveProgress(terminal.stream, clock=clock, wall=clock, **options))
        return begun[-1]

    yield start
    for progress in begun:
        progress.close()


def test_a_terminal_has_one_live_line_and_the_probes_above_it(
    terminal: Terminal, live: Any, clock: Clock
) -> None:
    run_probe(live(usual_s=238), clock)
    shown = terminal.read()
    *drawn, last = shown.split("\r")
    assert drawn[1] == "+0:30 of about 3:58 [1/18] FABRIC 0:00 begins allreduce runs"
    assert "+0:31 of about 3:58 [1/18] FABRIC 0:01 all-reduce sweep allreduce runs" in drawn
    assert last == "04:13:01 +1:25 [1/18] FABRIC FAIL 55 s allreduce runs\n"
    assert "\n" not in "".join(drawn)
    assert "\x1b" not in shown
    assert drawn[-1].isspace(), "the live line was removed before the probe's own line"


def test_the_live_line_shows_the_usual_time_of_the_probe(terminal: Terminal, live: Any) -> None:
    progress = live()
    progress.begin("RESTART", "test_killed_run_resumes", 18, usual_s=55)
    assert "[1/18] RESTART 0:00 of 0:55 begins killed run resumes" in terminal.read()


def test_the_live_line_ticks(terminal: Terminal, clock: Clock, monkeypatch: Any) -> None:
    monkeypatch.setattr("probes.session.terminal.TICK_S", 0.01)
    progress = LiveProgress(terminal.stream, clock=clock, wall=clock)
    progress.begin("GANG", "test_x")
    clock.now += 7
    seen = ""
    for _ in range(500):
        seen += terminal.read()
        if "GANG 0:07 begins" in seen:
            break
        progress._ended.wait(0.01)
    progress.close()
    assert "GANG 0:07 begins" in seen
    terminal.read()
    progress.step("nothing runs")
    assert terminal.read().endswith("GANG nothing runs\n"), "a line of its own, and no live line"


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_the_live_line_is_cut_to_the_terminal(terminal: Terminal, live: Any, columns: int) -> None:
    terminal.resize(columns)
    progress = live()
    progress.begin("GANG", "test_" + "\N{CJK UNIFIED IDEOGRAPH-65E5}" * 300)
    line = terminal.read().split("\r")[-1]
    assert columns - 3 <= count_columns(line) < columns


def test_a_terminal_that_shrinks_keeps_no_half_lines(
    terminal: Terminal, live: Any, clock: Clock
) -> None:
    progress = live()
    progress.begin("GANG", "test_" + "x" * 200)
    assert len(terminal.read().split("\r")[-1]) == 79
    terminal.resize(50)
    progress.step("gang: two jobs")
    first, *_, line = re.split("[\r\n]", terminal.read())
    assert first == "", "the broken line stays, and the next begins below it"
    assert len(line) == 49


def test_a_narrow_terminal_gets_lines(terminal: Terminal, live: Any, clock: Clock) -> None:
    terminal.resize(39)
    run_probe(live(), clock)
    lines = terminal.read().splitlines()
    assert lines[0] == "04:12:07 +0:31 [1/18] FABRIC all-reduce"
    assert all(len(line) <= 39 for line in lines)


@pytest.mark.parametrize(
    ("isatty", "term", "changes", "live"),
    [
        (True, "xterm", {}, True),
        (False, "xterm", {}, False),
        (True, "dumb", {}, False),
        (True, "xterm", {"verbose": 1}, False),
        (True, "xterm", {"verbose": -1}, False),
        (True, "xterm", {"capture": "no"}, False),
        (True, "xterm", {"usepdb": True}, False),
    ],
)
def test_a_line_is_live_only_where_it_can_be_replaced(
    isatty: bool, term: str, changes: dict[str, Any], live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    option = SimpleNamespace(**{"verbose": 0, "capture": "fd", "usepdb": False, **changes})
    config = cast(Any, SimpleNamespace(option=option))
    assert can_be_live(config, isatty) is live


def test_the_screen_is_not_what_pytest_captures(tmp_path: Any) -> None:
    with (tmp_path / "log").open("w") as log:
        second = open_screen(log)
        assert second is not log
        assert second.encoding == log.encoding
        second.write("a line\n")
        second.close()
    assert (tmp_path / "log").read_text() == "a line\n"
    without_a_file = io.StringIO()
    assert open_screen(without_a_file) is without_a_file


def test_columns_are_counted_as_a_terminal_does() -> None:
    assert count_columns("ab\N{CJK UNIFIED IDEOGRAPH-65E5}") == 4
    assert cut_columns("ab\N{CJK UNIFIED IDEOGRAPH-65E5}c", 3) == "ab"
