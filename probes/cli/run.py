"""Commands that start a run or say what it would do: run, plan and again."""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from probes.cli import command as cli
from probes.requirements import lacking_sentence
from probes.session.options import BY_KEY, OPTIONS, RunOption
from probes.session.signals import SIGNALS
from reports.command import CheckedCommand
from reports.numbers import quantity
from reports.sanitize import capitalise, one_line
from reports.streams import guard_streams

if TYPE_CHECKING:
    from probes.session.session import RunSettings
    from reports.record import RunRecord


Function = TypeVar("Function", bound=Callable[..., Any])
TO_PYTEST = "probes.cli.run.to_pytest"  # key of the context: the arguments after `--`


class RunCommand(CheckedCommand):
    """Command that passes to pytest what stands after `--`."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the pieces of the usage line: pytest's options come last."""
        return [*super().collect_usage_pieces(ctx), "[-- PYTEST_OPTIONS]"]

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


def refuse_unjoined(*others: type[Exception]) -> AbstractContextManager[None]:
    """Raise UsageError for options, and a cluster, that cannot be used, and for `others`."""
    from probes.cluster.address import ClusterUnreachable
    from probes.session.settings import OptionError

    return cli.refuse_unusable(ClusterUnreachable, OptionError, *others)


def read_given(values: Mapping[str, str | None]) -> RunSettings:
    """Read the options that a command has, by key; without a cluster the one at hand is meant.

    Raises UsageError.
    """
    from probes.session.settings import read_settings

    given = {**dict.fromkeys(BY_KEY), **values, "cluster": values["cluster"] or "auto"}
    with refuse_unjoined():
        return read_settings(given)


