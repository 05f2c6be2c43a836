"""`seatrial reach`: what a machine outside the cluster can do at Ray's entrances."""

from __future__ import annotations

import sys

import click

from reports.sanitize import one_line

CLOSED_WORDS = ("refused", "timed out", "DEADLINE_EXCEEDED", "UNAVAILABLE", "unreachable")


@click.command(
    short_help="Try Ray's ports from another machine.",
    epilog="""\b
    Examples:
      seatrial reach 10.20.0.1
      seatrial reach head.example --dashboard 8266""",
)
@click.argument("host")
@click.option("--dashboard", default=8265, show_default=True, help="Port of the dashboard.")
@click.option("--client", default=10001, show_default=True, help="Port of the Ray client.")
@click.option("--gcs", default=6379, show_default=True, help="Port of the GCS.")
@click.option("--agent", default=52365, show_default=True, help="HTTP port of dashboard agents.")
def reach(host: str, dashboard: int, client: int, gcs: int, agent: int) -> None:
    """Try Ray's ports on HOST, a node, from a machine that must not run jobs there.

    It sends requests without a token, and starts nothing.  Exit code 0: none was taken; 1: an
    entrance takes orders from here; 20: an answer is unclear.  Other ports of Ray are not tried.
    """
    from probes.cluster.access import entrances as ask
    from probes.cluster.access.entrances import Entrance, join_address

    doors = [
        Entrance(ask.DASHBOARD, "", f"http://{join_address(host, dashboard)}"),
        Entrance(ask.CLIENT, "", join_address(host, client)),
        Entrance(ask.GCS, "", join_address(host, gcs)),
        Entrance(ask.AGENT, "", f"http://{join_address(host, agent)}"),
    ]
    words = [_describe_answer(one.without) for one in ask.ask_entrances(doors, "")]
    for door, word in zip(doors, words, strict=True):
        click.echo(one_line(f"{door.text}: {word}"))
    sys.exit(1 if OPEN in words else 20 if any(word.startswith(UNCLEAR) for word in words) else 0)


OPEN, UNCLEAR = "OPEN, it takes orders without a token", "unclear"


def _describe_answer(answer: str) -> str:
    from probes.cluster.access.entrances import REFUSED, TAKEN

    if answer in (TAKEN, REFUSED):
        return OPEN if answer == TAKEN else "reached, it asks for a token"
    is_closed = any(word in answer for word in CLOSED_WORDS)
    return f"{'not reached' if is_closed else UNCLEAR} ({answer})"
