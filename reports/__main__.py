"""Look at a run without a cluster: `python -m reports render RUN`, `show RUN`, `compare A B`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from reports.acceptance import load_summary
from reports.command import CommandGroup, Refusal
from reports.sanitize import ascii_only, one_line

RUN_FOLDER = click.Path(path_type=Path)


@click.group(cls=CommandGroup, no_args_is_help=False)
def cli() -> None:
    """Render, show and compare run folders."""


@cli.command()
@click.argument("run", type=RUN_FOLDER)
@click.option("--baseline", type=RUN_FOLDER, help="Run folder to compare with.")
@click.option(
    "--output", type=RUN_FOLDER, help="Write only the page, to this file (default: all, in RUN)."
)
def render(run: Path, baseline: Path | None, output: Path | None) -> None:
    """Write report.html and the other renderings of RUN."""
    summary, before = load_summary(run), load_summary(baseline) if baseline else None
    if output:
        from reports.page.render import render as page

        output.write_text(page(summary, run, before), encoding="utf-8")
        click.echo(output)
        return
    from reports.exports import write_all

    for path in write_all(run, summary, before):
        click.echo(path)


@cli.command()
@click.argument("run", type=RUN_FOLDER)
@click.option("--width", default=0, help="Columns (default: the terminal's, at most 100).")
@click.option("--ascii", "plain", is_flag=True, help="No glyphs, no colour.")
def show(run: Path, width: int, plain: bool) -> None:
    """Print the acceptance table of RUN, worst first."""
    from reports.text import acceptance_table

    columns = width or min(100, shutil.get_terminal_size().columns)
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ and not plain
    click.echo(acceptance_table(load_summary(run), columns, color, _unicode() and not plain))


@cli.command()
@click.argument("run", type=RUN_FOLDER)
@click.argument("baseline", type=RUN_FOLDER)
def compare(run: Path, baseline: Path) -> None:
    """Print what changed in RUN since BASELINE; exit 1 when there are new failures."""
    from reports.compare import NEW_FAILURES, comparison_lines
    from reports.compare import compare as compare_runs

    diff = compare_runs(load_summary(run), load_summary(baseline))
    for line in comparison_lines(diff):
        indent = line[: len(line) - len(line.lstrip())]
        text = indent + one_line(line)
        click.echo(text if _unicode() else ascii_only(text))
    sys.exit(1 if NEW_FAILURES in diff.changes else 0)


def _unicode() -> bool:
    return "utf" in (sys.stdout.encoding or "").lower()


def main(arguments: list[str] | None = None) -> int:
    """Run the command; every error is one sentence, and exits with 4 where it is the caller's."""
    try:
        return cli.main(arguments, prog_name="python -m reports", standalone_mode=False) or 0
    except Refusal as error:
        error.show()
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
