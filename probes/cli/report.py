"""Commands that show what runs have found: report, history and explain."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probes.cli import command as cli
from reports.command import EXIT_USAGE
from reports.sanitize import closest_name, one_line, probe_words

if TYPE_CHECKING:
    from probes.check.declarations import CriterionRow
    from reports.acceptance import AcceptanceSummary
    from reports.orders import FilledFinding
    from reports.record import Finding, RunRecord
    from reports.text import TextFormatter


RUN_ARGUMENT = click.argument("run_folder", type=cli.PATH, required=False)


@cli.command(
    "Verify a run, and write its page.",
    "seatrial report --open",
    "seatrial report runs/2026-11-20T221703Z-node0",
    "seatrial report runs/second --baseline runs/first",
    "seatrial report runs/first --share",
)
@RUN_ARGUMENT
@click.option("--baseline", type=cli.PATH, help="Earlier run to compare with.")
@click.option(
    "--share", is_flag=True, help="Also write a copy to hand over, with aliases for all names."
)
@click.option("--open", "opened", is_flag=True, help="Open the page in a browser.")
def report(run_folder: Path | None, baseline: Path | None, share: bool, opened: bool) -> None:
    """Check that RUN_FOLDER is unchanged, show its result, write its page; needs no cluster.

    Without RUN_FOLDER, the newest run in runs/ is used. The exit code is that of the run.

    A run that has ended is never changed. If the new page differs from the run's own page, for
    example with a baseline, the new page goes to RUN_FOLDER-report. The copy of --share goes to
    RUN_FOLDER-shared. RUN_FOLDER may also be a record.json alone. A record.json cannot be
    verified, so its run is never accepted: the best possible exit code is 20.
    """
    from probes.session.rejudge import read_summary, read_whole
    from reports.share.shared_copy import write_shared

    run_folder = run_folder or cli.newest_run()
    with cli.refuse_unusable():
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
    cli.print_lines(_signature_lines(run_folder))
    if opened and click.launch(str(page)):
        raise cli.UsageError(f"no browser starts here: copy {page} to a machine with a browser")
    sys.exit(EXIT_USAGE if before and before.integrity.problems else summary.exit_code)


@cli.command(
    "Print a run's result; writes nothing.",
    "seatrial show",
    "seatrial show tests/recordings/runs/tcp-fallback",
)
@RUN_ARGUMENT
@click.option("--width", default=0, help="Width in columns (default: the terminal's, at most 100).")
@click.option("--ascii", "plain", is_flag=True, help="Use only ASCII, and no colour.")
def show(run_folder: Path | None, width: int, plain: bool) -> None:
    """Check that RUN_FOLDER is unchanged, and print its result, worst first; writes nothing.

    Without RUN_FOLDER, the newest run in runs/ is used. The exit code is that of the run.
    """
    from probes.session.rejudge import read_whole

    with cli.refuse_unusable():
        summary = read_whole(run_folder or cli.newest_run())
    click.echo(_table(summary, width, plain))
    sys.exit(summary.exit_code)


@cli.command("Judge a run by another contract.", "seatrial rejudge runs/first --contract mine.toml")
@click.argument("run_folder", type=cli.PATH)
@click.option("--contract", required=True, metavar="NAME|FILE", help="Contract to judge by.")
def rejudge(run_folder: Path, contract: str) -> None:
    """Judge the measurements of RUN_FOLDER by another contract; needs no cluster.

    RUN_FOLDER stays unchanged. The result goes to a new folder, RUN_FOLDER-by-CONTRACT.
    """
    from probes.contract.contract import load, refuse_draft
    from probes.session.rejudge import read_summary, rejudge_run

    with cli.refuse_unusable():
        refuse_draft(agreed := load(contract), contract)
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
    from reports.run_folder.event_log import SUMS

    texts = render_all(run, summary, baseline)
    if all(read_content(run / name) == text.encode() for name, text in texts.items()):
        return run / "report.html"
    target = run
    if run.is_file() or (run / SUMS).exists() or summary.integrity.problems:
        target = _beside(run, "report")
        if target.is_symlink() or (target / SUMS).exists():
            found = "a link" if target.is_symlink() else "another run"
            raise cli.UsageError(f"the page cannot go to {target}: that path is {found}. Rename it")
        target.mkdir(mode=0o700, exist_ok=True)
        texts = render_all(run, summary, baseline, f"../{run.resolve().name}")
    write_all(target, texts)
    return target / "report.html"


def _beside(run: Path, kind: str) -> Path:
    """Return the path of a folder next to a run, for example `RUN-report`."""
    path = run.resolve()
    return path.with_name(f"{path.name.removesuffix('.json')}-{kind}")


def _signature_lines(run: Path) -> Iterator[str]:
    """Yield who signed, as the statements claim: only `seatrial verify` checks the keys."""
    from reports.signing.signatures import signed_by

    for one in signed_by(run):
        who = f"{one.party} by {one.name or 'an unnamed person'} at {one.time}"
        yield one_line(f"signed  as {who}: {one.decision} (`seatrial verify` checks the key)")


def _table(summary: AcceptanceSummary, width: int = 0, plain: bool = False) -> str:
    from reports.text import acceptance_table

    color = _color() and not plain  # first: it refuses a closed output
    unicode = cli.is_unicode() and not plain
    width = width or cli.terminal_width()
    return acceptance_table(summary, width, color, unicode, decision_first=True)


def _color() -> bool:
    """Return whether the terminal shows colours, and its user wants them."""
    if sys.stdout is None:  # as after `>&-`
        raise cli.UsageError("standard output is closed. Expected: a terminal, a file or a pipe")
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return sys.stdout.isatty() and wanted


WIDTH_OPTION = click.option(
    "--width", default=0, help="Width in columns (default: the terminal's, at least 80)."
)
LEAST_WIDTH = 80  # columns: two runs and their change do not fit less


@cli.command("Show what changed between runs.", "seatrial compare runs/first runs/second")
@click.argument("runs", nargs=-1, required=True, type=cli.PATH, metavar="FIRST RUN...")
@WIDTH_OPTION
@click.option("--all", "every", is_flag=True, help="Also list what only one run measured.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, a row per measure.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(runs: tuple[Path, ...], width: int, every: bool, as_csv: bool, as_json: bool) -> None:
    """Compare each RUN with the FIRST: show changed verdicts, and changes beyond noise.

    A run is a run folder or a record.json. Exit code 0: no new failure. 1: a run has new
    failures. 4: a run cannot be read, or was changed since it was written.
    """
    from probes.session.rejudge import read_summary
    from reports.frames import compare as comparing

    if len(runs) < 2:
        raise cli.UsageError("expected two runs or more to compare, found one")
    with cli.refuse_unusable():
        summaries = [read_summary(run) for run in runs]
    comparison = comparing.compare_runs(summaries, comparing.run_letters(len(runs)))
    if as_csv:
        _print_csv(comparing.comparison_csv(comparison), comparison.notes)
    elif as_json:
        text = comparing.comparison_json(comparison)
        click.echo(text.replace("##", "#\\u0023"))  # ## marks a CI command
    else:
        cli.print_lines(comparing.comparison_lines(comparison, _formatter(width), every=every))
    if any(summary.integrity.problems for summary in summaries):
        sys.exit(EXIT_USAGE)
    sys.exit(1 if (comparison.kinds == comparing.NEW_FAILURES).any() else 0)


@cli.command("List runs, and how measures change.", "seatrial history runs")
@click.argument("folder", type=cli.PATH)
@WIDTH_OPTION
@click.option("--all", "every", is_flag=True, help="Show the trend of each measure.")
@click.option(
    "--csv",
    "table",
    type=click.Choice(["runs", "trends"]),
    help="Print CSV: a row for each run (runs), or for each measure (trends).",
)
def history(folder: Path, width: int, every: bool, table: str | None) -> None:
    """List all runs below FOLDER, and each measure that drifts.

    A measure drifts if its newest value is outside its usual range. A run that cannot be read, or
    was changed since it was written, is listed with the reason. The exit code is then 4.
    """
    from probes.session.rejudge import read_summary
    from reports.frames.history import build_history, history_lines, read_found
    from reports.frames.measurements import csv_text
    from reports.run_folder.event_log import find_runs

    found = [read_found(path, read_summary) for path in find_runs(folder)]
    if not found:
        raise cli.UsageError(f"expected runs below {folder}, found none")
    past = build_history(found)
    if table:
        _print_csv(csv_text(past.runs if table == "runs" else past.trends), [])
    else:
        cli.print_lines(history_lines(past, _formatter(width), every=every))
    bad = [one for one in found if one.summary is None or one.summary.integrity.problems]
    sys.exit(EXIT_USAGE if bad else 0)


def _formatter(width: int) -> TextFormatter:
    from reports.text import TextFormatter

    columns = width or max(LEAST_WIDTH, shutil.get_terminal_size().columns)
    return TextFormatter(max(LEAST_WIDTH, columns), unicode=cli.is_unicode())


def _print_csv(text: str, notes: Iterable[str]) -> None:
    """Print CSV in UTF-8, whatever the encoding of the terminal; notes go to stderr."""
    for note in notes:
        click.echo(one_line(f"note: {note}"), err=True)
    click.echo(text.encode(), nl=False)


WIDTH = 80  # columns of the narrowest usual terminal


@cli.command(
    "Explain a finding, a measure or a criterion.",
    "seatrial explain FAB-TCP",
    "seatrial explain FAB-TCP --run runs/first",
    "seatrial explain busbw",
    "seatrial explain GANG",
    "seatrial explain",
)
@click.argument("code", required=False)
@click.option(
    "--run",
    "run_folder",
    type=cli.PATH,
    metavar="RUN",
    help="Run folder: show the findings of that run, with its names of nodes and GPUs.",
)
def explain(code: str | None, run_folder: Path | None) -> None:
    """Explain what a finding's CODE means and what to do; without CODE, list all of them.

    CODE may also be a criterion, or a measure, such as busbw or FABRIC.busbw. In commands, words
    such as NODE stand for names. With --run, the names in that run's findings of this CODE replace
    those words.
    """
    from probes.session.rejudge import read_summary
    from reports.orders import again_command
    from reports.text import TextFormatter

    fmt = TextFormatter(WIDTH, unicode=cli.is_unicode())
    if code is None:
        if run_folder:
            raise cli.UsageError("expected a CODE with --run, found none")
        cli.print_lines(_list_codes(fmt))
        return
    if run_folder is None and (described := _describe_declared(code, fmt)):
        cli.print_lines(described)
        return
    name = _find_code(code)
    if run_folder is None:
        cli.print_lines(_describe_code(name, fmt))
        return
    with cli.refuse_unusable():
        record = read_summary(run_folder).record
    blocks = []
    for found in _findings_of(record, name):
        one = found.model_copy(update={"reproduce": again_command(record, found)})
        blocks.append("\n".join(_describe_finding(one, record.cluster, fmt)))
    click.echo("\n\n".join(blocks))


def _find_code(code: str) -> str:
    """Return a code of the catalogue, in capitals.  Raises UsageError with the nearest one."""
    from probes.check.registry import CRITERIA
    from probes.findings import CATALOGUE

    name = code.upper()
    if name in CATALOGUE:
        return name
    hint = "; `seatrial explain` lists the codes of all findings"
    if close := closest_name(name, [*CATALOGUE, *CRITERIA]):
        hint = f", did you mean {close}?"
    elif close := closest_name(code, [name for row in CRITERIA.values() for name in row.measures]):
        hint = f", did you mean the measure {close}?"
    raise cli.UsageError(f"no finding, criterion or measure is named {code!r}{hint}")


def _describe_declared(name: str, fmt: TextFormatter) -> list[str]:
    """Describe a criterion, or each measure of this name; nothing for another name."""
    from probes.check.registry import CRITERIA

    if row := CRITERIA.get(name.upper()):
        return list(_describe_criterion(row, fmt))
    criterion, _, measure = name.rpartition(".")
    key, ids = measure.lower(), ([criterion.upper()] if criterion else CRITERIA)
    rows = [row for id, row in CRITERIA.items() if key in row.measures and id in ids]
    return [line for row in rows for line in _describe_measure(row, key, fmt)]


def _describe_criterion(row: CriterionRow, fmt: TextFormatter) -> Iterator[str]:
    yield from fmt.wrap(row.title, f"{row.id}: ")
    yield from fmt.wrap(row.how, "how       ")
    yield from fmt.wrap(row.where, "where     ")
    yield from fmt.wrap("; ".join(row.needs), "needs     ")
    for probe in row.duties:
        yield from fmt.wrap(f"{probe_words(probe.test)} (tier {probe.tier})", "test      ")
    for name, measure in row.measures.items():
        yield from fmt.wrap(f"{name}: {measure.describe_limit()[0]}", "measure   ")


def _describe_measure(row: CriterionRow, name: str, fmt: TextFormatter) -> Iterator[str]:
    from reports.measurement import title_of

    measure = row.measures[name]
    limit, because = measure.describe_limit()
    limit += "; a value outside the limit is UNPROVEN, not FAIL" * row.only_doubts(measure)
    unit = f", in {measure.unit}" if measure.unit else f": a {measure.describe_unit()}"
    yield from fmt.wrap(f"{title_of(name)}{unit}", f"{row.id}.{name}: ", "  ")
    yield from fmt.wrap(limit, "limit     ")
    yield from fmt.wrap(because, "because   ")
    yield from fmt.wrap(row.describe_control(name), "self-test ")


def _list_codes(fmt: TextFormatter) -> Iterator[str]:
    from probes.findings import CATALOGUE

    for code, entry in CATALOGUE.items():
        yield from fmt.wrap(entry.meaning, f"{code:23} {entry.severity.value:9}")


def _describe_code(code: str, fmt: TextFormatter) -> Iterator[str]:
    """Describe a code of the catalogue; unknown names stand in capitals."""
    from probes.findings import CATALOGUE, find_makers, finding

    yield from _describe_finding(finding(code, CATALOGUE[code].meaning), {}, fmt)
    yield from fmt.wrap(find_makers(code), "made by ")


def _describe_finding(
    one: Finding, cluster: Mapping[str, Any], fmt: TextFormatter
) -> Iterator[str]:
    """Describe a finding, with the names that it and the facts of the cluster have."""
    from reports.orders import fill
    from reports.record import EFFECT
    from reports.redact import redact_text

    yield from fmt.wrap(redact_text(one.statement), f"{one.code}: ", "  ")
    yield from fmt.wrap(f"{one.severity.value} ({EFFECT[one.severity]})", "weight  ")
    yield from fmt.wrap(one.cause.value, "cause   ")
    if one.order:
        yield from _describe_order(fill(one, cluster), fmt)
    yield from fmt.wrap(redact_text(one.remedy), "more    ")
    if one.reproduce:
        yield from fmt.command(redact_text(one.reproduce), "again   ")


def _describe_order(filled: FilledFinding, fmt: TextFormatter) -> Iterator[str]:
    from reports.orders import break_command

    yield from fmt.wrap(filled.order, "do      ")
    for number, step in enumerate(filled.steps, 1):
        yield from fmt.wrap(f"on {step.on}:", f"{number:>6}. ")
        lines = break_command(step.command, fmt.width - 8)
        yield from (f"        {fmt.plain(line)}" for line in lines)
        yield from fmt.wrap(step.means, "          ")
    yield from fmt.wrap(filled.mended, "fixed when: ", " " * 8)


def _findings_of(record: RunRecord, code: str) -> list[Finding]:
    """List the findings of this code.  Raises UsageError if the run has none."""
    from probes.findings import join_names

    every = [one for result in record.results for one in result.findings]
    if found := [one for one in every if one.code == code]:
        return found
    others = join_names(dict.fromkeys(one.code for one in every))
    end = f". The run's findings: {others}" if others else ", and no other finding"
    raise cli.UsageError(f"the run has no finding {code}{end}")
