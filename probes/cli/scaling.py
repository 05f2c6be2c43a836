"""`seatrial scaling`: the ladder alone, and what a run's ladder said, told again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from probes.cli.errors import FOLDER, Refused
from probes.cli.run import run as suite

if TYPE_CHECKING:
    from reports.record import Limit, ProbeResult
    from scaling.loss.ladder_result import Ladder

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

    context.invoke(suite, cluster=cluster, options=("-k", "test_scaling", *options))


@scaling.command()
@click.argument("run_folder", type=FOLDER)
@click.option(
    "--limit",
    type=click.FloatRange(0, 1, min_open=True),
    help="The efficiency to name causes by, instead of the run's own limit.",
)
def report(run_folder: Path, limit: float | None) -> None:
    """What each rung of RUN_FOLDER's ladder lost, to what, and what made it wrong."""
    from probes.scaling.judge import WRONG, accused, believed, held_up, wrong
    from probes.scaling.plan import said
    from probes.scaling.run_ladder import wanted
    from reports.record import Limit
    from reports.sanitize import one_line

    result, ladder = measured(run_folder)
    agreed = limit_of(result, "efficiency")
    if limit is not None:
        agreed = Limit(low=limit, unit="ratio", because="as asked")
    wish = f"expected {agreed} ({agreed.because})" if agreed else "no limit: causes need --limit"
    click.echo(one_line(f"efficiency, {wish}"))
    explained = ladder.explained(wanted(agreed))
    causes = accused(ladder, explained, agreed)
    if not explained:
        click.echo("one rung only: nothing to compare, for one node cannot show scaling")
    for rung, why in zip(ladder.rungs[1:], explained, strict=True):
        low, high = ladder.intervals[rung.count]
        value, doubt = believed(ladder.efficiency(rung))
        verdict = f": {agreed.judge(value).value}" if agreed else ""
        share = f"{ladder.efficiency(rung):.3f} ({low:.3f} to {high:.3f} {ladder.over})"
        click.echo(
            f"{rung.count} nodes  efficiency {share}, {rung.load},"
            f" {rung.tokens_per_second:,.0f} tokens/s{verdict}"
        )
        click.echo(f"  {one_line(doubt or why)}")
        for cause in causes.get(rung.count, []):
            click.echo(f"  {cause.code} {one_line(f'{cause.where}: {cause.said}')}")
    for measurement in result.measurements:
        if measurement.name == "strong_efficiency":
            click.echo(one_line(measurement.sentence()))
    found = [one for one in result.findings if one.code in WRONG]
    found += [one for rung in ladder.rungs for one in wrong(rung, said(rung.count))]
    found += held_up(ladder.rungs, limit_of(result, "straggler"))
    for words in dict.fromkeys(one_line(f"{one.code} {one.statement}") for one in found):
        click.echo(words)


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
    click.echo("predicted, not measured:")
    for one in seen.predictions:
        click.echo(
            f"  {one.nodes:5} nodes  efficiency {one.efficiency:.3f}"
            f"  (nine of ten within {one.low:.3f} to {one.high:.3f}), {seen.load}"
        )
    click.echo("assumed:")
    for words in seen.assumptions:
        click.echo(f"  - {words}")


def ladder_of(run_folder: Path) -> Ladder:
    """The ladder that a run measured.  Refused where it has none that can be read."""
    return measured(run_folder)[1]


def limit_of(result: ProbeResult, name: str) -> Limit | None:
    """What the run held this measure to."""
    limits = [one.limit for one in result.measurements if one.name == name and one.limit]
    return limits[0] if limits else None


def measured(run_folder: Path) -> tuple[ProbeResult, Ladder]:
    """What the last SCALING probe of a run that climbed a ladder saw, and the ladder.

    Refused where there is none that can be read.
    """
    from probes.scaling.judge import WRONG
    from reports.sanitize import one_line
    from reports.store import UnreadableRun, load
    from scaling.loss.ladder_result import retold

    try:
        record = load(run_folder)
    except UnreadableRun as error:
        raise Refused(str(error)) from None
    results = record.of("SCALING")
    ladders = [
        (result, run_folder / evidence.path)
        for result in results
        for evidence in result.evidence
        if Path(evidence.path).name.startswith(EVIDENCE)
    ]
    if not ladders:
        failed = [f.statement for one in results for f in one.findings if f.code in WRONG]
        said = "; ".join([f"{run_folder} has no ladder", *failed])
        raise Refused(one_line(f"{said}: expected a run of SCALING that measured one"))
    result, file = ladders[-1]
    try:
        return result, retold(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        said = error.strerror or "not a file"
    except UnicodeDecodeError:
        said = "expected text, found other bytes"
    except RecursionError:
        said = "expected a ladder, found lists in lists without end"
    except ValueError as error:
        said = str(error)
    raise Refused(one_line(f"{file} cannot be read: {said}"))
