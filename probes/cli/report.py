"""`seatrial report`, `show` and `rejudge`: read a run again, without its cluster."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from probes.cli.errors import PATH_TYPE, UsageError, refuse_unusable
from reports.command import EXIT_USAGE
from reports.sanitize import one_line

if TYPE_CHECKING:
    from reports.acceptance import AcceptanceSummary

MAX_WIDTH = 100  # columns: longer lines are hard to read


@click.command(
    short_help="Verify a run, and show its result.",
    epilog="""\b
    Examples:
      seatrial report runs/2026-11-20T221703Z-node0
      seatrial report runs/second --baseline runs/first
      seatrial report runs/first --share""",
)
@click.argument("run_folder", type=PATH_TYPE)
@click.option("--baseline", type=PATH_TYPE, help="A run to compare with.")
@click.option("--share", is_flag=True, help="Write RUN_FOLDER-shared: aliases for all names.")
def report(run_folder: Path, baseline: Path | None, share: bool) -> None:
    """Verify RUN_FOLDER, show what it amounts to, and exit with its code; needs no cluster.

    A run that has ended is never changed: renderings that would differ, as with a baseline, go to
    RUN_FOLDER-report. A record.json alone is read too. It cannot be verified, so it is never
    accepted: its best exit code is 20.
    """
    from probes.rejudge.limit_check import read_summary, read_whole
    from reports.share import write_shared

    with refuse_unusable():
        summary = read_whole(run_folder)
        before = read_summary(baseline) if baseline else None
        page = _write_renderings(run_folder, summary, before)
        shared = write_shared(run_folder, summary, _beside(run_folder, "shared")) if share else []
    click.echo(_table(summary))
    click.echo(one_line(f"report {page}"))
    for path in shared[:1]:
        click.echo(one_line(f"shared  {path.parent}"))
    if summary.integrity.head:
        click.echo(summary.integrity.head_line)
    for line in _signature_lines(run_folder):
        click.echo(line)
    sys.exit(EXIT_USAGE if before and before.integrity.problems else summary.exit_code)


@click.command(
    short_help="Print a run's table; writes nothing.",
    epilog="Example: seatrial show tests/recordings/runs/tcp-fallback",
)
@click.argument("run_folder", type=PATH_TYPE)
@click.option("--width", default=0, help="Columns (default: the terminal's, at most 100).")
@click.option("--ascii", "plain", is_flag=True, help="No glyphs, no colour.")
def show(run_folder: Path, width: int, plain: bool) -> None:
    """Verify RUN_FOLDER and print its acceptance table, worst first; writes nothing."""
    from probes.rejudge.limit_check import read_summary

    with refuse_unusable():
        summary = read_summary(run_folder)
    click.echo(_table(summary, width, plain))
    sys.exit(summary.exit_code)


@click.command(
    short_help="Judge a run by another contract.",
    epilog="Example: seatrial rejudge runs/first --contract mine.toml",
)
@click.argument("run_folder", type=PATH_TYPE)
@click.option("--contract", required=True, metavar="NAME|FILE", help="The other contract.")
def rejudge(run_folder: Path, contract: str) -> None:
    """Judge the measurements of RUN_FOLDER by another contract, into a new folder."""
    from probes.acceptance.contract import load
    from probes.rejudge.limit_check import read_summary
    from probes.rejudge.rejudge import rejudge_run

    with refuse_unusable():
        agreed = load(contract)
        target = rejudge_run(run_folder, agreed)
        summary = read_summary(target)
    click.echo(_table(summary))
    click.echo(one_line(f"report {target / 'report.html'}"))
    sys.exit(summary.exit_code)


def _write_renderings(
    run: Path, summary: AcceptanceSummary, baseline: AcceptanceSummary | None
) -> Path:
    """Write the renderings that the folder does not hold already; return the path of the page.

    Nothing is written into a run that has ended: its checksums and signatures cover its files.
    """
    from reports.exports import read_content, render_all, write_all
    from reports.run_folder.files import SUMS

    texts = render_all(run, summary, baseline)
    if all(read_content(run / name) == text.encode() for name, text in texts.items()):
        return run / "report.html"
    target = run
    if run.is_file() or (run / SUMS).exists() or summary.integrity.problems:
        target = _beside(run, "report")
        if target.is_symlink() or (target / SUMS).exists():
            found = "a link" if target.is_symlink() else "another run"
            raise UsageError(f"expected a folder for the page at {target}, found {found}")
        target.mkdir(mode=0o700, exist_ok=True)
        texts = render_all(run, summary, baseline, f"../{run.resolve().name}")
    write_all(target, texts)
    return target / "report.html"


def _beside(run: Path, kind: str) -> Path:
    """Return the path of a folder next to a run, for example `RUN-report`."""
    path = run.resolve()
    return path.with_name(f"{path.name.removesuffix('.json')}-{kind}")


def _signature_lines(run: Path) -> list[str]:
    """Return who signed, as the statements claim: only `seatrial verify` checks the keys."""
    from reports.signing.signatures import signed_by

    return [
        one_line(
            f"signed  as {one.party} by {one.name or 'an unnamed person'} at {one.time}: "
            f"{one.decision} (the key is not checked here: seatrial verify)"
        )
        for one in signed_by(run)
    ]


def _table(summary: AcceptanceSummary, width: int = 0, plain: bool = False) -> str:
    from reports.text import acceptance_table

    columns = width or min(MAX_WIDTH, shutil.get_terminal_size().columns)
    return acceptance_table(summary, columns, _color() and not plain, _unicode() and not plain)


def _color() -> bool:
    """Return whether the terminal shows colours, and its user wants them."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return sys.stdout.isatty() and wanted


def _unicode() -> bool:
    return "utf" in (sys.stdout.encoding or "").lower()
