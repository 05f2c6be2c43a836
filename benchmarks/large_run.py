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

from probes.acceptance.contract import load
from probes.acceptance.measure import Recorder
from reports.run_folder.store import Store
from reports.version import suite_version

LINE_BYTES = 600  # about the size of one measurement


def write_run(folder: Path, megabytes: int) -> Path:
    """Write the run and return its folder."""
    contract, store = load("h100-ndr400"), Store(folder)
    store.start(
        contract.text,
        id="large",
        started="2026-01-01T00:00:00Z",
        command="x",
        tier="quick",
        versions=suite_version(),
        contract=contract.facts().model_dump(mode="json"),
    )
    measure = Recorder(store, contract, "p", "FABRIC", "claim", "again", lambda words: None)
    for number in range(megabytes * 1_000_000 // LINE_BYTES):
        measure("busbw", 380.0 + number % 7, on=f"node{number % 1000} with node{number // 1000}")
    measure.finish("finished", 1.0)
    store.event("run_finished", finished="2026-01-01T01:00:00Z", state="finished")
    store.save()
    store.close()
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
        run = pool.apply(write_run, (Path(place) / "run", megabytes))
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
