"""Usage errors of the commands, for input that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from reports.exports import CommandGroup, Refusal

__all__ = ("PATH_TYPE", "CommandGroup", "UsageError", "refuse_unusable")
PATH_TYPE = click.Path(path_type=Path)


class UsageError(Refusal):
    """Usage error, with exit code 4.  One sentence: what was expected and what was found."""


@contextmanager
def refuse_unusable() -> Iterator[None]:
    """Raise UsageError for a contract or a run folder that cannot be read."""
    from probes.contract.contract import ContractError
    from reports.run_folder.event_log import UnreadableRun

    try:
        yield
    except (ContractError, UnreadableRun) as error:
        raise UsageError(str(error)) from None
