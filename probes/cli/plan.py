"""`seatrial plan`: what a run would do, how long it takes, what it needs and what it disturbs."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from probes.cli.errors import UsageError, refuse_unusable
from probes.cli.run import run_options
from probes.terminal.options import BY_KEY
from reports.numbers import quantity
from reports.sanitize import one_line

if TYPE_CHECKING:
    from probes.acceptance.session import RunSettings

MAX_WIDTH = 100  # columns: longer lines are hard to read
INDENT = " " * 12  # of what belongs to a label
NOTHING = "PLAN: nothing was tested"


@click.command(
    short_help="Show what a run would do; tests nothing.",
    epilog="""\b
    Examples:
      seatrial plan --contract h100-ndr400 --nodes 8 --tier standard
      seatrial plan --cluster auto --only GANG,RESTART""",
)
@run_options("cluster", "contract", "tier", "only", "nodes")
def plan(cluster: str | None, **values: str | None) -> None:
    """Show which probes a run would have, how long they take, and what they need and disturb.

    It tests nothing, and writes nothing. With --cluster it joins the cluster to count its nodes
    and GPUs, and places nothing there. Without, it plans from the contract.
    """
    from probes.cluster.access.address import ClusterUnreachable
    from probes.terminal.settings import OptionError, read_settings

    given = {**dict.fromkeys(BY_KEY), **values, "cluster": cluster or "auto"}
    try:
        with refuse_unusable():
            settings = read_settings(given)
        lines = [*_cluster_lines(settings, cluster), *_criteria_lines(settings), NOTHING]
    except (ClusterUnreachable, OptionError) as error:
        raise UsageError(str(error)) from None
    for line in lines:
        click.echo(line)


def _cluster_lines(settings: RunSettings, cluster: str | None) -> Iterator[str]:
    """Yield the contract, the tier, what was ordered, and what the cluster has."""
    from probes.acceptance.criteria.impact import GPUS_FREE
    from probes.acceptance.owed import partial_reason

    agreed = settings.agreed
    if agreed:
        yield from _wrap("contract", f"{agreed.name} @ {agreed.sha256[:8]}, tier {settings.tier}")
    else:
        text = "none: limits are derived from the cluster, and nothing can be accepted"
        yield from _wrap("contract", f"{text}; tier {settings.tier}")
    reason = partial_reason(settings.only, settings.tier, agreed.tier if agreed else settings.tier)
    if reason:
        yield from _wrap("PARTIAL", f"{reason}: nothing can be accepted")
    nodes = settings.nodes or (agreed.cluster.nodes if agreed else None)
    gpus = agreed.cluster.gpus_per_node if agreed else None
    ordered = f"{nodes} nodes" if nodes else "no number of nodes"
    ordered += f", {quantity(gpus, 'accelerators')} each" if gpus is not None else ""
    yield from _wrap("ordered", ordered)
    yield from _wrap("needs", GPUS_FREE)
    if cluster:
        yield from _wrap("cluster", _describe_cluster(cluster))
    yield ""


def _describe_cluster(cluster: str) -> str:
    """Count the cluster's nodes and GPUs; an embedded one is not started."""
    from probes.cluster.access.address import count_raylets, read_size

    if raylets := count_raylets(cluster):
        return f"{raylets} raylets, embedded on this host when the run begins: a rehearsal"
    nodes, gpus = read_size(cluster)
    return f"{nodes} nodes, {gpus} GPUs, as Ray counts them now"


def _criteria_lines(settings: RunSettings) -> Iterator[str]:
    """Yield the probes of each criterion, with their time, needs and disturbances."""
    from probes.acceptance.criteria import CRITERIA, RUN_ORDER
    from probes.acceptance.criteria.impact import NEEDS
    from probes.acceptance.criteria.usual_times import LAB, SOURCE, usual_seconds
    from probes.acceptance.owed import DUTIES, longer_tier

    tier, only = settings.tier, settings.only
    chosen = [id for id in RUN_ORDER if not only or id in only]
    optional = settings.agreed.optional if settings.agreed else {}
    total = 0
    for id in chosen:
        probes = [
            duty.probe
            for duty in DUTIES
            if duty.criterion == id and longer_tier(duty.tier, tier) == tier
        ]
        total += len(probes)
        title = settings.agreed.title_of(id) if settings.agreed else CRITERIA[id].title
        yield f"{id}  {title}"
        if id in optional:
            yield from _wrap("  unproven", f"not provable here: {optional[id]}")
        yield from _list("  probes", [probe.partition("::")[2] for probe in probes])
        yield from _wrap("  time", describe_time(usual_seconds(tier, [id])))
        where, *needs = NEEDS[id]
        yield from _wrap("  where", where)
        yield from _list("  needs", needs)
        yield from _list("  disturbs", [*_disturbances(probes)])
        yield ""
    whole = describe_time(usual_seconds(tier, chosen))
    yield from _wrap("total", f"{quantity(total, 'probes')}, {whole}")
    yield from _wrap("", f"times are of {LAB} ({SOURCE}); not measured on GPUs")


def _disturbances(probes: list[str]) -> Iterator[str]:
    """Yield what the probes disturb, each once, and for how long."""
    from probes.acceptance.criteria.impact import disturbances_of
    from probes.acceptance.criteria.usual_times import disturbed_seconds

    for text in dict.fromkeys(text for probe in probes for text in disturbances_of(probe)):
        of = [probe for probe in probes if text in disturbances_of(probe)]
        seconds = disturbed_seconds(of)
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
    width = min(shutil.get_terminal_size().columns, MAX_WIDTH)
    first = f"{label:{len(INDENT)}}"
    return textwrap.wrap(one_line(text), width, initial_indent=first, subsequent_indent=INDENT)
