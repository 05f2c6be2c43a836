"""Measures the time, size and memory of the page of a large run, with every pair of nodes measured.

`python -m benchmarks.report [nodes]` writes the run (default: 1,024 nodes with 8 GPUs each) to a
temporary folder. It renders the page in a process of its own, with and without the pairs.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.synthetic_run import write_run
from reports.acceptance import load_summary
from reports.page.render import render

GPUS = 8  # of a node
GOAL = "goal: 5 s, 5 MB, 1000 MiB"


def write_rates(folder: Path, nodes: int, with_pairs: bool) -> None:
    """Write a run: a rate of each GPU, and the bandwidth of each pair in both directions."""
    names = [f"node{number:04d}" for number in range(nodes)]
    with write_run(folder) as measure:
        for number in range(nodes * GPUS):
            measure("busbw", 380.0 + number % 7, on=f"{names[number // GPUS]} GPU {number % GPUS}")
        if with_pairs:
            speeds = [[380.5 + (a * b) % 29 for b in range(nodes)] for a in range(nodes)]
            measure.series("pairs", {"nodes": names, "gbs": speeds})


def measure_page(folder: Path) -> None:
    """Read the run, render its page, and print seconds, bytes and the peak of this process."""
    begun, busy = time.perf_counter(), time.process_time()
    summary = load_summary(folder)
    read, read_busy = time.perf_counter(), time.process_time()
    size = len(render(summary, folder).encode())
    done, done_busy = time.perf_counter(), time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    events = (folder / "events.jsonl").stat().st_size
    print(f"  read {events / 1e6:.1f} MB of events: {read - begun:.1f} s", end=" ")
    print(f"({read_busy - busy:.1f} s of CPU)")
    print(
        f"  render {size / 1e6:.2f} MB: {done - read:.1f} s ({done_busy - read_busy:.1f} s of CPU)"
    )
    print(f"  peak {peak:.0f} MiB; {GOAL}")


def main() -> None:
    """Write each run and measure its page, each step in a process of its own."""
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    start = multiprocessing.get_context("spawn").Pool
    with tempfile.TemporaryDirectory() as place:
        for with_pairs in (False, True):
            run = Path(place) / f"run-{with_pairs}"
            with start(1) as pool:
                pool.apply(write_rates, (run, nodes, with_pairs))
            print(f"{nodes} nodes x {GPUS} GPUs, {'every pair' if with_pairs else 'no pairs'}:")
            with start(1) as pool:
                pool.apply(measure_page, (run,))


if __name__ == "__main__":
    main()
