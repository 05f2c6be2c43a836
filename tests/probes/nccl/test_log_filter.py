"""What travels from a node of a rank's log: less of it, and all that it said.

SYNTHETIC: lines written to the documented formats.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from probes.nccl.log_files import MAX_LINE, OMITTED, filter_log
from probes.nccl.report import NcclReport, analyse_files
from tests.recordings.generate.nccl_logs import VERSIONS, Job, faulty

ENOUGH = 1 << 20
TOPOLOGY = [
    "=== System : maxBw 48.0 totalBw 480.0 ===",
    "CPU/0-0 (1/1/2)",
    "+ PCI[48.0] - PCI/0-1000 (1000c01015b3) - GPU/0-18000 (0)",
    "Pattern 4, crossNic 0, nChannels 16, bw 40.0/24.0, type NVL/PIX, sameChannels 1",
    " 0 : NET/0-0 GPU/0-18000 GPU/0-2a000 NET/0-0",
    "Trees [0] 1/8/-1->0->-1 [1] 1/-1/-1->0->8",
    "Tree 0 : -1 -> 0 -> 1/8/-1",
]


def told(folder: Path, *texts: bytes) -> NcclReport:
    paths = [folder / f"nccl.{at}.log" for at in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text)
    return analyse_files(paths)


def sieve(text: str | bytes, most: int = ENOUGH) -> bytes:
    content = text if isinstance(text, bytes) else text.encode()
    return filter_log(io.BytesIO(content), most)


def noisy(text: str) -> str:
    """The log with GRAPH and 24 channels: topology before the edges, and each edge many times."""
    lines = []
    for line in text.splitlines():
        prefix = re.match(r"\S+ \[\d\] NCCL INFO ", line)
        edge = re.search(r"Channel 0\d(/0)? : .* via ", line)
        times = 24 if edge else 1
        lines += [re.sub(r"Channel 0\d", f"Channel {at:02}", line) for at in range(times)]
        if prefix and "Init START" in line:
            lines += [prefix[0] + word for word in TOPOLOGY * 100]
    return "".join(f"{line}\n" for line in lines)


def said(found: NcclReport) -> tuple[object, ...]:
    """All of it but the numbers of lines."""
    findings = [(one.code, one.statement, one.suspects, one.remedy) for one in found.findings]
    facts = (found.transport, found.networks, found.gdr, found.edges, found.hosts, found.ranks)
    unproven = [re.sub(r"log:\d+", "log", words) for words in found.unproven]
    return (*facts, found.nccl, found.stage, findings, unproven)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("code", ["none", *faulty(VERSIONS[0])])
def test_a_sieved_log_says_the_same_in_a_tenth_of_the_bytes(
    tmp_path: Path, version: str, code: str
) -> None:
    job = Job(version) if code == "none" else faulty(version)[code]
    whole = [noisy(job.of(rank)) for rank in job.ranks]
    less = [sieve(text) for text in whole]
    assert said(told(tmp_path, *less)) == said(told(tmp_path, *map(str.encode, whole)))
    assert all(b"===" not in text for text in less)
    if job.last == "complete" and not job.stops:
        assert all(len(few) < len(text) / 10 for few, text in zip(less, whole, strict=True))


def test_an_edge_after_another_line_is_told_again(tmp_path: Path) -> None:
    """Since 2.22 a rank that connects a second time hangs in it, whatever it wrote before."""
    good, text = Job(gpus=1), Job(gpus=1).of(1)
    (edge, *_) = re.findall(r".*\[receive\] via .*\n", text)
    assert told(tmp_path, good.of(0).encode(), sieve(text)).exit_code == 0
    found = told(tmp_path, good.of(0).encode(), sieve(text + edge))
    assert [one.code for one in found.findings] == ["INIT-HANG"]


def test_of_more_than_there_is_room_for_the_beginning_and_the_end_are_there(tmp_path: Path) -> None:
    job = Job()
    texts = {rank: job.of(rank) for rank in job.ranks}
    prefix = "node1:1003:1103 [1] NCCL INFO "
    peers = "".join(
        f"{prefix}Channel 00/1 : 3[1] -> {peer}[0] [send] via NET/IB/0/GDRDMA/Shared\n"
        for peer in range(4, 8000)
    )
    last = (
        "node1:1003:1103 [1] misc/ibvwrap.cc:309 NCCL WARN Call to ibv_modify_qp failed with 110\n"
    )
    texts[3] += peers + last
    less = {rank: sieve(text, 20_000) for rank, text in texts.items()}
    assert len(less[3]) < 20_000 + len(OMITTED)
    assert less[3].startswith(job.of(3)[:100].encode())
    found = told(tmp_path, *less.values())
    assert [one.code for one in found.findings] == ["INIT-QP"]
    assert any("cut off" in words for words in found.unproven)
    assert less[0] == sieve(texts[0])


def test_a_log_that_just_fits_is_whole() -> None:
    line = "node0:1:1 [0] NCCL INFO NCCL_P{} set by environment to 1\n"
    text = "".join(map(line.format, range(8)))
    assert sieve(text, len(text)) == text.encode()
    assert sieve(text, len(text) - 2).endswith(OMITTED)


def test_a_line_without_an_end_stays_one(tmp_path: Path) -> None:
    job = Job()
    cut = job.of(3)[:-30]
    texts = [job.of(rank).encode() for rank in (0, 1, 2)]
    assert said(told(tmp_path, *texts, sieve(cut))) == said(told(tmp_path, *texts, cut.encode()))


def test_a_line_as_long_as_the_longest_that_is_kept_stays_as_it_is() -> None:
    line = b"node0:1:1 [0] NCCL INFO NCCL_DEBUG_FILE set by environment to /"
    line = line.ljust(MAX_LINE - 1, b"x")
    assert sieve(line + b"\n") == line + b"\n"
    assert len(sieve(b"x" + line + b"\n")) == MAX_LINE + 1, "cut, and its newline set again"


def test_a_map_of_a_ring_of_thousands_is_shortened() -> None:
    line = "node0:1:1 [0] NCCL INFO Channel 00/32 : " + " ".join(map(str, range(8192)))
    assert len(sieve(line + "\n")) < 5000
    assert sieve(line + "\n").endswith(b"\n")


def test_maps_of_many_rings_take_the_room_of_one(tmp_path: Path) -> None:
    """Of a rank among 8192, three communicators with 32 rings: it must not look cut off."""
    job = Job(gpus=1)
    whole = job.of(0)
    (old,) = re.findall(r".* Channel 00/\d+ : [^v]*\n", whole)
    maps = "".join(
        f"node0:1000:1100 [0] NCCL INFO Channel {at:02}/32 : {' '.join(map(str, range(8192)))}\n"
        for at in range(32)
    )
    text = (whole.replace(old, maps)) * 3
    less = sieve(text, 256 << 10)
    assert len(less) < 64 << 10
    assert not less.endswith(OMITTED)
    two = maps + maps.replace(":1100 [0]", ":1101 [1]")  # threads of one process, a GPU each
    assert sieve(two).count(b"[1] NCCL INFO Channel") == 1
    assert told(tmp_path, less, (job.of(1) * 3).encode()).exit_code == 0


def test_other_text_becomes_nothing() -> None:
    assert sieve("hello\nworld\n" * 1000) == b"hello\n"
    assert sieve(b"") == b""
