"""Shows a run on the terminal: which probes run, header, progress, and summary."""

from __future__ import annotations

import io
import os
import re
import sys
import textwrap
import threading
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TextIO

import pytest

from probes.session.options import OPTIONS
from probes.session.probe_report import is_sound
from reports.sanitize import ascii_only, clean, closest_name, one_line, probe_words
from reports.streams import lasting

if TYPE_CHECKING:
    from probes.session.session import RunSession
    from reports.acceptance import AcceptanceSummary


def is_like_measured(run: RunSession) -> bool:
    """Return whether usual times are of such runs: they are of small rehearsals, without GPUs."""
    from probes.check.owed import LAB_NODES

    cluster = run.cluster
    return bool(cluster and cluster.rehearsal and len(cluster.nodes) in LAB_NODES)


def estimate_run(run: RunSession, criteria: Iterable[str]) -> int | None:
    """Return the usual seconds of a run of probes of these criteria, one of each probe.

    None where no such run was measured: on GPUs, in a larger rehearsal, or of a part of a row.
    """
    from probes.check.owed import longer_tier, usual_seconds
    from probes.check.registry import all_probes

    counts = Counter(criteria)
    if not is_like_measured(run):
        return None
    due = (one for one in all_probes() if longer_tier(one.tier, run.tier) == run.tier)
    owed = Counter(one.criterion for one in due)
    return usual_seconds(run.tier, counts) if all(counts[id] == owed[id] for id in counts) else None


def estimate_probe(run: RunSession, name: str) -> int | None:
    """Return the usual seconds of a probe, by its name in the record; None where not measured.

    Cases that were measured together, and own probes, have none.
    """
    from probes.check.registry import all_probes

    usual = (one.usual_s for one in all_probes() if f"probes/{one.probe}" == name)
    return next(usual, None) if is_like_measured(run) else None


class OwnVoice:
    """Plugin for `pytest.main`: one sentence for arguments that pytest does not know.

    `has_begun` is whether pytest came to the probes.
    """

    has_begun = False

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Replace pytest's reporter, unless its own words are asked for (-v, --collect-only)."""
        if config.option.verbose > 0 or config.option.collectonly:
            return
        plugins, name = config.pluginmanager, "terminalreporter"
        if plugins.get_plugin(name) is not None:
            plugins.unregister(name=name)
            plugins.register(SuiteReporter(config, sys.stdout), name)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        """Note that options such as --fixtures and --version do not end the run before it."""
        self.has_begun = True

    @pytest.hookimpl(wrapper=True)
    def pytest_cmdline_parse(self) -> Generator[None, object, object]:
        """Shorten a usage error of pytest's parser."""
        try:
            return (yield)
        except pytest.UsageError as error:
            raise pytest.UsageError(shorten_usage_error(str(error))) from None


Reporter: Any = pytest.TerminalReporter


class SuiteReporter(Reporter):
    """Pytest's reporter without what the lines, the table and the sentences of the suite say."""

    @property
    def showheader(self) -> bool:
        """Whether a line says that a test session starts."""
        return False

    def report_collect(self, final: bool = False) -> None:
        """Count no tests: the header names the run, and the table what was left out."""

    def getreports(self, name: str) -> list[Any]:
        """List the reports of a kind that no verdict covers: those are shown in full."""
        return [one for one in super().getreports(name) if is_sound(one)]

    def short_test_summary(self) -> None:
        """Repeat no failure: the table has each."""

    def summary_stats(self) -> None:
        """Count no tests: the table does."""


def shorten_usage_error(message: str) -> str:
    """Return what the parser refuses; for an option of the suite, that it stands before `--`."""
    found = re.search(r"^.*: error: (.*)$", message, re.MULTILINE)
    if found is None:
        return message
    text = f"pytest refuses the arguments after `--`: {found[1]}"
    names = [option.name for option in OPTIONS]
    unknown = re.findall(r"(--[\w-]+)", found[1]) if "unrecognized" in found[1] else []
    close = list(filter(None, (closest_name(name, names) for name in unknown)))
    return text + (f"; did you mean {close[0]}, before the `--`?" if close else "")


DEFAULT_WIDTH, MAX_WIDTH, MIN_LIVE = 80, 100, 40  # columns
TICK_S = 1.0  # s between two updates of the live line: it shows seconds
YELLOW = {"yellow": True}  # of every other verdict
COLOURS = {"PASS": {"green": True}, "FAIL": {"red": True, "bold": True}}
Clock = Callable[[], float]


