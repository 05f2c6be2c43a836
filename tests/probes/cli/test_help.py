"""Each command has a short help that fits, and an example that its own parser takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from probes.cli.main import SECTIONS, main

MAX_SHORT_HELP = 45  # letters: what a list of commands shows in 80 columns


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield each command with its path, groups too."""
    for name, command in group.commands.items():
        here = (*path, name)
        yield " ".join(here), command
        if isinstance(command, click.Group):
            yield from commands(command, here)


COMMANDS = dict(commands(main))
LEAVES = [name for name, one in COMMANDS.items() if not isinstance(one, click.Group)]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_short_help_fits(name: str) -> None:
    text = COMMANDS[name].get_short_help_str(limit=1000)
    assert 10 < len(text) <= MAX_SHORT_HELP, text
    assert text.endswith(".")


def examples(name: str) -> list[str]:
    lines = re.sub(r"^\s*\x08\n", "", COMMANDS[name].epilog or "").splitlines()
    found = [line.partition("seatrial ")[2] for line in lines if "seatrial " in line]
    return [one.partition(" > ")[0] for one in found]


@pytest.mark.parametrize("name", LEAVES)
def test_each_command_has_an_example_that_it_takes(name: str) -> None:
    assert examples(name), "an epilog with `seatrial <command> ...`"
    for example in examples(name):
        words = shlex.split(example)
        depth = len(name.split())
        assert " ".join(words[:depth]) == name
        COMMANDS[name].make_context(name, words[depth:])


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_each_help_fits_80_columns_and_is_complete(name: str) -> None:
    result = CliRunner().invoke(main, [*name.split(), "--help"], terminal_width=80)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert not [line for line in lines if line.endswith("...") and line.startswith("  ")], "cut"
    if name in LEAVES:
        assert f"seatrial {name}" in result.output


def test_each_command_is_in_one_section_of_the_help() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(main.commands)
    text = CliRunner().invoke(main, ["--help"]).output
    assert [line.rstrip(":") for line in text.splitlines() if line.rstrip(":") in SECTIONS] == [
        *SECTIONS
    ]
