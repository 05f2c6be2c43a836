"""Guides that do not lead to a job, or to another one than they say.  A plugin, and the faults.

pytest -p tests.faults.launchers.faulty_guide ...      with SEATRIAL_TEST_FAULT=<a name of FAULTS>
"""

from __future__ import annotations

import os
from collections.abc import Callable

from probes.launch import documented_path

NAME = "SEATRIAL_TEST_FAULT"
Commands = list[list[str]]


def pytest_configure() -> None:
    """The documented commands are others from now on."""
    commands = documented_path.documented_commands()
    vars(documented_path)["documented_commands"] = lambda: FAULTS[os.environ[NAME]](commands)


def submit(change: Callable[[list[str]], list[str]]) -> Callable[[Commands], Commands]:
    """Change the command that submits the job."""
    return lambda commands: [
        change(words) if words[:3] == documented_path.SUBMIT else words for words in commands
    ]


def replaced(old: str, new: str) -> Callable[[list[str]], list[str]]:
    return lambda words: [new if word == old else word for word in words]


def typo(words: list[str]) -> list[str]:
    """The module's name is written wrongly: the job ends at once."""
    return replaced("reference_trainer", "reference_trainr")(words)


def one_rank_fewer(words: list[str]) -> list[str]:
    """It says three where the cluster has four: a job that runs, and leaves one idle."""
    return replaced("all", "3")(words)


def no_local_rank(words: list[str]) -> list[str]:
    """A variable is missing that this job does not need, and the user's may."""
    return [*words, "--unset", "LOCAL_RANK"]


def first_command_fails(commands: Commands) -> Commands:
    """The guide begins with a command that is not there."""
    return [["seatrial", "exmaple", "myjob"], *commands[1:]]


FAULTS: dict[str, Callable[[Commands], Commands]] = {
    "typo": submit(typo),
    "one-rank-fewer": submit(one_rank_fewer),
    "no-local-rank": submit(no_local_rank),
    "first-command": first_command_fails,
}
