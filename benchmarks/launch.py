"""Measures the time of LAUNCH in a lab of 4: tiers quick and standard against that of one job.

Needs root.  `python -m benchmarks.launch [runs]` runs the row `runs` times in each tier.  One job
is the guide's own, from the first command in an empty home to the end, in the same run.
"""

from __future__ import annotations

import statistics
import sys

from benchmarks.harness import finish, judged, spread
from reports.record import RunRecord
from tests.lab.lab import Lab
from tests.support.trial import acceptance

NODES = 4
GOALS = {"quick": 3.0, "standard": 20.0}  # times one job
JOB, STEP = "time_of_job", "time_to_first_step"


def value_of(record: RunRecord, name: str) -> float:
    """Return the value of a measurement that each run has."""
    (value,) = (
        one.value for result in record.results for one in result.measurements if one.name == name
    )
    return float(value or 0)


def measure_tier(lab: Lab, tier: str, goal: float, runs: int) -> None:
    """Run the row in one tier, and print its time, probe by probe."""
    records = [
        acceptance(lab, f"{tier}-{run}", "probes/launch", "--tier", tier, seconds=1200)[0]
        for run in range(runs)
    ]
    print(f"{tier}: {', '.join(record.verdict('LAUNCH').value for record in records)}")
    for index, result in enumerate(records[0].results):
        seconds = spread(record.results[index].seconds for record in records)
        print(f"  {result.probe.split('::')[-1]}: {seconds} s")
    whole = [sum(result.seconds for result in record.results) for record in records]
    jobs = [value_of(record, JOB) for record in records]
    times = [total / job for total, job in zip(whole, jobs, strict=True)]
    print(f"  one job: {spread(jobs)} s; its first step after {first_steps(records)} s")
    line = f"{tier}: {spread(whole)} s, {spread(times)} times one job (goal {goal:g})"
    judged(line, statistics.median(times) <= goal)


def first_steps(records: list[RunRecord]) -> str:
    """Spread of the time from an empty home to the first step."""
    return spread(value_of(record, STEP) for record in records)


def main(runs: int) -> None:
    """Print both tiers; exit with 8 where a goal is missed."""
    lab = Lab("guides")
    lab.up(NODES)
    try:
        for tier, goal in GOALS.items():
            measure_tier(lab, tier, goal, runs)
    finally:
        lab.down()
    finish()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
