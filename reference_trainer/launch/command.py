"""Command `python -m reference_trainer launch`: runs the job on a Ray cluster, all ranks or none.

Prints one line for each rank's rendezvous, the trainer's log of rank 0, one line for each rank's
device, then `done`. A lost worker costs a restart from the newest checkpoint, not the job.
"""

from __future__ import annotations

import math
import os
import sys
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click

from reference_trainer.launch.gang import Gang, GangError
from reference_trainer.launch.launchers import LAUNCHERS, JobResult, TrainingJob
from reference_trainer.options import build_config, config_options
from reference_trainer.rank_report import (
    JOB_VARIABLE,
    encode_words,
    read_variables,
    trained_words,
)


@click.command()
@click.option("--workers", default="all", show_default=True, help="How many ranks, or all.")
@click.option(
    "--launcher",
    type=click.Choice(list(LAUNCHERS)),
    default="gang",
    show_default=True,
    help="Who starts and restarts the ranks: this package, Ray Train, or torchrun.",
)
@click.option("--unset", multiple=True, metavar="NAME", help="Remove a variable from every rank.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Set one on them.")
@click.option("--restarts", default=3, show_default=True, help="How many losses to make good.")
@click.option("--wait", default=300.0, show_default=True, help="Seconds to wait for room.")
@click.option("--name", default="launch", show_default=True, help="Of its placement group.")
@config_options
def launch(
    workers: str,
    launcher: str,
    unset: tuple[str, ...],
    settings: tuple[str, ...],
    restarts: int,
    wait: float,
    name: str,
    **values: Any,
) -> None:
    """Start the job on the Ray cluster that this process is in."""
    config = build_config(values)
    if restarts < 0 or wait <= 0:
        raise click.UsageError("--restarts takes 0 or more, --wait a number above 0")
    import ray

    if isinstance(sys.stdout, TextIOWrapper):  # Ray prints the ranks' lines without a flush
        sys.stdout.reconfigure(line_buffering=True)
    # A submitted job brings its code (RAY_JOB_CONFIG_JSON_ENV_VAR); any other job ships this
    # package.
    default_env = {"py_modules": [str(Path(__file__).parents[1])], "excludes": ["**/__pycache__"]}
    runtime_env = None if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ else default_env
    ray.init(log_to_driver=True, logging_level="warning", runtime_env=runtime_env)
    resource = "GPU" if ray.cluster_resources().get("GPU") else "CPU"
    job = TrainingJob(
        config=config,
        size=_count_ranks(workers, resource),
        resource=resource,
        environment={JOB_VARIABLE: name, **_parse_settings(settings), **dict.fromkeys(unset)},
        restarts=restarts,
        wait_s=wait,
        name=name,
        on_start=partial(print_rendezvous, config.show),
        notify=click.echo,
    )
    try:
        result = LAUNCHERS[launcher](job)
    except GangError as error:
        raise click.ClickException(str(error)) from None
    _print_result(job, result)


def _parse_settings(settings: tuple[str, ...]) -> dict[str, str | None]:
    """Parse NAME=VALUE. Raises click.UsageError."""
    parsed: dict[str, str | None] = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        if not name or not sign:
            raise click.UsageError(f"--set takes NAME=VALUE, found {setting!r}")
        parsed[name] = value
    return parsed


def print_rendezvous(shown: str, gang: Gang, attempt: int) -> None:
    """Print one line for each rank: attempt, location, rendezvous, and the variables `shown`."""
    environments = gang.run(read_variables, shown, timeout=60)
    for place, variables in zip(gang.places, environments, strict=True):
        where = {"node": place.node, "host": place.host, "pid": place.pid}
        click.echo(f"attempt={attempt} {encode_words({**where, **variables})}")


def _print_result(job: TrainingJob, result: JobResult) -> None:
    """Print the last lines. Raises click.ClickException when the last loss is not finite."""
    steps = result.rank0["steps"]
    last = steps[-1] if steps else {"step": result.rank0["start_step"], "loss": None}
    if last["loss"] is not None and not math.isfinite(last["loss"]):
        raise click.ClickException(f"the loss of step {last['step']} is {last['loss']}")
    for rank in result.ranks:
        click.echo(f"trained {encode_words(trained_words(rank))}")
    loss = "" if last["loss"] is None else f" loss={last['loss']:.4f}"
    attempts = "" if result.attempts is None else f" attempts={result.attempts}"
    click.echo(
        f"done ranks={job.size}{attempts} step={last['step']}{loss} digest={result.rank0['digest']}"
    )


def _count_ranks(workers: str, resource: str) -> int:
    """Return the number of ranks; "all" means all GPUs, or one rank per node without GPUs.

    Raises click.UsageError when `workers` is neither a number nor "all".
    """
    import ray

    if workers == "all":
        alive = sum(bool(node["Alive"]) for node in ray.nodes())
        return int(ray.cluster_resources()["GPU"]) if resource == "GPU" else alive
    if not workers.isdecimal() or int(workers) < 1:
        raise click.UsageError(f"--workers takes a number or all, found {workers!r}")
    return int(workers)
