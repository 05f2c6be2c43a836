"""Measures start-up times and memory: figures of docs/develop/measurements.md.

`python -m benchmarks.startup_cost` prints one line per figure. The lab's figures need root on
Linux.
"""

from __future__ import annotations

import os
import re
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]


def timed(*command: str, repeats: int = 5) -> str:
    """Run the command `repeats` times; return median and range of the seconds as text."""
    taken = []
    for _ in range(repeats):
        begun = time.perf_counter()
        subprocess.run(command, cwd=REPO, check=True, capture_output=True)
        taken.append(time.perf_counter() - begun)
    return f"{statistics.median(taken):.2f} s ({min(taken):.2f} to {max(taken):.2f}, n={repeats})"


def lab(*arguments: str, **options: object) -> str:
    """Time a lab command, once."""
    return timed(sys.executable, "-m", "tests.lab", *arguments, repeats=1, **options)


def trial(tier: str, nodes: int) -> str:
    """Run the suite once in a lab; return the seconds and the driver's peak memory as text."""
    probe = (
        "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); "
        "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024; "
        "print('PEAK', peak, 'CODE', code)"
    )
    command = [sys.executable, "-m", "pytest", "probes", "--cluster", "auto", "--contract", "lab",
               "--tier", tier, "-q"]  # fmt: skip
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab", "run", "--nodes", str(nodes), "--", sys.executable,
         "-c", probe, *command],
        cwd=REPO, capture_output=True, text=True, check=False,
    )  # fmt: skip
    told = re.search(r"PEAK (\d+) CODE (\d+)", done.stdout)
    assert told, done.stdout + done.stderr
    took = time.perf_counter() - begun
    return f"{took:.0f} s with up and down, driver peak {told[1]} MB, exit {told[2]}"


def main() -> None:
    """Print all figures."""
    python, cpus = sys.executable, os.cpu_count()
    print(f"machine: {cpus} cores, load {os.getloadavg()[0]:.1f}")
    print("seatrial --help              ", timed(python, "-m", "probes.cli.main", "--help"))
    collect = ["-m", "pytest", "probes", "--collect-only", "-q"]
    print("pytest probes --collect-only ", timed(python, *collect))
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        print("the lab's figures need root on Linux: not measured")
        return
    for nodes in (4, 8):
        print(f"lab up, {nodes} nodes            ", lab("up", "--nodes", str(nodes)))
        print(f"lab down, {nodes} nodes          ", lab("down"))
    print("quick tier, lab of 4         ", trial("quick", 4))
    print("quick tier, lab of 8         ", trial("quick", 8))
    print("standard tier, lab of 4      ", trial("standard", 4))
    print("this process's peak          ",
          resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "MB")  # fmt: skip


if __name__ == "__main__":
    main()
