"""What commands print is kept in bounds, and what is left out is said."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from probes.contract.terms import ClusterTerms
from probes.launch import output, shell
from probes.launch.guide import LaunchPath, own_guide
from probes.launch.output import MAX_LINE, LineReader, OutputLines
from probes.launch.shell import User
from probes.launch.training import announced_ranks, logged_losses
from tests.probes.launch.test_shell import Cleanup, cluster_with
from tests.support.launched_job import job_lines

LEFT_OUT = "seatrial left out"


def read(content: bytes, piece: int) -> list[str]:
    """Read bytes in pieces of this size."""
    reader = LineReader()
    lines = [
        line
        for first in range(0, len(content), piece)
        for line in reader.read(content[first : first + piece])
    ]
    return [*lines, *reader.read(b"", final=True)]


@pytest.mark.parametrize("piece", [1, 2, 7, 1000])
def test_lines_are_those_of_a_terminal(piece: int) -> None:
    text = "a\n\nb\r\nc\rd \u00e9\U0001f600\nlast"
    assert read(text.encode(), piece) == ["a", "", "b", "c", "d \u00e9\U0001f600", "last"]
    assert read(b"\xff\xfe\n\xc3", piece) == ["\ufffd\ufffd", "\ufffd"]
    assert read(b"", piece) == []
    assert read(b"x\n", piece) == ["x"]


@pytest.mark.parametrize("piece", [1000, 65536])
def test_the_end_of_a_long_line_is_left_out_and_counted(piece: int) -> None:
    words = "word " * 100_000
    [line, after] = read(f"{words}\nafter\n".encode(), piece)
    kept, _, said = line.partition(f" [{LEFT_OUT} ")
    assert words.startswith(kept)
    assert MAX_LINE - 10 < len(kept) < MAX_LINE
    assert said == f"{len(words) - len(kept):,} characters of this line]".replace(",", "")
    assert after == "after"
    assert read(b"w" * MAX_LINE, piece) == ["w" * MAX_LINE]


def test_no_half_of_a_secret_is_kept() -> None:
    """A token that is cut has no form by which it is known."""
    token = "t0ken" * 200
    [line] = read(f"{'x' * (MAX_LINE - 20)} {token}\n".encode(), 1000)
    assert "t0ken" not in line
    [line] = read(f"{'x' * (MAX_LINE - 20)}{token}\n".encode(), 1000)
    assert "t0ken" not in line


def collect(lines: list[str], ranks: int = 2) -> list[str]:
    """Return what is kept of these lines."""
    kept: list[str] = []
    collected = OutputLines(kept, ranks)
    for line in lines:
        collected.add(line)
    return kept


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test reaches at once."""
    for name in ("FIRST_BYTES", "LAST_BYTES"):
        monkeypatch.setattr(output, name, 2000)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("count", [1, 20, 40, 60, 100, 1000])
def test_the_first_and_the_last_lines_are_kept_and_the_others_counted(count: int) -> None:
    lines = [f"line {number}" for number in range(count)]
    kept = collect(lines)
    notes = [place for place, line in enumerate(kept) if LEFT_OUT in line]
    if count <= 60:
        assert kept == lines
        return
    [place] = notes
    assert kept[:place] == lines[:place]
    assert kept[place + 1 :] == lines[place + 1 - len(kept) :]
    assert place > 20
    assert len(kept) < 100
    assert f"{LEFT_OUT} {count - len(kept) + 1} lines here" in kept[place]


@pytest.mark.usefixtures("small")
def test_all_that_ranks_say_is_kept_however_much_stands_between() -> None:
    said, random_ = job_lines(), random.Random(1)
    lines = [each for line in said for each in [*["noise"] * random_.choice([0, 30, 200]), line]]
    kept = "\n".join(collect([*lines, *["noise"] * 300]))
    assert LEFT_OUT in kept
    assert announced_ranks(kept) == announced_ranks("\n".join(said))
    assert logged_losses(kept) == logged_losses("\n".join(said))


@pytest.mark.usefixtures("small")
def test_what_ranks_say_has_a_bound_that_grows_with_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output, "RANKS_BYTES", 0)
    line = "attempt=1 node=x host=y " + "z" * 900
    for ranks in (1, 3):
        kept = collect([line] * 100, ranks)
        assert len(kept) - 2 * (2000 // 1000) in range(8 * ranks - 1, 8 * ranks + 7)


@pytest.mark.parametrize("word", ["trained ", "attempt=1 ", "1 ranks on ", "step 1/1 "])
def test_a_hostile_line_is_read_at_once(word: str) -> None:
    started = time.monotonic()
    text = word * (MAX_LINE // len(word))
    assert announced_ranks(text) == []
    assert logged_losses(text) == []
    collect([text] * 50)
    assert time.monotonic() - started < 5


@pytest.fixture
def path(tmp_path: Path) -> LaunchPath:
    return LaunchPath(cluster_with(Cleanup()), ClusterTerms(), own_guide(), User(tmp_path))


def test_a_flood_of_a_guide_stays_in_bounds(path: LaunchPath) -> None:
    """One line of 100 MB, and a hundred thousand lines."""
    started = time.monotonic()
    said = path.ask("head -c 100000000 /dev/zero | tr '\\0' x\necho\nseq 100000\necho the end\n")
    assert (said.exit_code, said.lines[-1]) == (0, "the end")
    assert sum(map(len, said.lines)) < 4 << 20
    notes = [line[-60:] for line in said.lines if LEFT_OUT in line]
    assert len(notes) == 2
    assert "characters of this line]" in notes[0]
    assert "lines here" in notes[1]
    assert time.monotonic() - started < 30


def test_what_a_background_process_prints_later_is_left_out_with_a_word(
    path: LaunchPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "READ_SECONDS", 0.3)
    late = "setsid sh -c 'for n in 1 2 3 4 5 6 7 8 9; do sleep 0.1; echo late; done' &"
    said = path.ask(f"{late}\nsleep 0.15\necho done\n")
    lines = list(said.lines)
    assert said.text.splitlines()[-1] == shell.STILL_OPEN
    assert shell.STILL_OPEN not in lines
    time.sleep(0.3)  # in which it prints more
    assert said.lines == lines
