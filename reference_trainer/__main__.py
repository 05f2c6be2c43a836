"""Command line of the trainer; `train` runs one rank under torchrun or a compatible launcher."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from reference_trainer.config import build_config, config_options
from reference_trainer.data.shards import shards
from reference_trainer.launch.launchers import launch
from reference_trainer.telemetry.event_log import exit_message, handle_sigterm


@click.group()
def main() -> None:
    """A small FSDP training job with data, checkpoints, and a time measurement of every step."""


@main.command()
@config_options
def train(**values: Any) -> None:
    """Train as one rank of a job.

    Start it with one process per GPU, for example
    torchrun --nproc-per-node 8 -m reference_trainer train --steps 100

    On SIGTERM it saves and exits with code 75. The same command then resumes from that step.
    """
    config = build_config(values)
    if config.out and Path(config.out).is_file():
        raise click.UsageError(f"--out must be a folder, but {config.out} is a file")
    handle_sigterm()  # before the imports, which take seconds
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    from reference_trainer.data.documents import DataError
    from reference_trainer.manifest import CheckpointError
    from reference_trainer.model.size import MemoryShortage
    from reference_trainer.rank_environment import LaunchError, read_environment

    try:
        read_environment()  # before the slow import of torch
        from reference_trainer.train import train as run

        result = run(config)
    except (LaunchError, CheckpointError, DataError, MemoryShortage) as error:
        raise click.ClickException(str(error)) from None
    if result["left"]:
        if result["rank"] == 0:
            logging.info("%s", exit_message(result))
        logging.shutdown()
        sys.stdout.flush()
        # Not sys.exit: a torch thread that still runs may abort the interpreter's shutdown. The
        # parent process would then not see exit code 75.
        os._exit(os.EX_TEMPFAIL)


main.add_command(launch)
main.add_command(shards)

if __name__ == "__main__":
    main(prog_name="python -m reference_trainer")
