"""Measures the speed and memory of `seatrial nccl-log`: four kinds of logs, 2 GB of one.

`python benchmarks/nccl_log.py [megabytes]` writes synthetic logs to a temporary folder.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from probes.nccl.report import analyse_files
from tests.recordings.generate.nccl_logs import Job


def init_only(size: int) -> Iterator[str]:
    """Yield the init of 1024 ranks again and again: the reader examines every line."""
    text = Job(hosts=128, gpus=8, devices=lambda host: 8).text()
    for _ in range(max(1, size // len(text))):
        yield text


def collectives(size: int) -> Iterator[str]:
    """Yield the log of a job with NCCL_DEBUG_SUBSYS=COLL: init once, then a line per collective."""
    yield Job().text()
    line = (
        "node{0}:{1}:1100 [{2}] NCCL INFO AllReduce: opCount {3:x} sendbuff 0x7f20 recvbuff 0x7f20 "
        "count 1048576 datatype 9 op 0 root 0 comm 0x550000 [nranks=4] stream 0x5500\n"
    )
    block = "".join(line.format(i % 4 // 2, 1000 + i % 4, i % 2, i) for i in range(20_000))
    for _ in range(max(1, size // len(block))):
        yield block


def training(size: int) -> Iterator[str]:
    """Yield a training log: init once, then the trainer's own lines."""
    yield Job().text()
    block = "".join(f"(Worker pid={i % 4}) step {i} loss 2.31 grad 0.9\n" for i in range(20_000))
    for _ in range(max(1, size // len(block))):
        yield block


def nothing(size: int) -> Iterator[str]:
    """Yield one line without an end, 1 MiB at a time."""
    for _ in range(size >> 20):
        yield "x" * (1 << 20)


def measure(name: str, lines: Iterator[str], folder: Path) -> None:
    """Write the log, analyse it, and print speed, peak memory and result."""
    path = folder / "nccl.log"
    with path.open("w") as file:
        file.writelines(lines)
    begun, busy = time.perf_counter(), time.process_time()
    found = analyse_files([path])
    took, busy = time.perf_counter() - begun, time.process_time() - busy
    size = path.stat().st_size / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name:12} {size:6.0f} MB  {size / took:6.0f} MB/s, {size / busy:6.0f} MB per CPU second"
          f"  peak {peak:4.0f} MB  {found.transport}, exit {found.exit_code}")  # fmt: skip


def main() -> None:
    """Print the table."""
    size = int(sys.argv[1] if len(sys.argv) > 1 else 300) * 1_000_000
    with tempfile.TemporaryDirectory() as name:
        for kind in (training, collectives, init_only, nothing):
            measure(kind.__name__, kind(size), Path(name))
        measure("2 GB", collectives(2_000_000_000), Path(name))


if __name__ == "__main__":
    main()
