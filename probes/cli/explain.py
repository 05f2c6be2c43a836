"""`seatrial explain`: what a finding means, what to do, and how to know that it is mended."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from probes.cli.errors import PATH_TYPE, UsageError, refuse_unusable
from probes.spelling import closest_name

if TYPE_CHECKING:
    from reports.orders import FilledFinding
    from reports.record import Finding, RunRecord
    from reports.text import TextFormatter

WIDTH = 80  # columns of the narrowest usual terminal
MEANS = {
    "blocks": "no acceptance until it is mended",
    "degrades": "works, but slower or less surely",
    "notes": "information",
}


@click.command(
    short_help="Explain a finding, and what to do.",
    epilog="""\b
    Examples:
      seatrial explain FAB-TCP
      seatrial explain FAB-TCP --run runs/first
      seatrial explain""",
)
@click.argument("code", required=False)
@click.option("--run", "run_folder", type=PATH_TYPE, metavar="RUN", help="Fill in names of RUN.")
def explain(code: str | None, run_folder: Path | None) -> None:
    """Explain what a finding's CODE means and what to do; without CODE, list all of them.

    With --run, the commands have the names of that run's findings of this CODE.
    """
    from reports.text import TextFormatter

    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    fmt = TextFormatter(WIDTH, unicode=unicode)
    if code is None:
        if run_folder:
            raise UsageError("expected a CODE with --run, found none")
        click.echo("\n".join(_list_codes(fmt)))
        return
    name = _find_code(code)
    if run_folder is None:
        click.echo("\n".join(_describe_code(name, fmt)))
        return
    with refuse_unusable():
        record = _read_record(run_folder)
    findings = _findings_of(record, name)
    blocks = ["\n".join(_describe_finding(one, record, fmt)) for one in findings]
    click.echo("\n\n".join(blocks))


def _find_code(code: str) -> str:
    """Return a code of the catalogue, in capitals.  Raises UsageError with the nearest one."""
    from probes.findings.catalogue import CATALOGUE

    name = code.upper()
    if name in CATALOGUE:
        return name
    hint = "; `seatrial explain` lists them"
    if close := closest_name(name, CATALOGUE):
        hint = f", did you mean {close}?"
    raise UsageError(f"no finding has the code {code!r}{hint}")


def _list_codes(fmt: TextFormatter) -> Iterator[str]:
    from probes.findings.catalogue import CATALOGUE

    for code, entry in CATALOGUE.items():
        yield from fmt.wrap(entry.meaning, f"{code:23} {entry.severity.value:9}")


def _describe_code(code: str, fmt: TextFormatter) -> Iterator[str]:
    """Describe a code of the catalogue; unknown names stand in capitals."""
    from probes.findings import finding
    from probes.findings.catalogue import CATALOGUE, find_makers
    from reports.orders import fill

    entry = CATALOGUE[code]
    one = finding(code, entry.meaning)
    yield from fmt.wrap(one.statement, f"{code}: ", "  ")
    yield from _describe_class(one, fmt)
    yield from _describe_order(fill(one, {}), fmt)
    yield from fmt.wrap(entry.remedy, "more    ")
    yield from fmt.wrap(find_makers(code), "made by ")


def _describe_finding(one: Finding, record: RunRecord, fmt: TextFormatter) -> Iterator[str]:
    """Describe a finding of a run, with its names."""
    from reports.orders import fill
    from reports.redact import redact_text

    yield from fmt.wrap(redact_text(one.statement), f"{one.code}: ", "  ")
    yield from _describe_class(one, fmt)
    if one.order:
        yield from _describe_order(fill(one, record.cluster), fmt)
    yield from fmt.wrap(redact_text(one.remedy), "more    ")
    if one.reproduce:
        yield from fmt.command(redact_text(one.reproduce), "again   ")


def _describe_class(one: Finding, fmt: TextFormatter) -> Iterator[str]:
    severity = one.severity.value
    yield from fmt.wrap(f"{severity} ({MEANS[severity]})", "weight  ")
    yield from fmt.wrap(one.cause.value, "cause   ")


def _describe_order(filled: FilledFinding, fmt: TextFormatter) -> Iterator[str]:
    from reports.orders import break_command

    yield from fmt.wrap(filled.order, "do      ")
    for number, step in enumerate(filled.steps, 1):
        yield from fmt.wrap(f"on {step.on}:", f"{number:>6}. ")
        yield from (
            f"        {fmt.plain(line)}" for line in break_command(step.command, fmt.width - 8)
        )
        yield from fmt.wrap(step.means, "          ")
    yield from fmt.wrap(filled.mended, "mended  ")


def _read_record(run_folder: Path) -> RunRecord:
    from probes.rejudge.limit_check import read_summary

    return read_summary(run_folder).record


def _findings_of(record: RunRecord, code: str) -> list[Finding]:
    """List the findings of this code.  Raises UsageError if the run has none."""
    every = [one for result in record.results for one in result.findings]
    found = [one for one in every if one.code == code]
    if not found:
        raise UsageError(f"the run has no finding {code}{_other_codes(one.code for one in every)}")
    return found


def _other_codes(codes: Iterable[str]) -> str:
    from probes.findings import join_names

    others = join_names(dict.fromkeys(codes))
    return f"; it has {others}" if others else ", and no other"
