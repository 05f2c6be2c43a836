"""`seatrial cleanup`: removes what killed runs left on a cluster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from probes.cli.errors import UsageError, refuse_unusable
from probes.cli.run import run_options
from probes.terminal.options import BY_KEY
from reports.numbers import quantity
from reports.sanitize import one_line

if TYPE_CHECKING:
    from probes.leftovers.search import LeftOver

EXIT_LEFT = 20


@click.command(
    short_help="Remove what killed runs left on a cluster.",
    epilog="""\b
    Examples:
      seatrial cleanup --contract mine.toml
      seatrial cleanup --contract mine.toml --remove""",
)
@run_options("cluster", "contract")
@click.option(
    "--idle",
    default="1h",
    show_default=True,
    metavar="TIME",
    help="Leave what changed within this time.",
)
@click.option("--remove", is_flag=True, help="Remove it, and do not only list it.")
def cleanup(idle: str, remove: bool, **values: str | None) -> None:
    """List files and jobs of earlier runs on a cluster, and remove them with --remove.

    A run removes what it made, also when it is killed. Something stays only if the process that
    cleans up is killed too, as by a reboot. This command looks into /tmp of each node, and into the
    shared folder that the contract names. Nothing of a run that is under way is touched. A
    submission that was not brought back stays for a week. Exit code 0: nothing is left; 20:
    something is, or not all was searched.
    """
    from probes.cluster.access.address import ClusterUnreachable
    from probes.cluster.cluster import VersionMismatch, connect
    from probes.cluster.room.other_trial import OtherTrial
    from probes.leftovers.search import find_left, remove_left
    from probes.terminal.settings import OptionError, read_settings, read_time
    from reports.run_folder.store import utc_time

    given = {**dict.fromkeys(BY_KEY), **values, "cluster": values["cluster"] or "auto"}
    try:
        idle_s = read_time("--idle", idle)
        with refuse_unusable():
            settings = read_settings(given)
        cluster = connect(settings.spec)
    except (ClusterUnreachable, OptionError, VersionMismatch) as error:
        raise UsageError(str(error)) from None
    try:
        cluster.claim(utc_time(), 0, click.echo)
        shared = settings.agreed.cluster.shared if settings.agreed else None
        found, unknown = find_left(cluster, shared)
        ready = [
            one for one in found if one.idle_s is None or one.idle_s >= max(idle_s, one.kept_s)
        ]
        errors = remove_left(cluster, ready) if remove else {}
        cluster.release()
    except OtherTrial as error:
        raise UsageError(str(error)) from None
    finally:
        cluster.close()
    for one in found:
        click.echo(_line(one, in_use=one not in ready, why=errors.get(one.name)))
    for text in unknown:
        click.echo(one_line(f"not searched: {text}"))
    left = len(found) - len(ready) + (len(errors) if remove else len(ready))
    if not found:
        click.echo("nothing else was found" if unknown else "nothing is left of earlier runs")
    elif remove:
        click.echo(f"removed {len(found) - left}, left {left}")
    else:
        click.echo(f"{quantity(left, 'left-overs')}: remove them with --remove")
    sys.exit(EXIT_LEFT if left or unknown else 0)


def _line(one: LeftOver, *, in_use: bool, why: str | None) -> str:
    """Describe what was found, and why it stays."""
    state = "runs" if one.idle_s is None else f"unchanged for {_time(one.idle_s)}"
    state += ", left: it may be in use" if in_use else ""
    state += f", not removed: {why}" if why else ""
    return one_line(f"{one.kind:5}{one.where} {one.name} {state}")


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
