"""A log that means harm takes neither the memory of the machine nor a passing verdict.

Each kind of hostile file is read by a process of its own, whose peak memory is looked at.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.paths import REPO

MOST = 300  # MB of resident memory
READ = """
import json, sys
from pathlib import Path
from probes.nccl.report import analyse_files
found = analyse_files([Path(sys.argv[1])])
found.text()
found.to_json()
status = Path("/proc/self/status").read_text()
peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
print(json.dumps([found.exit_code, peak / 1024, " ".join(found.unproven)]))
"""
HEAD = "node{0}:{0}:1 [0] NCCL INFO "
INIT = "ncclCommInitRankConfig comm 0x{0:x} rank {1} nranks 100000 cudaDev 0 commId 0x{2:x} - Init "


def ranks(n: int) -> str:
    """A rank and a host that nobody has heard of, in one communicator."""
    return (HEAD + INIT.format(n, n % 100_000, 7) + "START\n").format(n)


def communicators(n: int) -> str:
    """The same processes in one communicator after another; none completes."""
    return HEAD.format(n % 8) + INIT.format(n, n % 8, n) + "START\n"


def splits(n: int) -> str:
    """Communicators that are split off one another."""
    init = f"ncclCommSplit comm 0x{n:x} rank 0 nranks 2 cudaDev 0 parent 0x{n - 1:x} color {n} "
    return HEAD.format(n % 5000) + init + "key 0 - Init COMPLETE\n"


def edges(n: int) -> str:
    """Edges that were never told of, by ranks that are known, far end first."""
    edge = f"Channel 00/0 : {n % 99991}[0] -> {99_999 - n // 3 % 99_999}[0] [send] via NET/IB/"
    return HEAD.format(n % 300) + edge + f"{n % 10_000}\n"


def names(n: int) -> str:
    """Devices, interfaces, networks, addresses and variables without end."""
    texts = (
        f"NET/IB : Using [0]m{n}:1/IB [1]n{n}:1/IB ; OOB e{n}:10.0.0.1<0>",
        f"NET/Socket : Using [0]a{n}:1::{n:x}<0> [1]b{n}:2::{n:x}<0>",
        f"Using network N{n}",
        f"NCCL_IB_HCA set by environment to {'x' * 180}{n}",
        f"NCCL_THING_{n} set by environment to {n}",
        f"Bootstrap: Using e{n}:10.0.0.1<0>",
        f"NET/IB : Got completion from peer 10.0.0.2<{n}> with status=12 {'y' * 200}",
        f"Channel 00/0 : 0[0] -> 1[0] [send] via NET/Net{n}/0",
    )
    return HEAD.format(n % 20_000) + texts[n % len(texts)] + "\n"


def beginnings(n: int) -> str:
    """Ever new words before the mark, and long ones; ever new texts about edges."""
    long = "z" * 60_000 if n % 4 == 0 else "z" * (n % 100)
    edge = f"Channel 00/0 : 0[0] -> 1[0] [send] via P2P/{n}{'w' * (n % 16_000)}"
    return f"{n} {long} " + HEAD.format(n % 3) + edge + "\n"


def shared(n: int) -> str:
    """Lines that lost their ends: many marks in each."""
    return "".join(HEAD.format(n * 7 + at) + "comm " for at in range(7)) + "\n"


def rows(n: int) -> str:
    """Very short lines beside one that looks like a row of nccl-tests and one of torch's."""
    return "x sum y ncclRemoteError\n" + "ab\n" * 5000 * (n % 2)


SIZES = {  # characters: enough of each to show what it does
    ranks: 14_000_000,
    communicators: 20_000_000,
    splits: 4_000_000,
    edges: 8_000_000,
    names: 8_000_000,
    beginnings: 16_000_000,
    shared: 3_000_000,
    rows: 10_000_000,
}
KINDS = tuple(SIZES)


def lines(kind: Callable[[int], str], size: int) -> Iterator[str]:
    """About so many characters."""
    for number in itertools.count(1):
        line = kind(number)
        size -= len(line)
        yield line
        if size < 0:
            return


