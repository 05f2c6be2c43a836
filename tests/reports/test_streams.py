"""Output that cannot be written ends the printing, and not the program."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from reports.streams import lasting
from tests.support.paths import REPO

GUARDED = "from reports.streams import guard_streams; import os, sys; guard_streams(); "


def run(code: str, shell: str) -> subprocess.CompletedProcess[str]:
    """Run this code after guard_streams; `shell` gives its output a place."""
    return subprocess.run(
        ["bash", "-c", shell, "sh", sys.executable, "-c", GUARDED + code],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "shell",
    ['"$@" >&-', '"$@" >&- 2>&-', '"$@" <&- >&- 2>&-', '"$@" >/dev/full 2>/dev/full',
     'set -o pipefail; "$@" | true', '"$@" 2>&1 </dev/null >/dev/full'],
)  # fmt: skip
def test_what_cannot_be_written_is_no_error(shell: str) -> None:
    code = "[print('x' * 9999) for _ in range(99)]; print('y', file=sys.stderr); sys.exit(7)"
    done = run(code, shell)
    assert done.returncode == 7, done
    assert "Traceback" not in done.stderr


def test_without_a_guard_it_is_one() -> None:
    code = "import sys; print('x' * 99999); sys.exit(7)"
    command = ["bash", "-c", '"$@" >/dev/full', "sh", sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 7


def test_a_file_never_gets_the_number_of_a_closed_stream() -> None:
    """Else what a library prints on file 2 would stand in the event log."""
    done = run("print(os.open('/dev/null', 0) > 2)", '"$@" 2>&-')
    assert done.stdout == "True\n"


def test_all_that_can_be_written_is_written_and_in_order() -> None:
    code = "print('a', end=''); guard_streams(); print('b'); sys.stderr.write('c'); print('d')"
    done = run(code, '"$@"')
    assert (done.stdout, done.stderr) == ("ab\nd\n", "c")


def test_encoding_and_its_errors_stay() -> None:
    read, write = os.pipe()
    with open(read, "rb") as reader, open(write, "w", encoding="ascii", errors="replace") as old:
        with lasting(old) as new:
            assert (new.encoding, new.errors) == ("ascii", "replace")
            new.write("\u00fc")
        assert reader.read(1) == b"?"


def test_a_stream_without_a_file_stays() -> None:
    stream = io.StringIO()
    assert lasting(stream) is stream


def test_a_pipe_that_does_not_block_gets_all() -> None:
    """As where a tool made its terminal non-blocking: a slow reader loses nothing."""
    code = "os.set_blocking(1, False); print('x' * 300_000)"
    done = run(code, '"$@" | (sleep 1; wc -c)')
    assert done.stdout.strip() == "300001"
