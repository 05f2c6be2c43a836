"""The plugin and the commands declare the options of one table."""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Any, cast

import click
import pytest

from probes import plugin
from probes.cli.main import main
from probes.cli.run import run_options
from probes.session.options import BY_KEY, OPTIONS
from probes.session.terminal import shorten_usage_error
from tests.support.paths import REPO


def options_of(*path: str) -> dict[str, click.Option]:
    """The options of a command by name."""
    command: Any = main
    for name in path:
        command = command.commands[name]
    return {
        name: one for one in command.params if isinstance(one, click.Option) for name in one.opts
    }


def options_of_plugin() -> dict[str, dict[str, Any]]:
    """What the plugin declares, by name."""
    declared: dict[str, dict[str, Any]] = {}

    class Parser:
        def getgroup(self, *_: str) -> Parser:
            return self

        def addoption(self, name: str, **settings: Any) -> None:
            declared[name] = settings

    plugin.pytest_addoption(cast(Any, Parser()))
    return declared


def test_plugin_and_command_declare_the_same_options() -> None:
    declared, command = options_of_plugin(), options_of("run")
    assert list(declared) == [option.name for option in OPTIONS]
    for option in OPTIONS:
        assert declared[option.name] == {"metavar": option.metavar, "help": option.help}
        found = command[option.name]
        assert found.metavar == option.metavar
        assert (found.help or "").lower() == f"{option.help}.".lower()
        assert found.envvar == option.variable
    own = {"-k", "-v", "--verbose", "-q", "--quiet", "--collect-only"}
    assert set(command) == declared.keys() | own, "nothing else"


@pytest.mark.parametrize("path", [("plan",), ("scaling", "run"), ("again",)])
def test_other_commands_take_options_of_the_table(path: tuple[str, ...]) -> None:
    own = {"again": {"--run"}}.get(path[-1], set())
    names = set(options_of(*path)) - own
    assert names
    assert names <= {option.name for option in OPTIONS}


def test_the_table_has_each_name_once() -> None:
    assert len(BY_KEY) == len(OPTIONS)
    assert BY_KEY["run_dir"].variable == "SEATRIAL_RUN_DIR"
    parser = argparse.ArgumentParser()
    for option in OPTIONS:  # argparse formats a help, so a % in it would be an error
        parser.add_argument(option.name, help=option.help, metavar=option.metavar)
    assert OPTIONS[0].help.split()[0] in parser.format_help()


def test_an_option_that_a_command_leaves_out_is_left_out() -> None:
    @click.command()
    @run_options("tier")
    def command(**_: str) -> None: ...

    assert [one.name for one in command.params] == ["tier"]


def test_an_unknown_option_is_refused_in_one_sentence() -> None:
    usage = "usage: x [options]\nx: error: unrecognized arguments: --clutser a\n  inifile: None\n"
    assert shorten_usage_error(usage) == (
        "pytest refuses the arguments after `--`: unrecognized arguments: --clutser a; "
        "did you mean --cluster, before the `--`?"
    )
    other = "usage: x\nx: error: argument --maxfail: invalid int value: 'a'\n  rootdir: /\n"
    assert shorten_usage_error(other) == (
        "pytest refuses the arguments after `--`: argument --maxfail: invalid int value: 'a'"
    )
    assert shorten_usage_error("--tier is 'x'") == "--tier is 'x'"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--clutser", "auto"], "error: No such option '--clutser'"),
        (["--maxfail", "1"], "error: No such option '--maxfail': options of pytest go after `--`."),
        (["fabric"], "error: Got unexpected extra argument (fabric)"),
        (["--", "--clutser", "auto"], "did you mean --cluster, before the `--`?"),
        (["--tier", "standart"], "did you mean standard?"),
        (["--cluster", "atuo"], "did you mean auto?"),
    ],
)
def test_errors_are_in_one_voice(arguments: list[str], says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "probes.cli.main", "run", *arguments],
        capture_output=True, text=True, cwd=REPO, timeout=60, check=False,
    )  # fmt: skip
    output = done.stdout + done.stderr
    assert done.returncode == 4
    assert says in output
    assert len(output.strip().splitlines()) == 1
    for word in ("inifile", "rootdir", "usage:", "Traceback"):
        assert word not in output
    assert "--cluster" in output or "--clutser" not in output
