"""The environment of one rank's process.  Needs no torch, whose import takes seconds."""

from __future__ import annotations

import os
from collections.abc import Mapping

LAUNCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class LaunchError(RuntimeError):
    """The process was not started as one rank of a job; the message says what to do."""


def read_environment() -> dict[str, int]:
    """Read the numbers among LAUNCH_VARIABLES.

    Raises LaunchError naming what is missing or impossible.
    """
    missing = [name for name in LAUNCH_VARIABLES if not os.environ.get(name)]
    if missing:
        raise LaunchError(
            f"{', '.join(missing)} not set in the environment: start the job with torchrun"
            " or with `python -m reference_trainer launch`, or set the variables yourself"
        )
    numbers = {name: _read_integer(name) for name in LAUNCH_VARIABLES if name != "MASTER_ADDR"}
    if numbers["RANK"] >= numbers["WORLD_SIZE"]:
        raise LaunchError(
            f"RANK is {numbers['RANK']}, expected below WORLD_SIZE={numbers['WORLD_SIZE']}:"
            " ranks count from 0"
        )
    return numbers


def change_environment(variables: Mapping[str, str | None]) -> None:
    """Set these variables in this process; None removes one."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _read_integer(name: str) -> int:
    text = os.environ[name]
    if not text.isdecimal():
        raise LaunchError(f"{name} is {text!r}, expected a whole number: correct the environment")
    return int(text)
