"""How the commands are declared, print lines, and refuse input that cannot be used."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reports.command import Refusal

if TYPE_CHECKING:
    from reports.text import TextFormatter

PATH = click.Path(path_type=Path)
MAX_WIDTH = 100  # columns: longer lines are hard to read
MAX_EXAMPLE = 60  # characters of an example that fits into one line with the word before it


def terminal_width() -> int:
    """Return how many columns a line may have."""
    return min(shutil.get_terminal_size().columns, MAX_WIDTH)


class UsageError(Refusal):
    """Usage error, with exit code 4.  One sentence: what was expected and what was found."""


def command(
    short_help: str, *examples: str, parent: click.Group | None = None, **options: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Declare a command: its line in the list of commands, and the examples below its help."""
    epilog = "\n  ".join(["\b\nExamples:", *examples])
    if len(examples) == 1 and len(examples[0]) <= MAX_EXAMPLE:
        epilog = f"Example: {examples[0]}"
    declare: Any = parent.command if parent else click.command
    return declare(short_help=short_help, epilog=epilog, **options)


@contextmanager
def refuse(*errors: type[Exception]) -> Iterator[None]:
    """Raise UsageError with the text of these errors."""
    try:
        yield
    except errors as error:
        raise UsageError(str(error)) from None


def refuse_unusable(*others: type[Exception]) -> AbstractContextManager[None]:
    """Raise UsageError for a contract or a run folder that cannot be read, and for `others`."""
    from probes.contract.contract import ContractError
    from reports.run_folder.event_log import UnreadableRun

    return refuse(ContractError, UnreadableRun, *others)


def print_lines(lines: Iterable[str]) -> None:
    """Print one line after the other."""
    for line in lines:
        click.echo(line)


def is_unicode(err: bool = False) -> bool:
    """Return whether the encoding of standard output, or of standard error, is Unicode."""
    return "utf" in ((sys.stderr if err else sys.stdout).encoding or "").lower()


def formatter() -> TextFormatter:
    """Make a formatter of the terminal's width and characters."""
    from reports.text import TextFormatter

    return TextFormatter(terminal_width(), unicode=is_unicode())


RUNS = Path("runs")  # where a run is written unless --run-dir names another folder


def newest_run() -> Path:
    """Find the run below RUNS that was written to last.  Raises UsageError if there is none."""
    logs = {path: path.stat().st_mtime for path in RUNS.glob("*/events.jsonl")}
    if not logs:
        raise UsageError(f"no run folder was given, and {RUNS}/ has no run. Give the path of a run")
    return max(logs, key=lambda path: logs[path]).parent
