"""The shell's completion: scripts, and what they complete."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from probes.cli.main import main
from tests.support.paths import REPO


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_printed_for_each_shell(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert "_SEATRIAL_COMPLETE" in result.output
    assert f"{shell}_complete" in result.output
    program = shutil.which(shell)
    if program:
        done = subprocess.run([program, "-n"], input=result.output, text=True, check=False)
        assert done.returncode == 0, "the shell can parse it"


def test_another_shell_is_refused() -> None:
    result = CliRunner().invoke(main, ["completion", "csh"])
    assert result.exit_code == 4
    assert "'bash', 'zsh', 'fish'" in result.output


def complete(*words: str) -> list[str]:
    """What bash is offered for the last word."""
    environment = {
        "_SEATRIAL_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["seatrial", *words]),
        "COMP_CWORD": str(len(words)),
        "PYTHONPATH": str(REPO),
    }
    code = "from probes.cli.main import main; main(prog_name='seatrial')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("comp",), ["compare", "completion"]),
        (("run", "--ti"), ["--tier"]),
        (("run", "--tier", "s"), ["standard", "soak"]),
        (("run", "--only", "GA"), ["GANG"]),
        (("plan", "--contract", "h100"), ["h100-ndr400", "h100-one-node", "h100-roce400"]),
    ],
)
def test_commands_options_and_values_are_completed(
    words: tuple[str, ...], offered: list[str]
) -> None:
    assert complete(*words) == offered
