"""What a command says when it was given something that it cannot use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

EXIT_USAGE = 4  # as pytest's own for usage; click's is 2, which here is a run interrupted
PATH_TYPE = click.Path(path_type=Path)


class UsageError(click.ClickException):
    """One sentence on what was expected and what was found; exit code 4."""

    exit_code = EXIT_USAGE


class CommandGroup(click.Group):
    """Commands whose usage errors end with 4 too."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Make a context, as click does."""
        with _usage_exit_code():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke a command, as click does."""
        with _usage_exit_code():
            return super().invoke(ctx)


@contextmanager
def _usage_exit_code() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        # click reads it from the error itself, but declares it as its class's: hence the ignore.
        error.exit_code = EXIT_USAGE  # type: ignore[misc]
        raise


@contextmanager
def refuse_unusable() -> Iterator[None]:
    """Refuse, as a usage error, a contract or a run folder that cannot be read."""
    from probes.acceptance.contract import ContractError
    from reports.run_folder.files import UnreadableRun

    try:
        yield
    except (ContractError, UnreadableRun) as error:
        raise UsageError(str(error)) from None
