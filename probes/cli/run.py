"""`seatrial run`: pytest on the suite's own probes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--cluster",
    default="auto",
    envvar="SEATRIAL_CLUSTER",
    show_default=True,
    metavar="WHERE",
    help="auto, local[:N] or ray://host:port.",
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def run(cluster: str, options: tuple[str, ...]) -> None:
    """Run the acceptance suite, and nothing else: no plugin, conftest or setting of the place.

    OPTIONS go to pytest (--contract, --tier, --only, --run-dir ...).
    """
    # Before pytest is imported: plugins that it loads could change the run and its results.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)
    import pytest

    base = ["--rootdir", str(Path.cwd()), "-c", "/dev/null", "--noconftest", "-p", "probes.plugin"]
    probes = str(Path(__file__).parents[1])
    sys.exit(pytest.main([*base, "-p", "no:cacheprovider", probes, "--cluster", cluster, *options]))
