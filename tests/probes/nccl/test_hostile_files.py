"""`seatrial nccl-log` of what is no log: nothing hangs, and what is not read proves nothing."""

from __future__ import annotations

import gzip
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from probes.cli.main import main
from probes.nccl.parser import read_logs
from probes.nccl.patterns import Phrase, read_phrases
from probes.nccl.report import MAX_UNREAD, analyse_files
from probes.nccl.rows import LineRow, RowReader, read_rows
from tests.probes.nccl.test_memory_bounds import MOST, read
from tests.recordings.generate.nccl_logs import Job
from tests.support.paths import REPO

HEALTHY = Job().text()
WARN = "node0:1000:1000 [0] NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory"
SECONDS = 3  # of the processor, for three megabytes; a tenth of it is usual


def nccl_log(*paths: object) -> Result:
    """The command, run in this process."""
    return CliRunner().invoke(main, ["nccl-log", *map(str, paths)])


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


@pytest.mark.parametrize(
    "name",
    ["/dev/zero", "/dev/urandom", "/dev/null", "x" * 300, "a/" * 5000, "missing", "loop", "zero",
     "socket", "\x1b[2J\nno fault found"],
    ids=lambda name: repr(name[:12]),
)  # fmt: skip
def test_what_is_named_and_no_log_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    link("loop")(Path("loop"))
    link("/dev/zero")(Path("zero"))
    a_socket(Path("socket"))
    done = nccl_log(name)
    assert done.exit_code == 4
    assert done.output.startswith("error: ")
    assert done.output.removesuffix("\n").isprintable()


STRANGE = {
    "fifo": (os.mkfifo, "was not read: in a folder, only regular files"),
    "socket": (a_socket, "was not read: in a folder, only regular files"),
    "zero": (link("/dev/zero"), "was not read: it is a link to a file outside"),
    "loop": (link("strange"), "was not read: it is a link to a file outside"),
    "nowhere": (link("nothing"), "was not read: it is a link to a file outside"),
    "above": (link(".."), "was not read: it is a link to a file outside"),
    "other job": (link("../other.log"), "was not read: it is a link to a file outside"),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_a_folder_with_something_strange_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.log").write_text(f"{WARN}\n")
    logs = Path("logs")
    logs.mkdir()
    (logs / "a.log").write_text(HEALTHY)
    assert nccl_log(logs).exit_code == 0
    make, says = STRANGE[kind]
    make(logs / "strange")
    done = nccl_log(logs)
    assert done.exit_code == 20
    assert f"logs/strange {says}" in " ".join(done.output.split())
    assert "ibv_reg_mr" not in done.output


def test_links_within_a_folder_are_no_matter(tmp_path: Path) -> None:
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / "a.log").write_text(HEALTHY)
    (tmp_path / "latest").symlink_to("rank0")
    (tmp_path / "a.log").symlink_to("rank0/a.log")
    done = nccl_log(tmp_path)
    assert (done.exit_code, done.output.splitlines()[0]) == (0, "no fault found")


def test_a_pipe_is_read_where_it_is_named(tmp_path: Path) -> None:
    fifo = tmp_path / "nccl.log"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_text, args=(HEALTHY,))
    writer.start()
    done = nccl_log(fifo)
    writer.join()
    assert done.exit_code == 0
    command = [sys.executable, "-m", "probes.cli.main", "nccl-log", "/dev/stdin"]
    piped = subprocess.run(command, input=HEALTHY, cwd=REPO, text=True, capture_output=True)
    assert (piped.returncode, piped.stdout) == (0, done.output)


def test_a_log_that_cannot_be_opened_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.log").write_text(HEALTHY)
    locked = tmp_path / "b"
    scan, opened = os.scandir, Path.open
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda path: (refuse if Path(path) == locked else scan)(path))
        done = nccl_log(tmp_path)
        assert done.exit_code == 20
        assert f"{locked} cannot be read: Permission denied" in " ".join(done.output.split())
    file = locked / "x.log"
    monkeypatch.setattr(Path, "open", lambda p, *a: (refuse if p == file else opened)(p, *a))
    done = nccl_log(tmp_path)
    assert done.exit_code == 20
    assert f"{file} cannot be read: Permission denied" in " ".join(done.output.split())
    assert "Errno" not in done.output


def test_what_is_over_the_total_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        (tmp_path / f"{number}.log").write_text(HEALTHY)
    monkeypatch.setattr("probes.nccl.parser.MAX_TOTAL", 2 * len(HEALTHY))
    done = nccl_log(tmp_path / "0.log", tmp_path / "1.log")
    assert done.exit_code == 0
    done = nccl_log(tmp_path)
    assert done.exit_code == 20
    assert "2.log: was not read to its end" in " ".join(done.output.split())


