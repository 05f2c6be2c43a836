"""Command line of the trainer; `train` runs one rank under torchrun or a compatible launcher."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from reference_trainer.config import build_config, config_options
from reference_trainer.telemetry.event_log import exit_message, handle_sigterm

# Commands that are imported only when called, so that --help stays fast.
LAZY = {
    "launch": (
        "reference_trainer.launch.launchers",
        "Start the job on a Ray cluster, whole or not at all.",
    ),
    "shards": (
        "reference_trainer.data.shards",
        "Tokenise this node's share of a folder of documents.",
    ),
}


class LazyGroup(click.Group):
    """Click group that imports a command's module only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the sorted names of all commands whose module exists."""
        names = [n for n, (module, _) in LAZY.items() if importlib.util.find_spec(module)]
        return sorted({*super().list_commands(ctx), *names})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return the command of this name, importing its module if needed; None if unknown."""
        if name not in LAZY or name not in self.list_commands(ctx):
            return super().get_command(ctx, name)
        return getattr(importlib.import_module(LAZY[name][0]), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing their modules."""
        with formatter.section("Commands"):
            texts = {name: command.get_short_help_str() for name, command in self.commands.items()}
            texts |= {name: text for name, (_, text) in LAZY.items()}
            formatter.write_dl([(name, texts[name]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup)
def main() -> None:
    """A small FSDP training job: data, checkpoints, and a clock on every step."""


@main.command()
@config_options
def train(**values: Any) -> None:
    """Train as one rank of a job.

    Start it with one process per GPU, for example
    torchrun --nproc-per-node 8 -m reference_trainer train --steps 100

    On SIGTERM it saves and leaves with exit code 75: the same command goes on from there.
    """
    config = build_config(values)
    if config.out and Path(config.out).is_file():
        raise click.UsageError(f"--out takes a folder, found a file: {config.out}")
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


if __name__ == "__main__":
    main(prog_name="python -m reference_trainer")
