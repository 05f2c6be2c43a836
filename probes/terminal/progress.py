"""Prints the progress of a run: a line per step and probe in a log, one live line on a terminal.

A line of a log reads `04:12:07 +0:31 FABRIC all-reduce sweep`: UTC, time since the run began,
criterion, step.  The line of a finished probe has its verdict, its time and its name.
"""

from __future__ import annotations

import io
import os
import textwrap
import threading
import time
import unicodedata
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, TextIO

from reports.sanitize import ascii_only, one_line

DEFAULT_WIDTH, MAX_WIDTH, MIN_LIVE = 80, 100, 40  # columns
TICK_S = 1.0  # s between two updates of the live line: it shows seconds
COLOURS: dict[str, dict[str, bool]] = {
    "PASS": {"green": True},
    "MARGINAL": {"yellow": True},
    "FAIL": {"red": True, "bold": True},
}
Clock = Callable[[], float]


def write_span(seconds: float) -> str:
    """Write a time as 0:31, 12:07 or 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def open_screen(stream: TextIO) -> TextIO:
    """Open the file of `stream` a second time, so that pytest's capture does not hide the lines."""
    try:
        stream.flush()
        number = os.dup(stream.fileno())
    except (OSError, io.UnsupportedOperation, AttributeError):
        return stream
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return open(number, "w", encoding=encoding, errors="backslashreplace", buffering=1)


class ProgressLines:
    """Progress of a run in a log: lines without any control character.

    `level` is pytest's verbosity: from 0 on all lines are printed, with -1 those of probes, below
    none.  `begun` is when the run began (now, where it is not given).  `paint(text, **colours)`
    colours a verdict, where the stream shows colours.
    """

    def __init__(
        self,
        screen: TextIO,
        level: int = 0,
        begun: float | None = None,
        paint: Callable[..., str] = lambda text, **_: text,
        width: int = DEFAULT_WIDTH,
        clock: Clock = time.time,
    ) -> None:
        self._screen, self._level, self._paint, self._clock = screen, level, paint, clock
        self._width = min(width, MAX_WIDTH)
        self._unicode = "utf" in (screen.encoding or "").lower()
        self._begun = clock() if begun is None else begun
        self._probe_begun = self._begun
        self._probe: tuple[str, str] | None = None  # criterion and name of the probe that runs
        self._criterion, self._step = "", ""

    def begin(self, criterion: str, name: str) -> None:
        """Note that a probe begins."""
        self._probe, self._probe_begun = (criterion, name), self._clock()
        self._criterion, self._step = criterion, "begins"

    def step(self, message: str) -> None:
        """Print a step of the probe that runs, or ran last."""
        if self._level >= 0:
            self._print(f"{self._criterion} {self._without_criterion(message)}")

    def end(self, verdict: str) -> None:
        """Print the verdict and the time of the probe that ran."""
        if self._probe:
            (criterion, name), self._probe = self._probe, None
            seconds = self._clock() - self._probe_begun
            self.note(f"{criterion} {verdict} {seconds:.0f} s {name}", verdict)

    def note(self, text: str, verdict: str = "") -> None:
        """Print a line about a whole test."""
        if self._level >= -1:
            self._print(text, verdict)

    def close(self) -> None:
        """End the progress."""
        if not self._screen.closed:
            self._screen.flush()

    def _without_criterion(self, message: str) -> str:
        """Return the message without the criterion that many begin with: it stands before."""
        return one_line(message).removeprefix(f"{self._criterion.lower()}: ")

    def _print(self, text: str, verdict: str = "") -> None:
        now = self._clock()
        utc = datetime.fromtimestamp(now, timezone.utc)
        stamp = f"{utc:%H:%M:%S} +{write_span(now - self._begun)} "
        lines = textwrap.wrap(
            self._plain(text),
            self._columns(),
            initial_indent=stamp,
            subsequent_indent=" " * len(stamp),  # below the criterion
            break_on_hyphens=False,
        )
        shown = "\n".join(lines)
        if verdict:
            painted = self._paint(verdict, **COLOURS.get(verdict, {"yellow": True}))
            shown = shown.replace(f" {verdict} ", f" {painted} ", 1)
        self._write(shown + "\n")

    def _plain(self, text: str) -> str:
        line = one_line(text)
        return line if self._unicode else ascii_only(line)

    def _columns(self) -> int:
        return self._width

    def _write(self, text: str) -> None:
        try:
            self._screen.write(text)
            self._screen.flush()
        except (OSError, ValueError):  # a closed terminal is no reason to end a run
            self._level = -2


class LiveProgress(ProgressLines):
    """Progress on a terminal: one line, replaced in place, below the finished probes.

    It is cut to the width that the terminal has at that moment.  `usual_s` is the usual time of
    such a run in seconds, where it is known.  It uses no control character but carriage return.
    """

    def __init__(self, *arguments: Any, usual_s: float | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._usual_s = usual_s
        self._shown = 0  # columns of the live line that is on the screen
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="seatrial-progress", daemon=True)
        self._ticker.start()

    def begin(self, criterion: str, name: str) -> None:
        """Show that a probe begins."""
        super().begin(criterion, name)
        self._redraw()

    def step(self, message: str) -> None:
        """Show a step of the probe that runs; print it where none runs."""
        if self._probe is None or self._screen_width() < MIN_LIVE:
            super().step(message)
            return
        self._step = self._without_criterion(message)
        self._redraw()

    def close(self) -> None:
        """Remove the live line."""
        self._ended.set()
        self._ticker.join(timeout=2 * TICK_S)
        with self._lock:
            self._probe = None
            self._erase()
        super().close()

    def live_line(self) -> str:
        """Return what the live line says now."""
        probe = self._probe  # another thread may end it
        if probe is None:
            return ""
        now, (criterion, name) = self._clock(), probe
        usual = f" of about {write_span(self._usual_s)}" if self._usual_s else ""
        spent = write_span(now - self._probe_begun)
        text = f"+{write_span(now - self._begun)}{usual}  {criterion} {spent}  {self._step}  {name}"
        return cut_columns(self._plain(text), self._screen_width() - 1)

    def _tick(self) -> None:
        while not self._ended.wait(TICK_S):
            self._redraw()

    def _redraw(self) -> None:
        with self._lock:
            if self._level < 0 or self._ended.is_set() or self._screen_width() < MIN_LIVE:
                self._erase()
                return
            line = self.live_line()
            columns = count_columns(line)
            if self._shown > columns:
                self._erase()
            if line:
                self._write("\r" + line)
            self._shown = columns

    def _erase(self) -> None:
        if self._shown >= self._screen_width():  # it is narrower now, and has broken the line
            self._write("\n")
        elif self._shown:
            self._write("\r" + " " * self._shown + "\r")
        self._shown = 0

    def _print(self, text: str, verdict: str = "") -> None:
        with self._lock:
            self._erase()
            super()._print(text, verdict)

    def _columns(self) -> int:
        return min(self._screen_width(), MAX_WIDTH)

    def _screen_width(self) -> int:
        try:
            return os.get_terminal_size(self._screen.fileno()).columns or DEFAULT_WIDTH
        except (OSError, ValueError):
            return DEFAULT_WIDTH


def count_columns(text: str) -> int:
    """Count the columns of a line on a terminal, where some characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def cut_columns(text: str, columns: int) -> str:
    """Cut a line to at most so many columns."""
    while count_columns(text) > columns:
        text = text[:-1]
    return text
