"""Writes the other renderings of a record, and the commands that a report shows."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import click

from reports.acceptance import AcceptanceSummary
from reports.formats.junit import ctrf, junit
from reports.formats.prometheus import prometheus
from reports.frames.measurements import csv_text
from reports.page.render import render
from reports.record import SCHEMA, RunRecord
from reports.redact import redact_text
from reports.run_folder.event_log import SUMS, UnreadableRun, open_regular, write_atomically
from reports.run_folder.store import record_text
from reports.sanitize import one_line
from reports.version import PACKAGES, same_version

SCHEMA_FILE = "record.schema.json"  # `make docs` writes it from the models


def build_schema() -> str:
    """Build the schema from the fields of the record and their descriptions."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:seatrial:record:{SCHEMA}",
    }
    schema = {**head, **RunRecord.model_json_schema(), "title": "record.json of seatrial"}
    return json.dumps(schema, indent=1) + "\n"


def read_schema() -> str:
    """Read the published schema, which is the same with every version of pydantic."""
    return (resources.files("reports.formats") / SCHEMA_FILE).read_text(encoding="utf-8")


def render_all(
    run: Path | None,
    summary: AcceptanceSummary,
    baseline: AcceptanceSummary | None = None,
    evidence_at: str = ".",
) -> dict[str, str]:
    """Return the text of every rendering, by file name.

    `evidence_at` is the path of the run folder as links on the page reach it.
    """
    return {
        "report.html": render(summary, run, baseline, evidence_at),
        "measurements.csv": csv_text(summary.record.frame()),
        "metrics.prom": prometheus(summary),
        "ctrf.json": json.dumps(ctrf(summary), indent=1) + "\n",
        "junit.xml": junit(summary),
        SCHEMA_FILE: read_schema(),
    }


def write_all(target: Path, texts: dict[str, str]) -> None:
    """Write the renderings into the folder `target`."""
    for name, text in texts.items():
        write_atomically(target / name, text)


def check_renderings(run: Path, summary: AcceptanceSummary) -> tuple[list[str], str]:
    """Find the renderings of a finished run that do not match its events.

    Returns (problems, reason why something was not compared). The reason is "" if all were
    compared. Nothing is compared if another version wrote them, because its wording may differ,
    or if the run was killed. The page of a run with a baseline is not compared either, because
    the baseline run would be needed.
    """
    record = summary.record
    if not (run / SUMS).exists():
        return [], "the run did not finish"
    if not same_version(record.versions):
        return [], "another version of seatrial, or of what it renders with, wrote them"
    texts = {**render_all(run, summary), "record.json": record_text(record)}
    del texts[SCHEMA_FILE]  # does not depend on the run
    if record.baseline:
        del texts["report.html"]
    wrong = [name for name, text in texts.items() if read_content(run / name) != text.encode()]
    problems = [f"{name} does not match the events" for name in wrong]
    return problems, "the page was not: it compares with a baseline" if record.baseline else ""


def read_content(path: Path) -> bytes:
    """Return the bytes of a rendering; none if it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read()
    except UnreadableRun:
        return b""


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
        raise Refusal(f"{path}{error.strerror or error}") from None
    except ModuleNotFoundError as error:  # installed without its dependencies
        if (error.name or "").partition(".")[0] in PACKAGES:
            raise _internal_refusal(error) from None
        text = f"this command needs the Python module {error.name}, which is not installed here"
        hint = f": pip install {' '.join(LIGHT)}" if error.name in LIGHT else ""
        raise Refusal(text + hint) from None
    except Exception as error:  # noqa: BLE001  an unforeseen error is internal, not a verdict
        raise _internal_refusal(error) from None


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
    if isinstance(error, UnreadableRun):
        return Refusal(str(error))
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    words = redact_text(one_line(error)) or "no words"
    return InternalError(f"internal: {type(error).__name__}: {words} ({place})")


def _discard_output() -> None:
    """Discard output that cannot be written; otherwise the interpreter would fail at its exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
