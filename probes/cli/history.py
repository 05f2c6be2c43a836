"""`seatrial compare` and `seatrial history`: several runs in one table."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from probes.cli.errors import PATH_TYPE, UsageError, refuse_unusable
from reports.command import EXIT_USAGE
from reports.sanitize import one_line

if TYPE_CHECKING:
    from reports.frames.history import FoundRun
    from reports.text import TextFormatter

WIDTH = click.option("--width", default=0, help="Columns (default: the terminal's, at least 80).")
LEAST_WIDTH = 80  # columns: two runs and their change do not fit less


@click.command(
    short_help="Show what changed between runs.",
    epilog="Example: seatrial compare runs/first runs/second",
)
@click.argument("runs", nargs=-1, required=True, type=PATH_TYPE, metavar="FIRST RUN...")
@WIDTH
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, a row per measure.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(runs: tuple[Path, ...], width: int, as_csv: bool, as_json: bool) -> None:
    """Compare each RUN with the FIRST: what changed, beyond noise or in its verdict.

    A run is a run folder or a record.json. Exit code 1: a run has new failures. 4: one cannot be
    read or does not verify.
    """
    from probes.rejudge.limit_check import read_summary
    from reports.frames.compare import NEW_FAILURES, compare_runs
    from reports.frames.compare_text import (
        comparison_csv,
        comparison_json,
        comparison_lines,
        run_letters,
    )

    if len(runs) < 2:
        raise UsageError("expected at least two runs, found one")
    with refuse_unusable():
        summaries = [read_summary(run) for run in runs]
    comparison = compare_runs(summaries, run_letters(len(runs)))
    if as_csv:
        _print_csv(comparison_csv(comparison), comparison.notes)
    elif as_json:
        click.echo(comparison_json(comparison).replace("##", "#\\u0023"))  # ## marks a CI command
    else:
        _print_lines(comparison_lines(comparison, _formatter(width)))
    if any(summary.integrity.problems for summary in summaries):
        sys.exit(EXIT_USAGE)
    sys.exit(1 if (comparison.kinds == NEW_FAILURES).any() else 0)


@click.command(
    short_help="List runs, and how measures change.",
    epilog="Example: seatrial history runs",
)
@click.argument("folder", type=PATH_TYPE)
@WIDTH
@click.option("--csv", "table", type=click.Choice(["runs", "trends"]), help="Print CSV instead.")
def history(folder: Path, width: int, table: str | None) -> None:
    """Show all runs below FOLDER, and the trend of each measure over them.

    A run that cannot be read or does not verify is listed with the reason, and then the exit code
    is 4.
    """
    from reports.frames.history import build_history, find_runs
    from reports.frames.history_text import history_lines
    from reports.frames.measurements import csv_text

    found = [_read_found(path) for path in find_runs(folder)]
    if not found:
        raise UsageError(f"expected runs below {folder}, found none")
    past = build_history(found)
    if table:
        _print_csv(csv_text(past.runs if table == "runs" else past.trends), [])
    else:
        _print_lines(history_lines(past, _formatter(width)))
    bad = [one for one in found if one.summary is None or one.summary.integrity.problems]
    sys.exit(EXIT_USAGE if bad else 0)


def _read_found(path: Path) -> FoundRun:
    from probes.rejudge.limit_check import read_summary
    from reports.frames.history import FoundRun
    from reports.run_folder.files import UnreadableRun

    try:
        return FoundRun(path, read_summary(path))
    except (UnreadableRun, OSError) as error:
        return FoundRun(path, problem=str(error))


def _formatter(width: int) -> TextFormatter:
    from reports.text import TextFormatter

    unicode = "utf" in (sys.stdout.encoding or "").lower()
    columns = width or max(LEAST_WIDTH, shutil.get_terminal_size().columns)
    return TextFormatter(max(LEAST_WIDTH, columns), unicode=unicode)


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _print_csv(text: str, notes: Iterable[str]) -> None:
    """Print CSV in UTF-8, whatever the encoding of the terminal; notes go to stderr."""
    for note in notes:
        click.echo(one_line(f"note: {note}"), err=True)
    click.echo(text.encode(), nl=False)
