"""What a command says when it was given something that it cannot use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

EXIT_USAGE = 4  # as pytest's own for usage; click's is 2, which here is a run interrupted
PATH_TYPE = click.Path(path_type=Path)
click.UsageError.exit_code = EXIT_USAGE


class UsageError(click.ClickException):
    """One sentence on what was expected and what was found; exit code 4."""

    exit_code = EXIT_USAGE


@contextmanager
def refuse_unusable() -> Iterator[None]:
    """Refuse, as a usage error, a contract or a run folder that cannot be read."""
    from probes.acceptance.contract import ContractError
    from reports.store import UnreadableRun

    try:
        yield
    except (ContractError, UnreadableRun) as error:
        raise UsageError(str(error)) from None
