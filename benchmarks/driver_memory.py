"""Measures the memory of one driver in a run of tier soak that lasts an hour: it must stay flat.

Needs root.  `python -m benchmarks.driver_memory`: a run of all criteria in a lab of 4.  Flat: the
last quarter of the driver's samples needs at most a tenth more than its second quarter.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from benchmarks.harness import finish, judged
from tests.lab.lab import Lab
from tests.support.trial import Trial, driver_pid, start

NODES, SAMPLE_S, MAX_TRIAL_S = 4, 5.0, 5400
PRINTED = 60  # samples from one printed to the next
ALLOWED = 1.1  # last quarter to second quarter: the first one has the imports


def resident_mb(pid: int) -> float | None:
    """Read the resident memory of a process; None once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
    return int(found[0]) / 1024 if found else None


def sample(lab: Lab, trial: Trial) -> list[float]:
    """Sample the driver's memory until the trial has ended."""
    deadline, pid, samples = time.monotonic() + MAX_TRIAL_S, 0, list[float]()
    while trial.process.poll() is None and time.monotonic() < deadline:
        if not pid:
            try:
                pid = driver_pid(lab)
            except AssertionError:
                time.sleep(1)
                continue
        if (value := resident_mb(pid)) is not None:
            samples.append(value)
            if len(samples) % PRINTED == 0:
                print(f"  {len(samples) * SAMPLE_S / 60:.0f} min: {value:.0f} MB", flush=True)
        time.sleep(SAMPLE_S)
    return samples


def main() -> None:
    """Print the memory of the driver by quarters of its time."""
    lab = Lab("guides")
    lab.up(NODES)
    try:
        trial = start(lab, "soak", "probes", "--tier", "soak", "-p", "benchmarks.long_soak")
        samples = sample(lab, trial)
    finally:
        lab.down()
    size = max(1, len(samples) // 4)
    quarters = [samples[i * size : (i + 1) * size] for i in range(4)]
    medians = [statistics.median(one) if one else float("nan") for one in quarters]
    took = len(samples) * SAMPLE_S / 60
    text = " ".join(f"{value:.0f}" for value in medians)
    line = f"{took:.0f} min, MB by quarters {text}, most {max(samples):.0f}"
    judged(line, medians[3] <= ALLOWED * medians[1])
    finish()


if __name__ == "__main__":
    main()