def binary(path: Path, size: int) -> None:
    """No line's end at all, and yet the mark now and then."""
    noise = bytes(byte for byte in os.urandom(1 << 20) if byte != 10)
    with path.open("wb") as file:
        for number in range(size >> 20):
            file.write(noise + b"NCCL INFO %d " % number)


def read(path: Path) -> tuple[int, float, str]:
    """Exit code, peak memory in MB, and what is not proven."""
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)], cwd=REPO, capture_output=True, check=True
    )
    code, peak, unproven = json.loads(done.stdout)
    return code, peak, unproven


def write(path: Path, times: float = 1, last: int = 0) -> None:
    """Every kind in turn, each so many times its size, then so much of long beginnings."""
    with path.open("w") as file:
        for kind in KINDS:
            file.writelines(lines(kind, int(times * SIZES[kind])))
        file.writelines(lines(beginnings, last))


def test_a_hostile_log_takes_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    write(path, last=40_000_000)
    code, peak, unproven = read(path)
    assert path.stat().st_size > 100_000_000
    assert peak < MOST
    assert code == 1
    assert "the rest of it was not read" in unproven


def test_a_log_with_more_ranks_than_any_job_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    with path.open("w") as file:
        file.writelines(
            HEAD.format(0) + INIT.format(1, n, 7).replace("00000", "00001") + "START\n"
            for n in range(9)
        )
    code, _, unproven = read(path)
    assert code == 20
    assert "100000 ranks" in unproven


def test_binary_without_lines(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    binary(path, 64_000_000)
    code, peak, _ = read(path)
    assert (code, peak < 100) == (20, True)


@pytest.mark.soak(criterion="fabric")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_much_of_one_kind(tmp_path: Path, kind: Callable[[int], str]) -> None:
    path = tmp_path / "nccl.log"
    with path.open("w") as file:
        file.writelines(lines(kind, 200_000_000))
    code, peak, _ = read(path)
    assert peak < MOST
    assert code in (1, 20)


@pytest.mark.soak(criterion="fabric")
def test_two_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    write(path, times=3, last=1_800_000_000)
    code, peak, _ = read(path)
    assert path.stat().st_size > 2_000_000_000
    assert peak < MOST
    assert code == 1
    binary(path, 2_000_000_000)
    code, peak, _ = read(path)
    assert (code, peak < 100) == (20, True)


@pytest.mark.soak(criterion="fabric")
def test_the_largest_job_has_room(tmp_path: Path) -> None:
    """100,000 ranks, each in two communicators, with a ring of four channels."""
    path, size = tmp_path / "nccl.log", 100_000
    with path.open("w") as file:
        for rank in range(size):
            head = f"node{rank // 8}:{rank}:1 [{rank % 8}] NCCL INFO "
            file.writelines(f"{head}{text}\n" for text in whole(rank, size))
    code, peak, unproven = read(path)
    assert peak < MOST
    assert (code, unproven) == (0, "")


def whole(rank: int, size: int) -> Iterator[str]:
    """What a rank writes that comes through, on hosts of eight."""
    for at, (number, ranks, nodes, group) in enumerate(
        ((rank, size, size // 8, 1), (rank % 8, 8, 1, 2 + rank // 8))
    ):
        init = f"ncclCommInitRank comm 0x{at} rank {number} nranks {ranks} commId 0x{group:x}"
        yield f"{init} - Init START"
        yield f"comm 0x{at} rank {number} nRanks {ranks} nNodes {nodes} localRanks 8 localRank 0"
        yield f"{init} - Init COMPLETE"
    for channel in range(4):
        far = (channel + 1) * 8
        for a, b, way in ((rank - far, rank, "receive"), (rank, rank + far, "send")):
            ends = f"{a % size}[0] -> {b % size}[0] [{way}]"
            yield f"Channel 0{channel}/0 : {ends} via NET/IB/0/GDRDMA"
    yield "Connected all rings, use ring PXN 0 GDR 1"
