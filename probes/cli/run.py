"""`seatrial run`: pytest on the suite's own probes."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--cluster",
    default="auto",
    show_default=True,
    metavar="WHERE",
    help="auto, local[:N] or ray://host:port.",
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def run(cluster: str, options: tuple[str, ...]) -> None:
    """Run the acceptance suite; OPTIONS go to pytest (--contract, --tier, --run-dir, -k ...)."""
    import pytest

    # Without a configuration file of its own this run must not pick up a stranger's.
    base = ["--rootdir", str(Path.cwd()), "-c", "/dev/null", "-p", "probes.plugin"]
    probes = str(Path(__file__).parents[1])
    sys.exit(pytest.main([*base, "-p", "no:cacheprovider", probes, "--cluster", cluster, *options]))
