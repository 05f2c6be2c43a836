"""Measures the time and memory of `seatrial show` for a large run, with all verification.

`python -m benchmarks.large_run [megabytes]` writes events of that size (default 84) to a temporary
folder: measurements of links, as a cluster of 1,000 nodes has them.
"""

from __future__ import annotations

import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.synthetic_run import write_run

LINE_BYTES = 600  # about the size of one measurement


def write_links(folder: Path, megabytes: int) -> Path:
    """Write the run and return its folder."""
    with write_run(folder) as measure:
        for number in range(megabytes * 1_000_000 // LINE_BYTES):
            link = f"node{number % 1000} with node{number // 1000}"
            measure("busbw", 380.0 + number % 7, on=link)
    return folder


def main() -> None:
    """Write the run, show it three times, and print time, CPU time and peak memory."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 84
    with (
        tempfile.TemporaryDirectory() as place,
        multiprocessing.get_context("spawn").Pool(1) as pool,
    ):
        # A separate process: the writer's memory would otherwise count for the processes started
        # below.
        run = pool.apply(write_links, (Path(place) / "run", megabytes))
        size = (run / "events.jsonl").stat().st_size / 1e6
        command = [sys.executable, "-m", "probes.cli.main", "show", str(run)]
        for _ in range(3):
            begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            busy = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
            took = time.perf_counter() - begun
            print(f"show {size:.0f} MB: {took:.1f} s, {busy:.1f} s of CPU", end=", ")
            print(f"peak {used.ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
