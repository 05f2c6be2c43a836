"""The commands' last word: whatever goes wrong is one sentence and an exit code of the suite's."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from reports.redact import redact_text
from reports.sanitize import one_line

EXIT_INTERRUPTED, EXIT_INTERNAL, EXIT_USAGE = 2, 3, 4  # as the suite's; click's own differ
MAX_SENTENCE = 1000  # characters: a path or a value may be endless, a sentence is for people


class Refusal(click.ClickException):
    """One sentence on what was expected and what was found."""

    exit_code = EXIT_USAGE

    def format_message(self) -> str:
        """Give the sentence, on one line that no word of it can leave."""
        line = one_line(self.message)
        return line if len(line) <= MAX_SENTENCE else line[:MAX_SENTENCE] + "..."

    def show(self, file: Any = None) -> None:
        """Print the sentence; where nobody listens any more, nothing."""
        with contextlib.suppress(OSError):
            click.echo(f"error: {self.format_message()}", file=file, err=True)


class InternalError(Refusal):
    """One sentence on a fault of the suite's own."""

    exit_code = EXIT_INTERNAL


class Interruption(Refusal):
    """Somebody stopped the command."""

    exit_code = EXIT_INTERRUPTED


class CheckedCommand(click.Command):
    """A command that ends with a sentence and a code of the suite's, never with a traceback."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Make a context, as click does."""
        with refusals():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke the command, as click does."""
        with refusals():
            return super().invoke(ctx)


class CommandGroup(CheckedCommand, click.Group):
    """Commands of which none ends with a traceback."""


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turn whatever is raised into a Refusal; what click itself or `sys.exit` says passes."""
    for stream in (sys.stdout, sys.stderr):  # a letter that a terminal lacks is no fault
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="backslashreplace")
    try:
        yield
    except (click.exceptions.Exit, Refusal):
        raise
    except BrokenPipeError:  # as of `| head -1`: the reader has what he wants
        _discard_output()
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    except (KeyboardInterrupt, click.Abort):
        raise Interruption("interrupted") from None
    except click.UsageError as error:
        raise _usage_refusal(error) from None
    except click.ClickException as error:
        raise Refusal(error.format_message()) from None
    except OSError as error:
        _discard_output()
        path = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        raise Refusal(f"{path}{error.strerror or error}") from None
    except Exception as error:  # noqa: BLE001  an unforeseen one is ours, and no verdict
        raise _internal_refusal(error) from None


def _usage_refusal(error: click.UsageError) -> click.ClickException:
    """Say what is wrong with the command's words; a group without any shows its help instead."""
    if error.ctx is None:
        return Refusal(error.format_message())
    if error.message == error.ctx.get_help():
        # click reads it from the error itself, but declares it as its class's: hence the ignore.
        error.exit_code = EXIT_USAGE  # type: ignore[misc]
        return error
    return Refusal(f"{error.format_message()} See `{error.ctx.command_path} --help`.")


def _internal_refusal(error: Exception) -> Refusal:
    """Tell of a fault of the suite's own, and where it is; a run that nobody can read is none."""
    from reports.run_folder.files import UnreadableRun

    if isinstance(error, UnreadableRun):
        return Refusal(str(error))
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    words = redact_text(one_line(error)) or "no words"
    return InternalError(f"internal: {type(error).__name__}: {words} ({place})")


def _discard_output() -> None:
    """Let what cannot be written be forgotten, or the interpreter's end would fail on it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
