"""`seatrial doctor`: what stands in the way of a run, before one is started."""

from __future__ import annotations

import sys
from collections.abc import Iterable
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
    try:
        with refuse_unusable():
            settings = read_settings(given)
        answers = _ask(settings)
    except (ClusterUnreachable, OptionError) as error:
        raise UsageError(str(error)) from None
    for line in _lines(answers):
        click.echo(line)
    sys.exit(20 if any(answer.criteria for answer in answers) else 0)


def _ask(settings: RunSettings) -> list[Answer]:
    """Ask about this machine, print it at once, and then about the cluster."""
    from probes.acceptance.cluster_terms import ClusterTerms
    from probes.cluster.cluster import VersionMismatch, connect
    from probes.doctor.answer import FAIL, Answer
    from probes.doctor.machine import ask_machine
    from probes.doctor.nodes import ask_cluster
    from probes.least_versions import ALL

    terms = settings.agreed.cluster if settings.agreed else ClusterTerms()
    if settings.nodes:
        terms = terms.model_copy(update={"nodes": settings.nodes})
    emulated = terms.accelerators == "emulated" or settings.spec.startswith("local")
    answers = list(ask_machine(terms, on_gpu=not emulated))
    try:
        cluster = connect(settings.spec)
    except VersionMismatch as error:
        do = "Install the cluster's version of Ray and Python here"
        return [*answers, Answer("cluster", str(error), FAIL, ALL, do)]
    try:
        cluster.emulated = cluster.emulated or emulated
        return [*answers, Answer("cluster", cluster.address), *ask_cluster(cluster, terms)]
    finally:
        cluster.close()


def _lines(answers: Iterable[Answer]) -> Iterable[str]:
    from probes.doctor.answer import FAIL, OK, UNPROVEN, affected

    listed = list(answers)
    for answer in listed:
        mark = {OK: "ok", UNPROVEN: "?", FAIL: "x"}[answer.state]
        yield f"{mark:3}{answer.question:{LABEL}} {one_line(answer.found)}"
        if answer.do:
            yield f"{'':3}{'':{LABEL}} {', '.join(answer.criteria)}: {answer.do}"
    for state, words in ((FAIL, "would fail"), (UNPROVEN, "would be UNPROVEN")):
        if named := affected(listed, state):
            yield f"{', '.join(named)} {words} here"
    if all(answer.state == OK for answer in listed):
        yield "nothing stands in the way of a run"