def write_span(seconds: float) -> str:
    """Write a time as 0:31, 12:07 or 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def open_screen(stream: TextIO) -> TextIO:
    """Open the file of `stream` a second time, so that pytest's capture does not hide the lines."""
    try:
        number = os.dup(stream.fileno())
    except (OSError, io.UnsupportedOperation, AttributeError):
        return stream
    return lasting(stream, number)


class ProgressLines:
    """Progress of a run in a log: lines without any control character.

    `level` is pytest's verbosity: from 0 on all lines are printed, with -1 those of probes, below
    none.  `begun` is when the run began by `clock`, which is never set (now, where it is not
    given); `wall` has the time of day.  `paint(text, **colours)` colours a verdict, where the
    stream shows colours.
    """

    def __init__(
        self,
        screen: TextIO,
        level: int = 0,
        begun: float | None = None,
        paint: Callable[..., str] = lambda text, **_: text,
        width: int = DEFAULT_WIDTH,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
    ) -> None:
        self._screen, self._level, self._paint = screen, level, paint
        self._clock, self._wall = clock, wall
        self._width = min(width, MAX_WIDTH)
        self._unicode = "utf" in (screen.encoding or "").lower()
        self._begun = clock() if begun is None else begun
        self._probe_begun = self._begun
        self._probe: tuple[str, str] | None = None  # place and name of the probe that runs
        self._criterion, self._place, self._step = "", "", ""
        self._number = 0  # of the probe that runs, or ran last
        self._usual_probe_s: float | None = None

    def begin(
        self, criterion: str, name: str, count: int = 0, usual_s: float | None = None
    ) -> None:
        """Note that a probe begins, of so many in this run (0: not known), with its usual time."""
        self._number += 1
        self._criterion, self._step, self._usual_probe_s = criterion, "begins", usual_s
        self._place = f"[{self._number}/{count}] {criterion}" if count else criterion
        self._probe, self._probe_begun = (self._place, probe_words(name)), self._clock()
        self._show_begin()

    def _show_begin(self) -> None:
        """Print what begins and how long it usually takes, where that is known."""
        if self._probe and self._usual_probe_s:
            self.step(f"{self._probe[1]} (usually {self._usual_probe_s:.0f} s)")

    def step(self, message: str) -> None:
        """Print a step of the probe that runs, or ran last."""
        if self._level >= 0:
            self._print(f"{self._place} {self._without_criterion(message)}")

    def end(self, verdict: str) -> None:
        """Print the verdict and the time of the probe that ran."""
        if self._probe:
            (place, name), self._probe = self._probe, None
            seconds = self._clock() - self._probe_begun
            self.note(f"{place} {verdict} {seconds:.0f} s {name}", verdict)

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
        utc = datetime.fromtimestamp(self._wall(), timezone.utc)
        stamp = f"{utc:%H:%M:%S} +{write_span(self._clock() - self._begun)} "
        lines = textwrap.wrap(
            self._plain(text),
            self._columns(),
            initial_indent=stamp,
            subsequent_indent=" " * len(stamp),  # below the criterion
            break_on_hyphens=False,
        )
        shown = "\n".join(lines)
        if verdict:
            painted = self._paint(verdict, **COLOURS.get(verdict, YELLOW))
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

    def _show_begin(self) -> None:
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
        now, (place, name) = self._clock(), probe
        usual = f" of about {write_span(self._usual_s)}" if self._usual_s else ""
        spent = write_span(now - self._probe_begun)
        if self._usual_probe_s:
            spent += f" of {write_span(self._usual_probe_s)}"
        text = f"+{write_span(now - self._begun)}{usual}  {place} {spent}  {self._step}  {name}"
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


PROGRESS: pytest.StashKey[ProgressLines] = pytest.StashKey()  # config: of the run
SILENT_LEVEL = -2  # verbosity of -qq


def start_progress(config: pytest.Config, begun: float, usual_s: float | None) -> None:
    """Print the run's progress from now on; pytest prints its own only with -v."""
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None:
        config.stash[PROGRESS] = ProgressLines(io.StringIO(), SILENT_LEVEL)
        return
    tw = terminal._tw
    options: dict[str, Any] = {"begun": begun, "paint": tw.markup}
    screen, level = open_screen(tw._file), config.option.verbose
    if screen is not tw._file:
        config.add_cleanup(screen.close)
    if can_be_live(config, terminal.isatty):
        config.stash[PROGRESS] = LiveProgress(screen, level, usual_s=usual_s, **options)
    else:
        config.stash[PROGRESS] = ProgressLines(screen, level, width=tw.fullwidth, **options)
    hooks = QuietPytest(terminal, config.stash[PROGRESS]) if level <= 0 else VerbosePytest(terminal)
    config.pluginmanager.register(hooks, "seatrial progress")


