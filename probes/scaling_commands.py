"""`seatrial scaling`: the ladder alone, and what a run's ladder said, told again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from probes.refused import FOLDER, Refused

if TYPE_CHECKING:
    from scaling.retold import Ladder

MOST_NODES = 10**6  # that anyone may ask for
EVIDENCE = "ladder"  # its file may have a number, where a probe was run twice


@click.group()
def scaling() -> None:
    """Scaling from one node to many: run the ladder, explain it, predict beyond it."""


@scaling.command(context_settings={"ignore_unknown_options": True})
@click.option("--cluster", default="auto", show_default=True, metavar="WHERE")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(context: click.Context, cluster: str, options: tuple[str, ...]) -> None:
    """Run the ladder alone; OPTIONS go to pytest (--contract, --tier, --run-dir ...).

    One criterion accepts no cluster: where scaling passes, this exits 20 for those not looked at.
    """
    from probes.cli import run as suite

    context.invoke(suite, cluster=cluster, options=("-k", "test_scaling", *options))


@scaling.command()
@click.argument("run_folder", type=FOLDER)
@click.option("--limit", type=click.FloatRange(0, 1), help="The agreed efficiency, for its causes.")
def report(run_folder: Path, limit: float | None) -> None:
    """What each rung of RUN_FOLDER's ladder lost, and to what."""
    ladder = ladder_of(run_folder)
    for rung, why in zip(ladder.rungs[1:], ladder.explained(limit), strict=True):
        low, high = ladder.intervals[rung.count]
        share = f"{ladder.efficiency(rung):.3f} ({low:.3f} to {high:.3f} {ladder.over})"
        click.echo(
            f"{rung.count} nodes  efficiency {share}  {rung.tokens_per_second:,.0f} tokens/s,"
            f" {rung.tokens_per_rank:,} tokens per GPU and step"
        )
        click.echo(f"  {why}")
        for cause in why.causes:
            click.echo(f"  {cause.code} {cause.where}: {cause.said}")


@scaling.command()
@click.argument("run_folder", type=FOLDER)
@click.option(
    "--nodes",
    multiple=True,
    type=click.IntRange(2, MOST_NODES),
    default=(16, 64, 256, 1024),
    show_default=True,
)
def predict(run_folder: Path, nodes: tuple[int, ...]) -> None:
    """What more NODES would do, from RUN_FOLDER's ladder: a prediction, never a measurement."""
    ladder = ladder_of(run_folder)
    try:
        seen = ladder.foreseen(sorted({*nodes}))
    except ValueError as error:
        raise Refused(str(error)) from None
    load = f"{ladder.rungs[-1].tokens_per_rank:,} tokens per GPU and step"
    click.echo("predicted, not measured:")
    for one in seen.predictions:
        click.echo(
            f"  {one.nodes:5} nodes  efficiency {one.efficiency:.3f}"
            f"  (nine of ten within {one.low:.3f} to {one.high:.3f}), {load}"
        )
    click.echo("assumed:")
    for words in seen.assumptions:
        click.echo(f"  - {words}")


def ladder_of(run_folder: Path) -> Ladder:
    """The ladder that a run measured.  Refused where it has none that can be read."""
    from reports.store import UnreadableRun, load
    from reports.untrusted import one_line
    from scaling.retold import retold

    try:
        record = load(run_folder)
    except UnreadableRun as error:
        raise Refused(str(error)) from None
    names = [
        evidence.path
        for result in record.of("SCALING")
        for evidence in result.evidence
        if Path(evidence.path).name.startswith(EVIDENCE)
    ]
    if not names:
        raise Refused(f"{run_folder} has no ladder, expected a run of SCALING that measured one")
    try:
        return retold(json.loads((run_folder / names[-1]).read_text(encoding="utf-8")))
    except OSError as error:
        said = error.strerror or "not a file"
    except UnicodeDecodeError:
        said = "expected text, found other bytes"
    except RecursionError:
        said = "expected a ladder, found lists in lists without end"
    except ValueError as error:
        said = str(error)
    raise Refused(one_line(f"{run_folder / names[-1]} cannot be read: {said}"))
