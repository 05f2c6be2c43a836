"""What pytest prints of a run: progress by the suite, the acceptance table, nothing twice."""

from __future__ import annotations

import io
import os
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from probes.probe_report import is_sound
from probes.terminal.progress import LiveProgress, ProgressLines, open_screen
from reports.sanitize import clean

if TYPE_CHECKING:
    from probes.acceptance.session import RunSession
    from reports.acceptance import AcceptanceSummary

PROGRESS: pytest.StashKey[ProgressLines] = pytest.StashKey()  # config: of the run
MAX_TABLE_WIDTH = 100  # columns: longer lines are hard to read
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
    option = config.option
    return (
        isatty
        and os.environ.get("TERM") != "dumb"
        and option.verbose == 0
        and option.capture != "no"
        and not option.usepdb
    )


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


def stop_progress(config: pytest.Config) -> None:
    """Remove the live line, so that what follows has a line of its own; safe to repeat."""
    if progress := config.stash.get(PROGRESS, None):
        progress.close()


def print_header(config: pytest.Config, lines: list[str]) -> None:
    """Print the lines that name cluster, contract and run; not with -q."""
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and config.option.verbose >= 0:
        for line in lines:
            terminal.write_line(clean(line))


def print_summary(terminal: Any, summary: AcceptanceSummary, run: RunSession) -> None:
    """Print the acceptance table, worst first, and the path of the report."""
    from reports.text import acceptance_table

    tw = terminal._tw
    unicode = "utf" in (getattr(tw._file, "encoding", None) or "").lower()
    width = min(tw.fullwidth, MAX_TABLE_WIDTH)
    terminal.section("acceptance")
    terminal.write_line(acceptance_table(summary, width, tw.hasmarkup, unicode))
    terminal.write_line(f"report  {run.store.path / 'report.html'}")
    terminal.write_line(summary.integrity.head_line)
    if not summary.record.contract.agreed:
        terminal.write_line(f"next    seatrial contract new --from {run.store.path}")