def can_be_live(config: pytest.Config, isatty: bool) -> bool:
    """Return whether a line can be replaced in place, and nothing else writes meanwhile."""
    option, is_able = config.option, isatty and os.environ.get("TERM") != "dumb"
    return is_able and option.verbose == 0 and option.capture != "no" and not option.usepdb


class QuietPytest:
    """Hooks of a run without -v: the suite's lines stand for pytest's letters and file names."""

    def __init__(self, terminal: Any, progress: ProgressLines) -> None:
        self._progress = progress
        terminal.showfspath = terminal._show_progress_info = False

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, tuple[Any, ...], tuple[Any, ...]]:
        """Keep category and word, which the summary prints, and drop the letter."""
        category, _, word = yield
        return category, "", word

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print a line for what no verdict covers: another test, a failed teardown."""
        judged = hasattr(report, "seatrial")
        unexpected = report.failed and is_sound(report)
        if unexpected or (not judged and (report.when == "call" or report.skipped)):
            when = "" if report.when == "call" else f"{report.when} of "
            self._progress.note(f"{report.outcome.upper()} {when}{report.nodeid}")


class VerbosePytest:
    """Hooks of a run with -v: pytest's lines and the suite's, each on a line of its own."""

    def __init__(self, terminal: Any) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logstart(self) -> None:
        """End the line that pytest has begun for a test."""
        self._terminal.ensure_newline()


def print_header(config: pytest.Config, lines: list[str]) -> None:
    """Print the lines that name cluster, contract and run; not with -q."""
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and config.option.verbose >= 0:
        for line in lines:
            terminal.write_line(clean(line))


def print_summary(config: pytest.Config, summary: AcceptanceSummary, run: RunSession) -> None:
    """Print the acceptance table, worst first, and the path of the report.

    A probe that a lost cluster blocks may still be captured: the capture is suspended.
    """
    from reports.text import acceptance_table

    plugins = config.pluginmanager
    terminal: Any = plugins.get_plugin("terminalreporter")
    if terminal is None:
        return
    if capture := plugins.get_plugin("capturemanager"):
        capture.suspend_global_capture()
    tw = terminal._tw
    unicode = "utf" in (getattr(tw._file, "encoding", None) or "").lower()
    width = min(tw.fullwidth, MAX_WIDTH)
    terminal.section("acceptance")
    terminal.write_line(acceptance_table(summary, width, tw.hasmarkup, unicode))
    report = run.store.path / "report.html"
    shown = report if report.is_file() else "the page could not be written"
    terminal.write_line(f"report  {shown}")
    terminal.write_line(summary.integrity.head_line)
    if not summary.record.contract.agreed:
        terminal.write_line(f"next    seatrial contract new --from {run.store.path}")


def criterion_of(item: pytest.Item) -> str | None:
    """Return the criterion that a test is a probe of; None for another test."""
    marker = item.get_closest_marker("criterion")
    return str(marker.args[0]) if marker else None


def sort_probes(items: list[pytest.Item]) -> None:
    """Sort the probes by run_order; those marked `last` come after all others."""
    from probes.check.registry import run_order

    order = run_order()
    items.sort(key=lambda item: order.index(criterion_of(item) or order[0]))
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)  # keeps that order


def left_out(probes: Sequence[pytest.Item], tier: str, only: Sequence[str]) -> list[pytest.Item]:
    """List the probes of longer tiers and of other criteria than `only`, where that is given."""
    others = [item for item in probes if only and criterion_of(item) not in only]
    return [item for item in probes if item in others or _in_longer_tier(item, tier)]


def _in_longer_tier(item: pytest.Item, tier: str) -> bool:
    """Return whether the probe belongs to a longer tier than this run's."""
    from probes.check.owed import longer_tier

    marker = item.get_closest_marker("tier")
    return marker is not None and longer_tier(marker.args[0], tier) != tier


def describe_nothing(tier: str, only: Sequence[str], keyword: str) -> str:
    """Say why no probe is left, and what was probably meant by the words of -k."""
    asked = [f"--only {','.join(only)}"] if only else []
    asked += [f"-k {keyword!r}"] if keyword else []
    text = ", ".join([*asked, f"tier {tier}"])
    return f"nothing was run: no probe is selected ({text}){_suggest_names(keyword)}"


def _suggest_names(keyword: str) -> str:
    from probes.check.registry import all_probes

    names = {word for duty in all_probes() for word in re.findall(r"[a-z]{3,}", duty.probe)}
    asked = set(re.findall(r"[a-z]+", keyword.lower())) - {"and", "or", "not", *names}
    meant = list(filter(None, (closest_name(word, names) for word in sorted(asked))))
    return f"; did you mean {', '.join(meant)}?" if meant else ""
