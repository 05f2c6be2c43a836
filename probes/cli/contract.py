"""`seatrial contract`: check, list, show and write contracts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from probes.cli.errors import PATH_TYPE, UsageError, refuse_unusable
from reports.numbers import quantity
from reports.sanitize import one_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from probes.acceptance.contract import Contract
    from probes.acceptance.criteria.criterion import Measure
    from reports.measurement import Limit


@click.group(short_help="Check, list, show and write contracts.")
def contract() -> None:
    """Contracts: the criteria and limits agreed before a run."""


@contract.command(
    short_help="Check a contract, and show its limits.",
    epilog="Example: seatrial contract check mine.toml",
)
@click.argument("file")
def check(file: str) -> None:
    """Check that FILE (or a shipped contract's name) is a contract, and show what it asks for."""
    from probes.acceptance.contract import load
    from probes.acceptance.criteria import CRITERIA
    from probes.acceptance.owed import judged_names

    with refuse_unusable():
        loaded = load(file)
    click.echo(one_line(f"{loaded.name} @ {loaded.sha256[:8]}: {loaded.title}"))
    judged = judged_names(loaded.tier, loaded.cluster, loaded.limited_names)
    for word, text in _summary(loaded, judged):
        click.echo(f"{word:9} {one_line(text)}")
    for id, row in CRITERIA.items():
        reason = f"  (not required: {loaded.optional[id]})" if id in loaded.optional else ""
        click.echo(f"{id}  {one_line(loaded.title_of(id) + reason)}")
        for name, measure in row.measures.items():
            limit, is_judged = loaded.limit(id, name), f"{id}.{name}" in judged
            text = _without_limit(measure, is_judged)
            if limit:
                text = f"{limit}{_band(limit)}  ({limit.because})"
            click.echo(f"  {name:20} {one_line(text)}")


def _summary(loaded: Contract, judged: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield what was ordered, in a few lines, and what would stay UNPROVEN for lack of a limit."""
    from probes.acceptance.criteria import CRITERIA

    terms = loaded.cluster
    yield "tier", loaded.tier
    nodes, gpus = (count or "any number of" for count in (terms.nodes, terms.gpus_per_node))
    yield "ordered", f"{nodes} nodes, {gpus} x {terms.gpu_model or 'any GPU'}"
    rate = f", {terms.rail_count} x {terms.line_rate_gbps:g} Gbit/s" if terms.line_rate_gbps else ""
    yield "fabric", f"{terms.fabric or 'what the cluster shows'}{rate}"
    for waiver in loaded.waivers:
        yield "waiver", f"{waiver.id}: {waiver.criterion} until {waiver.until}, {waiver.name}"
    for name, percent in loaded.baseline.items():
        yield "baseline", f"{name}: at most {percent:g} % worse than before"
    open_ones = [
        f"{id}.{name}"
        for id, row in CRITERIA.items()
        for name, measure in row.measures.items()
        if f"{id}.{name}" in judged and loaded.judges(id, name) and not loaded.limit(id, name)
        if not (measure.from_run or measure.derived_in_run)
    ]
    if open_ones:
        yield "UNPROVEN", f"without a limit: {', '.join(open_ones)}"
    if terms.nodes is None:
        yield "UNPROVEN", "without `nodes`, or --nodes: the number of nodes"


def _band(limit: Limit) -> str:
    from probes.acceptance.drafts.toml_lines import marginal_bound

    bound = marginal_bound(limit)
    side = "below" if limit.high is None else "above"
    return f", MARGINAL {side} {quantity(bound, limit.unit)}" if bound is not None else ""


def _without_limit(measure: Measure, is_judged: bool) -> str:
    """Describe where the limit of a measure comes from if the contract has none."""
    if not is_judged:
        return "not judged by this contract"
    if measure.derived_in_run:
        return "derived from the GPU's name, where it is known"
    return f"from the run: {measure.from_run}" if measure.from_run else "none: unproven"


@contract.command(
    "list",
    short_help="List the contracts of seatrial.",
    epilog="Example: seatrial contract list",
)
def list_() -> None:
    """List the contracts that come with seatrial."""
    from probes.acceptance.contract import load, shipped_contracts

    for name in shipped_contracts():
        click.echo(f"{name:14} {load(name).title}")


@contract.command(
    short_help="Print a contract of seatrial.",
    epilog="Example: seatrial contract show h100-ndr400 > mine.toml",
)
@click.argument("name")
def show(name: str) -> None:
    """Print the file of the shipped contract NAME, to copy it."""
    from probes.acceptance.contract import load, shipped_contracts

    if name not in shipped_contracts() and "/" not in name and Path(name).is_file():
        raise UsageError(f"{name} is a file here: expected the name of a shipped contract")
    with refuse_unusable():
        click.echo(load(name).text.decode(), nl=False)


@contract.command(
    short_help="Write a contract: it asks, or reads a run.",
    epilog="""\b
    Examples:
      seatrial contract new mine.toml
      seatrial contract new --template h100-ndr400 mine.toml
      seatrial contract new --from runs/first mine.toml""",
)
@click.option("--from", "run", type=PATH_TYPE, help="Take what this run found; ask nothing.")
@click.option("--template", metavar="NAME", help="The shipped contract to begin with.")
@click.argument("file", type=PATH_TYPE, default="seatrial.toml")
def new(run: Path | None, template: str | None, file: Path) -> None:
    """Write FILE (seatrial.toml), a contract with the reason of each limit.

    Without --from it asks what was ordered. With --from it takes what a run found: change that to
    what was ordered. A file that exists is never overwritten.
    """
    from probes.acceptance.contract import parse

    if run and template:
        raise UsageError("expected --from or --template, found both: drop one")
    if os.path.lexists(file):
        raise UsageError(f"{file} exists already: give another name, or move it away")
    if not os.access(file.absolute().parent, os.W_OK | os.X_OK):
        raise UsageError(f"{file.absolute().parent} cannot be written, or is no folder")
    text = _draft_from(run) if run else _ask(template)
    with refuse_unusable():
        parse(text.encode(), f"the contract for {file}")
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(f"{file} exists already: give another name, or move it away") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    todo = "change what was seen to what was ordered, then " if run else ""
    click.echo(f"wrote {one_line(file)}: {todo}`seatrial contract check {one_line(file)}`")


def _draft_from(run: Path) -> str:
    from probes.acceptance.drafts.from_run import draft_contract
    from probes.rejudge.limit_check import read_verified

    with refuse_unusable():
        record = read_verified(run)
        try:
            return draft_contract(record, run.resolve().name)
        except ValueError as error:
            raise UsageError(f"no contract can be drafted from {run}: {error}") from None


def _ask(template: str | None) -> str:
    from probes.acceptance.contract import shipped_contracts
    from probes.acceptance.drafts.from_answers import OTHER, real_contracts
    from probes.cli.ask_terms import ask_contract

    names = [*real_contracts(), OTHER]
    if template in shipped_contracts() and template not in names:
        shown = f"`seatrial contract show {template} > mine.toml`, and change it"
        raise UsageError(f"--template: {template} is a rehearsal, which is not asked for: {shown}")
    if template is not None and template not in names:
        raise UsageError(f"--template: expected one of {', '.join(names)}, found {template!r}")
    return ask_contract(template)