def _complete_value(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the values that are names; files elsewhere."""
    from probes.check.registry import CRITERIA
    from probes.contract.contract import shipped_contracts
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


CHOOSE_HELP = "Run only probes (tests) whose names match TEXT, as in pytest."
choose_probes = click.option("-k", "keyword", metavar="TEXT", help=CHOOSE_HELP)


@cli.command(
    "Run the acceptance suite on a cluster.",
    "seatrial run --contract h100-ndr400 --nodes 8",
    "seatrial run --cluster local:4 --contract local --only FABRIC,GANG",
    "seatrial run --contract mine.toml -k fabric -- --maxfail 1",
    cls=RunCommand,
)
@run_options(cluster="auto")
@choose_probes
@click.option("-v", "--verbose", count=True, help="Print pytest's own lines too.")
@click.option("-q", "--quiet", count=True, help="Print no progress; -qq: print only the table.")
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
    """Run the acceptance suite on a cluster.

    A part of the suite (--only, -k) or a shorter tier than agreed can fail, but is never accepted.
    An environment variable can set an option, such as SEATRIAL_CLUSTER for --cluster. Arguments
    after -- go to pytest. Local pytest plugins, conftest files and pytest settings are ignored.
    """
    words = ["-v"] * verbose + ["-q"] * quiet + ["--collect-only"] * collect_only
    words += ["-k", keyword] if keyword else []
    sys.exit(run_suite(values, [*words, *context.meta[TO_PYTEST]]))


def run_suite(values: Mapping[str, str | None], to_pytest: Sequence[str]) -> int:
    """Run pytest on the suite's probes with these options, by key; return its exit code."""
    guard_streams()
    with SIGNALS.taken():
        code = _run_pytest(values, to_pytest)
    SIGNALS.settle(code)
    return code


def _run_pytest(values: Mapping[str, str | None], to_pytest: Sequence[str]) -> int:
    # Before pytest is imported: plugins that it loads could change the run and its results.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)
    if lacking := lacking_sentence():
        raise cli.UsageError(lacking)
    import pytest

    from probes.session.terminal import OwnVoice

    base = ["--rootdir", str(Path.cwd()), "-c", "/dev/null", "--noconftest", "--no-header"]
    probes = str(Path(__file__).parents[1])
    given = [f"{one.name}={values[one.key]}" for one in OPTIONS if values.get(one.key) is not None]
    words = [*base, "-p", "probes.plugin", "-p", "no:cacheprovider", probes, *given, *to_pytest]
    voice = OwnVoice()
    code = int(pytest.main(words, plugins=[voice]))
    if code == 0 and not voice.has_begun:
        click.echo(f"no test ran: with {one_line(shlex.join(to_pytest))}, pytest only prints text")
    return code


# What a run's reproduce command may say of how it was started, by key of the option.
KEYS = ("cluster", "tier", "contract", "nodes")


@cli.command(
    "Repeat a part of a run.",
    "seatrial again FABRIC --run runs/2026-11-20T221703Z-node0",
    "seatrial again FABRIC GANG --run runs/first --run-dir runs/second",
    "seatrial again GANG --run runs/first --cluster ray://head:10001",
    cls=RunCommand,
)
@click.argument("criteria", nargs=-1, required=True, metavar="CRITERION...")
@click.option(
    "--run", "run_folder", type=cli.PATH, help="Run folder (default: the newest run in runs/)."
)
@click.option("--run-dir", metavar="DIR", help="New folder for the new run.")
@click.option(
    "--cluster",
    metavar="WHERE",
    help="Cluster, as for `seatrial run`; required unless the run was on auto or local:N.",
)
@click.pass_context
def again(
    context: click.Context,
    criteria: tuple[str, ...],
    run_folder: Path | None,
    run_dir: str | None,
    cluster: str | None,
) -> None:
    """Repeat criteria of a run, with its cluster, contract, tier and number of nodes.

    The new run is PARTIAL: it can fail, but is never accepted. Start this command in the folder
    in which the run was started. The contract's file must be there, unchanged. Unless the run was
    on auto or local:N, also give --cluster: an address in a run folder is not trusted.
    """
    from probes.session.rejudge import read_verified
    from probes.session.settings import OptionError, read_only

    try:
        only = read_only(",".join(criteria))
    except OptionError as error:
        raise cli.UsageError(str(error).replace("--only", "CRITERION")) from None
    run_folder = run_folder or cli.newest_run()
    with cli.refuse_unusable():
        record = read_verified(run_folder)
    options, to_pytest = read_options(record), context.meta[TO_PYTEST]
    was = str(options["cluster"])
    repeated = ["seatrial", "again", *criteria, "--run", str(run_folder), "--cluster", was]
    repeated += ["--run-dir", run_dir] if run_dir else []
    repeated += ["--", *to_pytest] if to_pytest else []
    _check_cluster(record, was, cluster, repeated)
    _check_not_in(run_folder, record, options["contract"])
    values = {**options, "cluster": cluster or was, "only": ",".join(only), "run_dir": run_dir}
    words = [f"--{key.replace('_', '-')} {shlex.quote(v)}" for key, v in values.items() if v]
    click.echo(one_line(f"again seatrial run {' '.join(words)}"))
    click.echo("PARTIAL a part of a run can fail, but is never accepted")
    if cluster not in (None, was):
        click.echo(one_line(f"NOTE run {record.id} was on {was}. The new run is on {cluster}"))
    code = run_suite(values, to_pytest)
    cli.print_lines(_changes(record, only, run_dir))
    sys.exit(code)


# What a repetition shows, by whether the earlier run and the new one were accepted.
CHANGES = {
    (False, True): "Fixed",
    (False, False): "Not fixed",
    (True, False): "Worse",
    (True, True): "As before",
}


def _changes(before: RunRecord, only: list[str], run_dir: str | None) -> Iterator[str]:
    """Yield for each repeated criterion what became of it; nothing if no run was written."""
    from reports.acceptance import load_summary, summarize_acceptance
    from reports.run_folder.event_log import UnreadableRun

    try:
        now = load_summary(Path(run_dir) if run_dir else cli.newest_run())
    except (UnreadableRun, cli.UsageError):
        return
    if now.record.id == before.id:
        return
    old, new = (
        {row.criterion.id: row.verdict for row in summary.rows}
        for summary in (summarize_acceptance(before), now)
    )
    for id in only:
        if id in old and id in new:
            word = CHANGES[old[id].accepted, new[id].accepted]
            yield f"{word}: {id} was {old[id].value} in run {before.id}, is {new[id].value} now"


def _check_cluster(record: RunRecord, was: str, given: str | None, repeated: list[str]) -> None:
    """Check that the user names a cluster that is not of this machine.

    A cluster that is joined can run code here: no address is taken from a run folder alone.
    Raises UsageError.
    """
    from probes.cluster.address import check_spec, count_raylets

    with refuse_unjoined():
        check_spec(was)
        check_spec(given or was)
    if not (given or was == "auto" or count_raylets(was)):
        raise cli.UsageError(
            f"run {record.id} was on {was}, an address that only the run folder names. A cluster "
            "that seatrial joins can run code on this machine. If you trust that cluster, enter: "
            f"{shlex.join(repeated)}"
        )


def _check_not_in(run_folder: Path, record: RunRecord, contract: str | None) -> None:
    """Check that the contract, which is a program, does not come from the run folder itself.

    Raises UsageError.
    """
    path = Path(contract or "")
    if path.is_file() and path.resolve().is_relative_to(run_folder.resolve()):
        raise cli.UsageError(
            f"the contract of run {record.id} is {contract}, a file in the run folder itself. A "
            "contract can run commands, so seatrial uses none from a run folder. Read the file, "
            "copy it to another folder, and start `seatrial run --contract` with the copy"
        )


def read_options(record: RunRecord) -> dict[str, str | None]:
    """Return the options that a run was started with, by key.

    Raises UsageError where the run does not say, or where its contract is not at hand, unchanged.
    """
    reproduce = next((one.reproduce for one in record.results if one.reproduce), "")
    try:
        program, _, *words = shlex.split(reproduce)
        words = words[:-2] if program == "seatrial" and words[-2:-1] == ["-k"] else words
        given = dict(zip(words[::2], words[1::2], strict=True))
    except ValueError:  # fewer words, an option without a value, or an open quote
        program, given = "", {}
    given = {name.removeprefix("--"): value for name, value in given.items()}
    is_ours = program in ("pytest", "seatrial") and given.keys() <= {*KEYS}
    if not is_ours or "cluster" not in given:
        raise cli.UsageError(
            f"run {record.id} cannot be repeated: its record has no usable command. "
            "Start a new run with `seatrial run`"
        )
    _check_contract(record, given.get("contract"))
    nodes = record.cluster.get("terms", {}).get("nodes")
    if isinstance(nodes, int) and record.cluster.get("kind") != "local":
        given.setdefault("nodes", str(nodes))
    return {**dict.fromkeys(KEYS), **given}


def _check_contract(record: RunRecord, name: str | None) -> None:
    from probes.contract.contract import ContractError, load
    from probes.session.session import DEFAULT_CONTRACT

    if name is None:
        if Path(DEFAULT_CONTRACT).exists():
            raise cli.UsageError(
                f"run {record.id} had no contract, but the repetition would use {DEFAULT_CONTRACT} "
                "of this folder: start this command in another folder"
            )
        return
    try:
        found = load(name).sha256
    except ContractError as error:
        raise cli.UsageError(f"the contract of run {record.id} cannot be used: {error}") from None
    if found != record.contract.sha256:
        raise cli.UsageError(
            f"contract {name} changed since run {record.id}: sha256 {found[:8]}. Expected: "
            f"{record.contract.sha256[:8]}. Restore the old file, or start a new run"
        )


INDENT = " " * 12  # of what belongs to a label
NOTHING = "PLAN: nothing was tested"
NO_CONTRACT = "none: limits are derived from the cluster, and the run cannot be accepted"


@cli.command(
    "Show what a run would do; tests nothing.",
    "seatrial plan --contract h100-ndr400 --nodes 8 --tier standard",
    "seatrial plan --cluster auto --only GANG,RESTART",
)
@run_options("cluster", "contract", "tier", "only", "nodes")
def plan(cluster: str | None, **values: str | None) -> None:
    """Show which tests a run would have, how long they take, and what they need and disturb.

    The command tests nothing, and writes nothing. With --cluster it joins the cluster, counts the
    nodes and GPUs, and starts nothing there. Without --cluster it plans from the contract.
    """
    from probes.contract.contract import refuse_draft

    settings = read_given({**values, "cluster": cluster})
    with refuse_unjoined():
        refuse_draft(settings.agreed, settings.contract_arg)
        lines = [*_cluster_lines(settings, cluster), *_criteria_lines(settings), NOTHING]
    cli.print_lines(lines)


def _cluster_lines(settings: RunSettings, cluster: str | None) -> Iterator[str]:
    """Yield the contract, the tier, what was ordered, and what the cluster has."""
    from probes.check.owed import GPUS_FREE, partial_reason

    agreed = settings.agreed
    text = f"{agreed.name} @ {agreed.sha256[:8]}," if agreed else f"{NO_CONTRACT};"
    yield from _wrap("contract", f"{text} tier {settings.tier}")
    reason = partial_reason(settings.only, settings.tier, agreed.tier if agreed else settings.tier)
    if reason:
        yield from _wrap("PARTIAL", f"{reason}, so the run cannot be accepted")
    terms = settings.terms
    ordered = terms.nodes_text if terms.nodes else "number of nodes not given"
    if isinstance(terms.gpus_per_node, int):
        ordered += f", {quantity(terms.gpus_per_node, 'accelerators')} each"
    elif terms.gpus_per_node:
        ordered += f", accelerators: {terms.gpus_text}"
    if isinstance(terms.gpu_model, dict):
        ordered += f", {terms.models_text}"
    yield from _wrap("ordered", ordered)
    yield from _wrap("needs", GPUS_FREE)
    if cluster:
        yield from _wrap("cluster", _describe_cluster(cluster))
    yield ""


def _describe_cluster(cluster: str) -> str:
    """Count the cluster's nodes and GPUs; an embedded one is not started."""
    from probes.cluster.address import count_raylets, read_size

    if raylets := count_raylets(cluster):
        return f"{quantity(raylets, 'raylets')}, which the run starts on this host (a rehearsal)"
    nodes, gpus = read_size(cluster)
    return f"{quantity(nodes, 'nodes')}, {quantity(gpus, 'GPUs')}, as Ray counts them now"


def _criteria_lines(settings: RunSettings) -> Iterator[str]:
    """Yield the probes of each criterion, with their time, needs and disturbances."""
    from probes.check.owed import LAB, SOURCE, longer_tier, usual_seconds
    from probes.check.registry import CRITERIA, run_order

    tier, only = settings.tier, settings.only
    chosen = [id for id in run_order() if not only or id in only]
    agreed = settings.agreed
    optional = agreed.optional if agreed else {}
    is_one = 1 in (settings.nodes, agreed and agreed.cluster.nodes)
    total = 0
    for id in chosen:
        row = CRITERIA[id]
        probes = [duty.probe for duty in row.duties if longer_tier(duty.tier, tier) == tier]
        total += len(probes)
        yield f"{id}  {agreed.title_of(id, is_one) if agreed else row.title}"
        if id in optional:
            yield from _wrap("  unproven", f"not provable here: {optional[id]}")
        yield from _list("  tests", [probe.partition("::")[2] for probe in probes])
        yield from _wrap("  time", describe_time(usual_seconds(tier, [id])))
        yield from _wrap("  where", row.where)
        yield from _list("  needs", [*row.needs])
        yield from _list("  disturbs", [*_disturbances(probes)])
        if id == "LAUNCH":
            yield from _wrap("  commands", _describe_commands(settings))
        yield ""
    whole = describe_time(usual_seconds(tier, chosen))
    yield from _wrap("total", f"{quantity(total, 'tests')}, {whole}")
    source = f"Times come from {LAB} without GPUs ({SOURCE})."
    yield from _wrap("", f"{source} Expect other times on your cluster.")


def _describe_commands(settings: RunSettings) -> str:
    """Say whose commands would be typed here, and as whom."""
    from probes.launch.shell import describe_typist, why_no_other_user

    terms = settings.terms
    return describe_typist(terms, why_no_other_user(own_guide=terms.launch.document is None))


def _disturbances(probes: list[str]) -> Iterator[str]:
    """Yield what the probes disturb, each once, and for how long, where only some of them do."""
    from probes.check.owed import disturbances_of, disturbed_seconds

    for text in dict.fromkeys(text for probe in probes for text in disturbances_of(probe)):
        of = [probe for probe in probes if text in disturbances_of(probe)]
        seconds = disturbed_seconds(of) if len(of) < len(probes) else None
        yield text if seconds is None else f"{text} ({describe_time(seconds)})"


def describe_time(seconds: int | None) -> str:
    """Describe a usual time in the lab."""
    if seconds is None:
        return "not measured"
    return f"about {seconds} s" if seconds < 120 else f"about {seconds / 60:.0f} min"


def _list(label: str, texts: list[str]) -> Iterator[str]:
    """Yield one line for each text; the label stands before the first."""
    for number, text in enumerate(texts):
        yield from _wrap("" if number else label, text)


def _wrap(label: str, text: str) -> list[str]:
    """Break a text into lines, the first with a label."""
    width = cli.terminal_width()
    first = f"{label:{len(INDENT)}}"
    return textwrap.wrap(one_line(text), width, initial_indent=first, subsequent_indent=INDENT)
