"""Whatever a command raises: one sentence, one of the suite's codes, never 1."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from probes.cli.main import main
from reports.command import MAX_SENTENCE, CommandGroup
from reports.run_folder.event_log import UnreadableRun
from tests.support.paths import REPO

RAISED = [
    (
        KeyError("x"),
        3,
        r"error: internal error of seatrial: KeyError: 'x' \(test_command\.py:\d+\)",
    ),
    (RecursionError("deep"), 3, "error: internal error of seatrial: RecursionError: deep"),
    (MemoryError(), 3, "error: internal error of seatrial: MemoryError: no message"),
    (OverflowError("1e308"), 3, "error: internal error of seatrial: OverflowError: 1e308"),
    (
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        3,
        "error: internal error of seatrial: UnicodeDecodeError: ",
    ),
    (
        ValueError("a\nACCEPTED: all\x1b[32m"),
        3,
        "error: internal error of seatrial: ValueError: a ACCEPTED: all ",
    ),
    (
        RuntimeError("HF_TOKEN=hf_words"),
        3,
        "error: internal error of seatrial: RuntimeError: HF_TOKEN=<redacted> ",
    ),
    (
        RuntimeError("::add-mask::x"),
        3,
        "error: internal error of seatrial: RuntimeError: : :add-mask::x ",
    ),
    (OSError(errno.ENAMETOOLONG, "File name too long", "a" * 9), 4, "error: a{9}: File name too"),
    (OSError("words"), 4, "error: words"),
    (OSError(errno.ENOSPC, "No space left on device"), 4, "error: No space left on device"),
    (FileNotFoundError(2, "No such file", "a\nACCEPTED"), 4, "error: a ACCEPTED: No such file"),
    (UnreadableRun("no run here"), 4, "error: no run here"),
    (UnreadableRun("x" * 9000), 4, f"error: x{{{MAX_SENTENCE}}}\\.\\.\\."),
    (click.UsageError("no \x1b[31msuch\nthing"), 4, "error: no such thing"),
    (click.FileError("f", "is odd"), 4, "error: Could not open file 'f': is odd"),
    (click.Abort(), 2, "error: interrupted"),
    (KeyboardInterrupt(), 2, "error: interrupted"),
    (BrokenPipeError(errno.EPIPE, "Broken pipe"), 2, ""),
    (SystemExit(20), 20, ""),
    (SystemExit(1), 1, ""),
]


@pytest.mark.parametrize(("error", "code", "says"), RAISED, ids=lambda value: repr(value)[:40])
def test_what_a_command_raises_is_one_sentence(error: BaseException, code: int, says: str) -> None:
    @click.group(cls=CommandGroup)
    def group() -> None:
        """A group."""

    @group.command()
    def fails() -> None:
        raise error

    done = CliRunner().invoke(group, ["fails"])
    assert done.exit_code == code
    assert re.match(says, done.output)
    assert len(done.output.splitlines()) == bool(says)


def test_every_command_is_of_such_a_group() -> None:
    group = main
    assert isinstance(group, CommandGroup)
    done = CliRunner().invoke(group, ["explian\x1b[31m"])
    assert done.exit_code == 4
    assert "\x1b" not in done.output
    assert len(done.output.splitlines()) == 1


def test_without_a_command_the_help_is_shown() -> None:
    done = CliRunner().invoke(main, [])
    assert done.exit_code == 4
    assert "Before a run:" in done.output
    assert len(CliRunner().invoke(main, ["--help"]).output.splitlines()) > 9


def seatrial(*words: str | Path, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "probes.cli.main", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(REPO), "PYTHONIOENCODING": "latin-1"}
    return subprocess.Popen(
        command, env=environment, stdout=stdout, stderr=subprocess.PIPE, encoding="latin-1"
    )


def test_a_reader_that_has_left_is_no_fault() -> None:
    read, write = os.pipe()
    os.close(read)
    process = seatrial("explain", stdout=write)
    os.close(write)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 2


def test_a_full_disk_is_one_sentence() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    process = seatrial("explain", stdout=full)
    os.close(full)
    assert process.communicate(timeout=60)[1] == "error: No space left on device\n"
    assert process.returncode == 4


def test_ctrl_c_is_an_interruption(tmp_path: Path) -> None:
    fifo = tmp_path / "nccl.log"
    os.mkfifo(fifo)
    process = seatrial("nccl-log", fifo)
    descriptor = os.open(fifo, os.O_WRONLY)  # returns once the command reads
    time.sleep(0.2)  # into the read, out of the open
    process.send_signal(signal.SIGINT)
    words = process.communicate(timeout=60)[1]
    os.close(descriptor)
    assert words == "error: interrupted\n"
    assert process.returncode == 2


def test_letters_that_a_terminal_lacks_are_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('schema = 1\ntitle = "Abnahme \u2192 K"\n', encoding="utf-8")
    process = seatrial("contract", "check", file)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "Abnahme \\u2192 K" in out


@pytest.mark.parametrize("parent", ["file", "file/below", "long"])
def test_an_example_needs_a_folder(tmp_path: Path, parent: str) -> None:
    (tmp_path / "file").write_text("ours")
    target = tmp_path / (parent if parent != "long" else "x" * 300)
    done = CliRunner().invoke(main, ["example", str(target)])
    assert done.exit_code == 4
    assert len(done.output.splitlines()) == 1
    assert (tmp_path / "file").read_text() == "ours"
