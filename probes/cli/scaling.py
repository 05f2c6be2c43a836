"""`seatrial scaling`: runs the ladder alone, or analyses the ladder of a run again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from probes.cli import command as cli
from probes.cli.run import TO_PYTEST, RunCommand, run_options, run_suite
from probes.session.options import BY_KEY
from reports.numbers import percent
from reports.sanitize import one_line

if TYPE_CHECKING:
    from reports.measurement import Limit
    from reports.record import ProbeResult
    from scaling.loss.ladder_result import Ladder

LADDER_OPTIONS = tuple(key for key in BY_KEY if key not in ("only", "paths_from"))
MAX_NODES = 10**6  # that a user may ask for
LADDER_PREFIX = "ladder"  # a number follows in the file name where a probe ran twice


@click.group(short_help="Run, explain and predict scaling.")
def scaling() -> None:
    """Training on 1, 2, 4 ... nodes: measure it, explain it, predict more nodes."""


@cli.command(
    "Run only SCALING, on 1, 2, 4 ... nodes.",
    "seatrial scaling run --contract mine.toml --tier standard",
    parent=scaling,
    cls=RunCommand,
)
@run_options(*LADDER_OPTIONS, cluster="auto")
@click.pass_context
def run(context: click.Context, /, **values: str | None) -> None:
    """Run SCALING only: training on 1, 2, 4, 8 ... nodes.

    Even if SCALING passes, the exit code is 20: the other criteria were not tested.
    """
    sys.exit(run_suite({**values, "only": "SCALING"}, context.meta[TO_PYTEST]))


@cli.command(
    "Explain why more nodes lose efficiency.",
    "seatrial scaling report runs/first --limit 0.9",
    parent=scaling,
)
@click.argument("run_folder", type=cli.PATH)
@click.option(
    "--limit",
    type=click.FloatRange(0, 1, min_open=True),
    help="Name causes where the efficiency is below this limit, such as 0.9 (default: the run's).",
)
def report(run_folder: Path, limit: float | None) -> None:
    """Explain how much speed each node count of RUN_FOLDER lost, and what caused the loss."""
    from probes.scaling.judge import INVALID_CODES, find_invalid_rung, find_stragglers_beyond
    from probes.scaling.run_ladder import node_count_text
    from reports.measurement import Limit

    result, ladder = load_scaling_run(run_folder)
    agreed = limit_of(result, "efficiency")
    if limit is not None:
        agreed = Limit(low=limit, unit="ratio", because="from --limit")
    no_limit = "no limit. Give --limit to see causes"
    target = f"expected {agreed} ({agreed.because})" if agreed else no_limit
    click.echo(one_line(f"efficiency: {target}"))
    _print_rungs(ladder, agreed)
    for measurement in result.measurements:
        if measurement.name in ("strong_efficiency", "mfu", "tokens_per_s"):
            click.echo(one_line(measurement.sentence()))
    kept = (*INVALID_CODES, "SCALE-SLOW-BASE")  # judged by limits that no option changes
    findings = [f for f in result.findings if f.code in kept]
    for rung in ladder.rungs:
        findings += find_invalid_rung(rung, node_count_text(rung.count))
    findings += find_stragglers_beyond(ladder.rungs, limit_of(result, "straggler"))
    cli.print_lines(dict.fromkeys(one_line(f"{f.code} {f.statement}") for f in findings))


def _print_rungs(ladder: Ladder, agreed: Limit | None) -> None:
    """Print the efficiency of each rung but the first, its explanation and causes."""
    from probes.scaling.judge import causes_to_report, proven_efficiency
    from probes.scaling.run_ladder import required_efficiency

    explanations = ladder.explanations(required_efficiency(agreed))
    causes = causes_to_report(ladder, explanations, agreed)
    if not explanations:
        click.echo("only one node count was measured, so there is nothing to compare")
    for rung, explanation in zip(ladder.rungs[1:], explanations, strict=True):
        low, high = ladder.intervals[rung.count]
        value, doubt = proven_efficiency(ladder, rung, agreed)
        verdict = f": {agreed.judge(value).value}" if agreed else ""
        interval = f"{percent(low)} to {percent(high)} {ladder.interval_basis}"
        share = f"{percent(ladder.efficiency(rung))} ({interval})"
        click.echo(
            f"{rung.count} nodes  efficiency {share}, {rung.load_text},"
            f" {rung.tokens_per_second:,.0f} tokens/s{verdict}"
        )
        click.echo(f"  {one_line(doubt or explanation)}")
        for cause in causes.get(rung.count, []):
            click.echo(f"  {cause.code} {one_line(f'{cause.where}: {cause.statement}')}")


@cli.command(
    "Predict the efficiency on more nodes.",
    "seatrial scaling predict runs/first",
    "seatrial scaling predict runs/first --nodes 64",
    parent=scaling,
)
@click.argument("run_folder", type=cli.PATH)
@click.option(
    "--nodes",
    multiple=True,
    type=click.IntRange(2, MAX_NODES),
    default=(16, 64, 256, 1024),
    show_default=True,
    help="Number of nodes to predict; may be repeated.",
)
def predict(run_folder: Path, nodes: tuple[int, ...]) -> None:
    """Predict the efficiency on more nodes from what RUN_FOLDER measured; runs nothing."""
    _, ladder = load_scaling_run(run_folder)
    with cli.refuse(ValueError):
        forecast = ladder.forecast(sorted({*nodes}))
    click.echo("predicted, not measured:")
    for point in forecast.predictions:
        click.echo(
            f"  {point.nodes:5} nodes  efficiency {percent(point.efficiency)}"
            f"  (90 % of cases: {percent(point.low)} to {percent(point.high)}), {forecast.load}"
        )
    click.echo("assumed:")
    cli.print_lines(f"  - {assumption}" for assumption in forecast.assumptions)


def limit_of(result: ProbeResult, name: str) -> Limit | None:
    """Find the limit that the run applied to this measure; None if it had none."""
    return next((m.limit for m in result.measurements if m.name == name and m.limit), None)


def load_scaling_run(run_folder: Path) -> tuple[ProbeResult, Ladder]:
    """Load the last SCALING result of a run that has a ladder, and the ladder.

    Raises UsageError where there is none that can be read.
    """
    from probes.scaling.judge import INVALID_CODES
    from probes.session.rejudge import read_verified

    with cli.refuse_unusable():
        record = read_verified(run_folder)
    results = record.results_of("SCALING")
    files = [(result, run_folder / one.path) for result in results for one in result.evidence]
    ladders = [(result, file) for result, file in files if file.name.startswith(LADDER_PREFIX)]
    if not ladders:
        failed = [f.statement for item in results for f in item.findings if f.code in INVALID_CODES]
        message = "; ".join([f"{run_folder} has no efficiency of SCALING", *failed])
        raise cli.UsageError(one_line(f"{message}. Give a run that measured the efficiency"))
    result, file = ladders[-1]
    return result, _read_ladder(file)


def _read_ladder(file: Path) -> Ladder:
    from scaling.loss.ladder_result import load_ladder

    try:
        return load_ladder(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        message = error.strerror or "not a file"
    except UnicodeDecodeError:
        message = "expected text, found other bytes"
    except RecursionError:
        message = "its lists are nested too deeply"
    except ValueError as error:
        message = str(error)
    raise cli.UsageError(one_line(f"{file} cannot be read: {message}"))
