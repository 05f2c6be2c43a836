"""`seatrial again`: repeats a part of a run, as the run was started."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from probes.cli.errors import PATH_TYPE, UsageError, refuse_unusable
from probes.cli.run import TO_PYTEST, RunCommand, run_suite
from reports.sanitize import one_line

if TYPE_CHECKING:
    from reports.record import RunRecord

# What a run's reproduce command may say of how it was started, by key of the option.
KEYS = ("cluster", "tier", "contract", "nodes")


@click.command(
    cls=RunCommand,
    short_help="Repeat a part of a run.",
    options_metavar="[OPTIONS] [-- PYTEST_OPTIONS]",
    epilog="""\b
    Examples:
      seatrial again FABRIC --run runs/2026-11-20T221703Z-node0
      seatrial again FABRIC GANG --run runs/first --run-dir runs/second""",
)
@click.argument("criteria", nargs=-1, required=True, metavar="CRITERION...")
@click.option("--run", "run_folder", type=PATH_TYPE, required=True, help="The run to repeat.")
@click.option("--run-dir", metavar="DIR", help="Where to write the new run.")
@click.pass_context
def again(
    context: click.Context, criteria: tuple[str, ...], run_folder: Path, run_dir: str | None
) -> None:
    """Repeat criteria of a run, with its cluster, contract, tier and number of nodes.

    A part of a run is PARTIAL: it can fail, and it accepts nothing. The contract's file must be
    the one of the run, unchanged. Start it in the folder in which the run was started.
    """
    from probes.rejudge.limit_check import read_verified
    from probes.terminal.settings import OptionError, read_only

    try:
        only = read_only(",".join(criteria))
    except OptionError as error:
        raise UsageError(str(error).replace("--only", "CRITERION")) from None
    with refuse_unusable():
        record = read_verified(run_folder)
    values = {**read_options(record), "only": ",".join(only), "run_dir": run_dir}
    words = [f"--{key.replace('_', '-')} {shlex.quote(v)}" for key, v in values.items() if v]
    click.echo(one_line(f"again   seatrial run {' '.join(words)}"))
    click.echo("PARTIAL a part of a run can fail, and it accepts nothing")
    sys.exit(run_suite(values, context.meta[TO_PYTEST]))


def read_options(record: RunRecord) -> dict[str, str | None]:
    """Return the options that a run was started with, by key.

    Raises UsageError where the run does not say, or where its contract is not at hand, unchanged.
    """
    command = next((one.reproduce for one in record.results if one.reproduce), "")
    try:
        program, _, *words = shlex.split(command)
        words = words[:-2] if program == "seatrial" and words[-2:-1] == ["-k"] else words
        given = dict(zip(words[::2], words[1::2], strict=True))
    except ValueError:  # fewer words, an option without a value, or an open quote
        program, given = "", {}
    given = {name.removeprefix("--"): value for name, value in given.items()}
    if (
        program not in ("pytest", "seatrial")
        or "cluster" not in given
        or not given.keys() <= {*KEYS}
    ):
        raise UsageError(f"run {record.id} does not say how it was started: it ran no probe")
    _check_contract(record, given.get("contract"))
    nodes = record.cluster.get("terms", {}).get("nodes")
    if isinstance(nodes, int) and record.cluster.get("kind") != "local":
        given.setdefault("nodes", str(nodes))
    return {**dict.fromkeys(KEYS), **given}


def _check_contract(record: RunRecord, name: str | None) -> None:
    from probes.acceptance.contract import ContractError, load
    from probes.acceptance.session import DEFAULT_CONTRACT

    if name is None:
        if Path(DEFAULT_CONTRACT).exists():
            raise UsageError(
                f"run {record.id} had no contract, and this folder has {DEFAULT_CONTRACT}: "
                "start it in another folder"
            )
        return
    try:
        found = load(name).sha256
    except ContractError as error:
        raise UsageError(f"the contract of run {record.id} is not at hand: {error}") from None
    if found != record.contract.sha256:
        raise UsageError(
            f"contract {name} changed since run {record.id}: expected "
            f"{record.contract.sha256[:8]}, found {found[:8]}"
        )
