"""`seatrial run`: pytest on the suite's own probes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from probes.cli.errors import UsageError
from probes.requirements import lacking_sentence
from probes.terminal.options import OPTIONS, RunOption
from reports.command import CheckedCommand
from reports.sanitize import capitalise

Function = TypeVar("Function", bound=Callable[..., Any])
TO_PYTEST = "probes.cli.run.to_pytest"  # key of the context: the arguments after `--`


class RunCommand(CheckedCommand):
    """Command that passes to pytest what stands after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command's own arguments, and keep the others."""
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[TO_PYTEST] = args[end + 1 :]
        try:
            return super().parse_args(ctx, args[:end])
        except click.NoSuchOption as error:
            if error.possibilities:
                raise
            text = f"No such option {error.option_name!r}: options of pytest go after `--`."
            raise click.UsageError(text, ctx) from None


def run_options(*keys: str, **defaults: str) -> Callable[[Function], Function]:
    """Declare options of a run, as the plugin does; all of them, if no keys are given."""

    def declare(function: Function) -> Function:
        for option in reversed(OPTIONS):
            if not keys or option.key in keys:
                function = _declare_option(option, defaults.get(option.key))(function)
        return function

    return declare


def _declare_option(option: RunOption, default: str | None) -> Callable[[Function], Function]:
    return click.option(
        option.name,
        metavar=option.metavar,
        help=f"{capitalise(option.help)}.",
        default=default,
        show_default=default is not None,
        envvar=option.variable,
        shell_complete=_complete_value,
    )


def _complete_value(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the values that are names; files elsewhere."""
    from probes.acceptance.contract import shipped_contracts
    from probes.acceptance.criteria import CRITERIA
    from reports.record import TIERS

    names: dict[str, Sequence[str]] = {
        "cluster": ("auto", "local", "ray://"),
        "contract": shipped_contracts(),
        "tier": TIERS,
        "only": [*CRITERIA],
    }
    known = [*names.get(parameter.name or "", ())]
    found = [CompletionItem(name) for name in known if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


@click.command(
    cls=RunCommand,
    short_help="Run the acceptance suite on a cluster.",
    options_metavar="[OPTIONS] [-- PYTEST_OPTIONS]",
    epilog="""\b
    Examples:
      seatrial run --contract h100-ndr400 --nodes 8
      seatrial run --cluster local:4 --contract local --only FABRIC,GANG
      seatrial run --contract mine.toml -k fabric -- --maxfail 1""",
)
@run_options(cluster="auto")
@click.option("-k", "keyword", metavar="TEXT", help="Only probes whose names match: as pytest's.")
@click.option("-v", "--verbose", count=True, help="Print pytest's own lines too.")
@click.option("-q", "--quiet", count=True, help="Print no steps; -qq: only the table.")
@click.option("--collect-only", is_flag=True, help="List the probes, and run nothing.")
@click.pass_context
def run(
    context: click.Context,
    /,
    keyword: str | None,
    verbose: int,
    quiet: int,
    collect_only: bool,
    **values: str | None,
) -> None:
    """Run the acceptance suite, and nothing else: no plugin, conftest or setting of the place.

    A part of the suite (--only, -k) or a shorter tier than agreed can fail, and accepts nothing.
    Each option has a variable, as SEATRIAL_CLUSTER. What stands after -- goes to pytest.
    """
    words = ["-v"] * verbose + ["-q"] * quiet + ["--collect-only"] * collect_only
    words += ["-k", keyword] if keyword else []
    sys.exit(run_suite(values, [*words, *context.meta[TO_PYTEST]]))


def run_suite(values: Mapping[str, str | None], to_pytest: Sequence[str]) -> int:
    """Run pytest on the suite's probes with these options, by key; return its exit code."""
    # Before pytest is imported: plugins that it loads could change the run and its results.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)
    if lacking := lacking_sentence():
        raise UsageError(lacking)
    import pytest

    from probes.terminal.own_voice import OwnVoice

    base = ["--rootdir", str(Path.cwd()), "-c", "/dev/null", "--noconftest", "--no-header"]
    probes = str(Path(__file__).parents[1])
    given = [f"{one.name}={values[one.key]}" for one in OPTIONS if values.get(one.key) is not None]
    return int(
        pytest.main(
            [*base, "-p", "probes.plugin", "-p", "no:cacheprovider", probes, *given, *to_pytest],
            plugins=[OwnVoice()],
        )
    )
