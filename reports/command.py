"""Turns every error of a command into one sentence and an exit code of the suite.

The client of `seatrial submit` has click alone: nothing here needs more.
"""

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
from reports.version import PACKAGES

EXIT_INTERRUPTED, EXIT_INTERNAL, EXIT_USAGE = 2, 3, 4  # the suite's codes; click uses others
# What the commands need that read a run or a contract; Ray and torch are not among them.
LIGHT = ("pydantic", "jinja2", "packaging", "pandas", "matplotlib")
MAX_SENTENCE = 1000  # characters; a path or value in the message can be much longer


class Refusal(click.ClickException):
    """Command error, printed as one sentence: what was expected and what was found."""

    exit_code = EXIT_USAGE

    def format_message(self) -> str:
        """Return the sentence on one line, at most MAX_SENTENCE characters and `...`."""
        line = one_line(self.message)
        return line if len(line) <= MAX_SENTENCE else line[:MAX_SENTENCE] + "..."

    def show(self, file: Any = None) -> None:
        """Print the sentence, by default to stderr; ignore a stream that is closed."""
        with contextlib.suppress(OSError):
            click.echo(f"error: {self.format_message()}", file=file, err=True)


class InternalError(Refusal):
    """Error inside the suite, printed as one sentence."""

    exit_code = EXIT_INTERNAL


class Interruption(Refusal):
    """Interruption of the command, for example by Ctrl-C."""

    exit_code = EXIT_INTERRUPTED


class CheckedCommand(click.Command):
    """Command whose errors end in one sentence and a suite exit code, never in a traceback."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Make a context, as click does, and turn errors into refusals."""
        with refusals():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke the command, as click does, and turn errors into refusals."""
        with refusals():
            return super().invoke(ctx)


class CommandGroup(CheckedCommand, click.Group):
    """Group of commands that never end in a traceback."""


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turn exceptions into a Refusal; click's Exit, a Refusal and `sys.exit` pass unchanged."""
    for stream in (sys.stdout, sys.stderr):  # the terminal may lack a character
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="backslashreplace")
    try:
        yield
    except (click.exceptions.Exit, Refusal):
        raise
    except BrokenPipeError:  # for example `| head -1`: the reader closed the pipe
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
        text = f"{path}{error.strerror or error}"
        raise Refusal(_describe_removed_folder(error) or text) from None
    except ModuleNotFoundError as error:  # installed without its dependencies
        if (error.name or "").partition(".")[0] in PACKAGES:
            raise _internal_refusal(error) from None
        text = f"this command needs the Python module {error.name}, which is not installed here"
        hint = f": pip install {' '.join(LIGHT)}" if error.name in LIGHT else ""
        raise Refusal(text + hint) from None
    except Exception as error:  # noqa: BLE001  an unforeseen error is internal, not a verdict
        raise _internal_refusal(error) from None


def _describe_removed_folder(error: OSError) -> str:
    """Say that the current folder was removed, if the error is about it; else ""."""
    if not isinstance(error, FileNotFoundError) or error.filename is not None:
        return ""
    with contextlib.suppress(OSError):
        return os.getcwd() and ""
    name = os.environ.get("PWD", "its name is unknown")
    return f"the current folder was removed ({name}): change to a folder that exists"


def _usage_refusal(error: click.UsageError) -> click.ClickException:
    """Return a usage error as a Refusal; a group without a subcommand shows its help instead."""
    if error.ctx is None:
        return Refusal(error.format_message())
    if error.message == error.ctx.get_help():
        # click reads exit_code from the instance but declares it on the class: hence the ignore.
        error.exit_code = EXIT_USAGE  # type: ignore[misc]
        return error
    return Refusal(f"{error.format_message()} See `{error.ctx.command_path} --help`.")


def _internal_refusal(error: Exception) -> Refusal:
    """Describe an internal error and its place in the code; UnreadableRun is a plain Refusal."""
    from reports.run_folder.event_log import UnreadableRun

    if isinstance(error, UnreadableRun):
        return Refusal(str(error))
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    words = redact_text(one_line(error)) or "no message"
    return InternalError(f"internal error of seatrial: {type(error).__name__}: {words} ({place})")


def _discard_output() -> None:
    """Discard output that cannot be written; otherwise the interpreter would fail at its exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
