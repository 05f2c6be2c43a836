"""What a command says when it was given something that it cannot use."""

from __future__ import annotations

from pathlib import Path

import click

USAGE = 4
click.UsageError.exit_code = USAGE  # click's own is 2, and 2 is a run that was interrupted
FOLDER = click.Path(path_type=Path)


class Refused(click.ClickException):
    """One sentence on what was expected and what was found; exit code 4."""

    exit_code = USAGE
