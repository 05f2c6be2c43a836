"""`seatrial doctor`: what stands in the way of a run, before one is started."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from probes.cli.errors import UsageError, refuse_unusable
from probes.cli.run import run_options
from probes.terminal.options import BY_KEY
from reports.sanitize import one_line

if TYPE_CHECKING:
    from probes.acceptance.session import RunSettings
    from probes.doctor.answer import Answer

LABEL = 14  # columns of a question


@click.command(
    short_help="Say what stands in the way of a run.",
    epilog="""\b
    Examples:
      seatrial doctor --contract mine.toml --nodes 8
      seatrial doctor --cluster ray://head:10001""",
)
@run_options("cluster", "contract", "nodes")
def doctor(cluster: str | None, **values: str | None) -> None:
    """Say in seconds what a run would not prove here, and why.

    It looks at this machine, joins the cluster, and runs one short task on each node, which takes
    no accelerator.  Exit code 0: nothing stands in the way; 20: a criterion would be UNPROVEN, or
    fail.
    """
    from probes.cluster.access.address import ClusterUnreachable
    from probes.terminal.settings import OptionError, read_settings

    given = {**dict.fromkeys(BY_KEY), **values, "cluster": cluster or "auto"}
    answers: list[Answer] = []
    try:
        with refuse_unusable():
            settings = read_settings(given)
        for answer in _ask(settings):
            answers.append(answer)
            for line in _lines(answer):
                click.echo(line)
    except (ClusterUnreachable, OptionError) as error:
        raise UsageError(str(error)) from None
    for line in _summary(answers):
        click.echo(line)
    sys.exit(20 if any(answer.criteria for answer in answers) else 0)


def _ask(settings: RunSettings) -> Iterator[Answer]:
    """Ask about the contract, this machine, and the cluster."""
    from probes.acceptance.cluster_terms import ClusterTerms
    from probes.cluster.cluster import VersionMismatch, connect
    from probes.doctor.answer import FAIL, UNPROVEN, Answer
    from probes.doctor.machine import ask_machine
    from probes.doctor.nodes import ask_cluster
    from probes.least_versions import ALL

    terms = settings.agreed.cluster if settings.agreed else ClusterTerms()
    if settings.agreed:
        yield Answer("contract", f"{settings.agreed.name}, tier {settings.tier}")
    else:
        found = "none: limits are derived from the cluster, and nothing is accepted"
        yield Answer("contract", found, UNPROVEN, ALL, "Name one with --contract")
    if settings.nodes:
        terms = terms.model_copy(update={"nodes": settings.nodes})
    emulated = terms.accelerators == "emulated" or settings.spec.startswith("local")
    yield from ask_machine(terms, on_gpu=not emulated)
    try:
        cluster = connect(settings.spec)
    except VersionMismatch as error:
        do = "Install the cluster's version of Ray and Python here"
        yield Answer("cluster", str(error), FAIL, ALL, do)
        return
    try:
        cluster.emulated = cluster.emulated or emulated
        yield Answer("cluster", cluster.address)
        yield from ask_cluster(cluster, terms)
    finally:
        cluster.close()


def _lines(answer: Answer) -> Iterator[str]:
    """Yield what was found, and what to do."""
    from probes.doctor.answer import FAIL, OK, UNPROVEN

    mark = {OK: "ok", UNPROVEN: "?", FAIL: "x"}[answer.state]
    yield f"{mark:3}{answer.question:{LABEL}} {one_line(answer.found)}"
    if answer.do:
        yield f"{'':3}{'':{LABEL}} {', '.join(answer.criteria)}: {answer.do}"


def _summary(answers: list[Answer]) -> Iterator[str]:
    """Yield which criteria a run would not prove here."""
    from probes.doctor.answer import FAIL, OK, UNPROVEN, affected

    for state, words in ((FAIL, "would fail"), (UNPROVEN, "would be UNPROVEN")):
        if named := affected(answers, state):
            yield f"{', '.join(named)} {words} here"
    if all(answer.state == OK for answer in answers):
        yield "nothing stands in the way of a run"