def test_a_small_file_that_unpacks_to_much_is_not_read_to_its_end(tmp_path: Path) -> None:
    """300 MB of NCCL's lines in half a megabyte, after a job that is sound."""
    lines = f"{WARN[:28]} INFO comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 MNNVL 0\n"
    part = gzip.compress((lines * (4_000_000 // len(lines))).encode())
    bomb = tmp_path / "x.log.gz"
    bomb.write_bytes(gzip.compress(HEALTHY.encode()) + part * 75)
    assert bomb.stat().st_size < 1_500_000
    code, peak, unproven = read(bomb)
    assert (code, peak < MOST) == (20, True)
    assert "unpacks to more than 100 times" in unproven


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (f"{WARN}{'x' * 9_000_000}", 20),
        (f"step 1{'x' * 9_000_000}", 0),  # as a bar of progress writes; nothing of NCCL's is lost
        (f"{'NCCL INFO ' + 'x' * 300} " * 70 + WARN, 20),
        (f"{'NCCL INFO ' + 'x' * 2000} " * 40 + WARN, 20),
    ],
    ids=["words before a long line's end", "other words", "many marks", "long and many"],
)
def test_a_line_that_is_not_read_whole_proves_nothing(tmp_path: Path, line: str, code: int) -> None:
    path = tmp_path / "x.log"
    path.write_text(f"{HEALTHY}{line}\n")
    found = analyse_files([path])
    assert found.exit_code == code
    assert [one for one in found.unproven if "longer than any line of NCCL" in one] or not code


HEAD = "node0:1:1 [0] NCCL INFO "
SLOW = {
    "Ray's repetition": HEAD + " " * 16_000 + "[repeated x",
    "a name without end": "a" * 2000 + " NCCL INFO x",
    "a file's name without end": "a" * 500 + ":1 NCCL WARN x",
    "dots": ".-" * 1000 + " NCCL INFO x",
    "digits": "a:1:" + "2" * 200 + " NCCL INFO x",
    "quotes": HEAD + '" ' * 8000,
    "one quote": HEAD + '"' + " " * 15_000,
    "figures": "1 " * 250 + "\n sum ",
    "spaces": "1" + " " * 400 + "x\n sum ",
    "colours": HEAD + "\x1b[1;" * 3000,
    "devices": f"{HEAD}NET/IB : Using {'[0]aaaaaaaa:' * 500}",
    "init": f"{HEAD}comm {'comm 0x1 rank 1 nranks 1 ' * 30} Init START",
}


MEGABYTE = 1_000_000
TINY_S = 0.05  # of the processor: below it a ratio says nothing
TRIES = 2  # a machine may be busy in one of them


def is_linear(work: Callable[[bytes], object], part: bytes) -> bool:
    """Return whether a line that repeats this takes about 4 times as long with 4 times more."""
    for _ in range(TRIES):
        spent = []
        for size in (MEGABYTE // 4, MEGABYTE):
            text = part * (size // len(part)) + b"\n"
            begun = time.process_time()
            work(text)
            spent.append(time.process_time() - begun)
        if spent[1] < 8 * max(spent[0], TINY_S):  # 16 times as long, were it quadratic
            return True
    return False


def list_parts(example: str) -> set[bytes]:
    """List what a pattern begins with, but never ends as it does, and all of it."""
    whole = example.encode()
    return {whole[: len(whole) * 2 // 3], whole}


@pytest.mark.parametrize("row", read_rows(), ids=lambda row: row.example[:40])
def test_no_pattern_of_a_row_takes_more_than_linear_time(row: LineRow) -> None:
    for part in {*row.words} | list_parts(row.example):
        assert is_linear(lambda text: RowReader().read(text, 1), part), part


def test_deep_indentation_takes_linear_time() -> None:
    """As in a printed configuration: blanks must not be split in many ways."""
    text = "".join(f"{' ' * blanks}# Errors are counted\n" for blanks in range(8, 60)).encode()
    begun = time.process_time()
    RowReader().read(text, 1)
    assert time.process_time() - begun < 3  # of the processor: it did not end before


@pytest.mark.parametrize("phrase", read_phrases(), ids=lambda phrase: phrase.example[:40])
def test_no_pattern_of_a_phrase_takes_more_than_linear_time(tmp_path: Path, phrase: Phrase) -> None:
    """As a warning, as news, and as what torch quotes."""
    path = tmp_path / "x.log"

    def work(text: bytes) -> None:
        for before in (b"n:1:1 [0] NCCL WARN ", b"n:1:1 [0] NCCL INFO ", b"Last error:\n"):
            path.write_bytes(before + text)
            read_logs([path])

    for part in list_parts(phrase.example):
        assert is_linear(work, part), part


def test_a_pattern_that_takes_quadratic_time_is_seen() -> None:
    assert is_linear(re.compile(rb"ab").findall, b"a")
    slow = re.compile(rb"a[^b]*b")
    assert not is_linear(lambda text: slow.search(text[: len(text) // 20]), b"a")


@pytest.mark.parametrize("kind", SLOW)
def test_no_line_takes_long(tmp_path: Path, kind: str) -> None:
    path, line = tmp_path / "x.log", SLOW[kind] + "\n"
    path.write_text(line * (3_000_000 // len(line)))
    begun = time.process_time()
    assert analyse_files([path]).exit_code in (1, 20)
    assert time.process_time() - begun < SECONDS


def test_many_files_that_say_nothing_are_counted(tmp_path: Path) -> None:
    for number in range(MAX_UNREAD + 30):
        (tmp_path / f"{number:02}.log").touch()
    found = analyse_files(sorted(tmp_path.iterdir()))
    assert (found.exit_code, len(found.unproven)) == (20, MAX_UNREAD + 1)
    assert found.unproven[-1] == "30 more files not read, or without a line of NCCL"


@pytest.mark.parametrize("name", ["##vso[task.setvariable]x.log", "::error::x.log"])
def test_a_log_gives_no_command_to_a_ci_runner(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("nothing\n")
    for words in ([], ["--json"]):
        done = nccl_log(*words, tmp_path)
        assert "##" not in done.output
        assert not [one for one in done.output.splitlines() if one.strip().startswith("::")]
    assert f"{tmp_path / name}: expected" in json.loads(done.output)["unproven"][0]
