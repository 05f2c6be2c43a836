"""Commands that join a cluster without a run: doctor and cleanup."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import click

from probes.cli.command import UsageError, command, formatter, print_lines, refuse
from probes.cli.run import NO_CONTRACT, read_given, refuse_unjoined, run_options
from reports.numbers import quantity
from reports.sanitize import one_line

if TYPE_CHECKING:
    from probes.doctor import Answer
    from probes.leftovers import LeftOver
    from probes.session.session import RunSettings


CLOSED_WORDS = ("refused", "timed out", "DEADLINE_EXCEEDED", "UNAVAILABLE", "unreachable")


@command(
    "Test Ray's ports from another machine.",
    "seatrial reach 10.20.0.1",
    "seatrial reach head.example --dashboard 8266",
)
@click.argument("host")
@click.option("--dashboard", default=8265, show_default=True, help="Port of the dashboard.")
@click.option("--client", default=10001, show_default=True, help="Port for ray:// clients.")
@click.option("--gcs", default=6379, show_default=True, help="Port of the GCS.")
@click.option("--agent", default=52365, show_default=True, help="HTTP port of dashboard agents.")
def reach(host: str, dashboard: int, client: int, gcs: int, agent: int) -> None:
    """Check which ports of Ray on HOST accept commands from this machine.

    Run this command on a machine that must not be able to run jobs on HOST.  It sends requests
    without a token or with a wrong one, and starts nothing.  Exit code 0: no port accepts commands;
    1: a port does; 20: an answer is unclear.  Other ports of Ray are not tried.
    """
    from probes.cluster import endpoints as ask
    from probes.cluster.endpoints import Endpoint, join_address

    doors = [
        Endpoint(ask.DASHBOARD, "", f"http://{join_address(host, dashboard)}"),
        Endpoint(ask.CLIENT, "", join_address(host, client)),
        Endpoint(ask.GCS, "", join_address(host, gcs)),
        Endpoint(ask.AGENT, "", f"http://{join_address(host, agent)}"),
    ]
    words = [_describe_answer(one.without) for one in ask.ask_endpoints(doors, "")]
    for door, word in zip(doors, words, strict=True):
        click.echo(one_line(f"{door.text}: {word}"))
    sys.exit(1 if OPEN in words else 20 if any(word.startswith(UNCLEAR) for word in words) else 0)


OPEN, UNCLEAR = "OPEN, it accepts commands without a token", "unclear"


def _describe_answer(answer: str) -> str:
    from probes.cluster.endpoints import REFUSED, TAKEN

    if answer in (TAKEN, REFUSED):
        return OPEN if answer == TAKEN else "reached, it requires a token"
    is_closed = any(word in answer for word in CLOSED_WORDS)
    return f"{'not reached' if is_closed else UNCLEAR} ({answer})"


LABEL = 14  # columns of a question


@command(
    "Show what would prevent an accepted run.",
    "seatrial doctor --contract mine.toml --nodes 8",
    "seatrial doctor --cluster ray://head:10001",
)
@run_options("cluster", "contract", "nodes")
def doctor(**values: str | None) -> None:
    """Show in seconds what a run would not prove here, and why.

    The command looks at this machine, joins the cluster, runs short tasks on each node, and tests
    the shared folder with small files. No task uses an accelerator.  Exit code 0: nothing was found
    that would prevent an accepted run; 20: a criterion would be UNPROVEN, or fail, or no contract
    is given; 4: there is no cluster to join, or an option is wrong.
    """
    answers: list[Answer] = []
    settings = read_given(values)
    with refuse_unjoined():
        for answer in _ask(settings):
            answers.append(answer)
            print_lines(_lines(answer))
    print_lines(_summary(answers))
    sys.exit(20 if any(answer.criteria for answer in answers) else 0)


def _ask(settings: RunSettings) -> Iterator[Answer]:
    """Ask about the contract, this machine, and the cluster."""
    from probes.check.registry import run_order
    from probes.cluster.cluster import VersionMismatch, connect
    from probes.doctor import FAIL, UNPROVEN, Answer, ask_cluster, ask_contract, ask_machine

    terms = settings.terms
    if settings.agreed:
        yield Answer("contract", f"{settings.agreed.name}, tier {settings.tier}")
    else:
        do = "Name a contract with --contract"
        yield Answer("contract", NO_CONTRACT, UNPROVEN, run_order(), do)
    local = settings.spec.startswith("local")
    emulated = terms.accelerators == "emulated" or local
    yield from ask_machine(terms, on_gpu=not emulated, local=local)
    try:
        cluster = connect(settings.spec)
    except VersionMismatch as error:
        do = "Install the cluster's versions of Ray and Python on this machine"
        yield Answer("cluster", str(error), FAIL, run_order(), do)
        return
    with closing(cluster):
        cluster.emulated = cluster.emulated or emulated
        rehearsal = f"; a rehearsal: {cluster.rehearsal}" if cluster.rehearsal else ""
        yield Answer("cluster", cluster.address + rehearsal)
        yield from ask_cluster(cluster, terms)
        if settings.agreed:
            yield from ask_contract(settings.agreed, settings.nodes, cluster)


def _lines(answer: Answer) -> Iterator[str]:
    """Yield what was found, and what to do, at most as wide as the terminal."""
    from probes.doctor import FAIL, OK, UNPROVEN

    fmt, mark = formatter(), {OK: "ok", UNPROVEN: "note", FAIL: "fix"}[answer.state]
    yield from fmt.wrap(answer.found, f"{mark:5}{answer.question:{LABEL}} ")
    if answer.do:
        would = "cannot be accepted" if answer.question == "contract" else WOULD[answer.state]
        text = f"{answer.do}. Otherwise {', '.join(answer.criteria)} {would}"
        yield from fmt.wrap(text, f"{'':5}{'':{LABEL}} ")


WOULD = {"FAIL": "would fail", "UNPROVEN": "would be UNPROVEN"}


def _summary(answers: list[Answer]) -> Iterator[str]:
    """Yield which criteria a run would not prove here, and how much there is to do."""
    from probes.doctor import FAIL, OK, UNPROVEN, affected

    fmt, seen = formatter(), [one for one in answers if one.question != "contract"]
    for state in (FAIL, UNPROVEN):
        if named := affected(seen, state):
            yield from fmt.wrap(f"{', '.join(named)} {WOULD[state]} here", "")
    if all(answer.state == OK for answer in answers):
        yield "nothing was found that would prevent an accepted run"
        return
    fix, know = (sum(one.state == state for one in answers) for state in (FAIL, UNPROVEN))
    yield f"{quantity(fix, 'problems')} to fix, {quantity(know, 'notes')}"


EXIT_LEFT = 20


@command(
    "Remove what killed runs left on a cluster.",
    "seatrial cleanup --contract mine.toml",
    "seatrial cleanup --contract mine.toml --remove",
    "seatrial cleanup --unclaim 02000000",
)
@run_options("cluster", "contract")
@click.option(
    "--idle",
    default="1h",
    show_default=True,
    metavar="TIME",
    help="Keep files that changed within this time, such as 90s, 30m or 2h.",
)
@click.option("--remove", is_flag=True, help="Remove what is found, instead of only listing it.")
@click.option(
    "--unclaim",
    metavar="JOB",
    help="First remove the lock that JOB has on the cluster. Use this option only if JOB is not a "
    "run of seatrial.",
)
@click.option(
    "--job",
    "jobs",
    multiple=True,
    metavar="ID",
    help="With --remove, also stop the listed job ID. This job may belong to another user.",
)
def cleanup(
    idle: str, remove: bool, unclaim: str | None, jobs: tuple[str, ...], **values: str | None
) -> None:
    """List files and jobs of earlier runs on a cluster, and remove them with --remove.

    A run removes what it made, also when it is killed. Something stays if the clean-up failed, or
    if the process that cleans up was killed too, for example by a reboot. This command looks into
    /tmp of each node, and into the shared folder that the contract names. While another run uses
    the cluster, this command ends with an error. Files that changed within the last hour are kept
    (--idle). A run of `seatrial submit` is kept for a week, so that --attach can still copy that
    run. A job that only looks like seatrial's may belong to another user: such a job is stopped
    only if --job names it. Exit code 0: nothing is left; 20: something is left, or not all was
    searched.

    A run locks its cluster, so that no second run begins there. The lock is in Ray's own store,
    which each user of the cluster can write. If the lock belongs to a job that is not a run of
    seatrial, remove the lock with --unclaim. Look at that job first: the error of the refused run
    names the process and the host of the job.
    """
    from probes.cluster.cluster import VersionMismatch, connect
    from probes.cluster.room import OtherTrial
    from probes.leftovers import find_left, remove_left
    from probes.session.settings import read_time
    from reports.run_folder.times import utc_time

    if jobs and not remove:
        raise UsageError("--job stops a job only together with --remove: give both")
    with refuse_unjoined(VersionMismatch):
        idle_s, settings = read_time("--idle", idle), read_given(values)
        cluster = connect(settings.spec)
    with refuse(OtherTrial), closing(cluster):
        if unclaim is not None:
            cluster.end_claim(unclaim)
            click.echo(one_line(f"the lock of job {unclaim} is removed"))
        cluster.claim(utc_time(), 0, click.echo)
        shared = settings.agreed.cluster.shared if settings.agreed else None
        found, unknown = find_left(cluster, shared)
        _check_named(jobs, found)
        old = [one for one in found if one.idle_s is None or one.idle_s >= max(idle_s, one.kept_s)]
        old = [one for one in old if one.is_sure or one.name in jobs]
        errors = remove_left(cluster, old) if remove else {}
        cluster.release()
    for one in found:
        click.echo(_line(one, in_use=one not in old, why=errors.get(one.name)))
    for text in unknown:
        click.echo(one_line(f"not searched: {text}"))
    left = len(found) - len(old) + (len(errors) if remove else len(old))
    if not found:
        click.echo("nothing was found elsewhere" if unknown else "nothing is left of earlier runs")
    elif remove:
        click.echo(f"{len(found) - left} removed, {left} still there")
    else:
        click.echo(f"{quantity(left, 'left-overs')}. --remove would remove {len(old)} of {left}")
    sys.exit(EXIT_LEFT if left or unknown else 0)


def _check_named(jobs: Sequence[str], found: Sequence[LeftOver]) -> None:
    """Check that the jobs to stop are listed.  Raises UsageError."""
    listed = {one.name for one in found if one.idle_s is None}
    if unknown := [job for job in jobs if job not in listed]:
        do = "Run `seatrial cleanup` without --job to list the jobs"
        raise UsageError(f"--job: expected a listed job, found {unknown[0]}. {do}")


def _line(one: LeftOver, *, in_use: bool, why: str | None) -> str:
    """Describe what was found, and why it stays."""
    state = "still runs" if one.idle_s is None else f"unchanged for {_time(one.idle_s)}"
    if in_use and not one.is_sure:
        state += ", kept: this job only looks like seatrial's, and may belong to another user"
        state += f". Stop it with --remove --job {one.name}"
    elif in_use and one.kept_s:
        state += ", kept for a week: `seatrial submit --attach` may still copy this run"
    elif in_use:
        state += ", kept: it changed within the time of --idle (default: 1h)"
    state += f", not removed: {why}" if why else ""
    return one_line(f"{one.kind:5}{one.where} {one.name} {state}")


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
