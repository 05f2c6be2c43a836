"""Measures the time of HOSTS: quick and standard in a lab of 8, and 1,000 simulated nodes.

Needs root.  `python -m benchmarks.hosts [runs]` starts a lab of 8 nodes and runs the row `runs`
times in each tier.  The same run times an empty task on each node, to which the row's time is
compared.  Then the row's first and last probe judge 1,000 simulated nodes of 8 GPUs.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import sys
import time

from benchmarks.harness import finish, judged, on_node, spread
from reports.record import RunRecord
from tests.lab.lab import Lab
from tests.support.trial import acceptance

NODES = 8
GOALS = {"quick": 25.0, "standard": 180.0}  # s, on two cores that run all nodes
SIMULATED = 1000
GOAL_SECONDS, GOAL_MB = 60.0, 1000.0  # of the driver, for the simulated nodes
FAN_OUTS = 5  # empty tasks on all nodes; the first starts the workers and is left out


def do_nothing() -> int:
    """Be an empty task."""
    return 0


def time_fan_outs() -> None:
    """Print the seconds of each empty task on all nodes of the cluster that runs here."""
    from probes.cluster.cluster import connect

    cluster = connect("auto")
    try:
        for _ in range(FAN_OUTS):
            begun = time.perf_counter()
            if len(cluster.on_each_node(do_nothing)) != len(cluster.nodes):
                raise RuntimeError("a node does not answer")
            print(time.perf_counter() - begun)
    finally:
        cluster.close()


def seconds_of(record: RunRecord) -> float:
    """Sum the seconds of the row's probes."""
    return sum(result.seconds for result in record.results)


def measure_lab(runs: int) -> None:
    """Run the row in a lab and print seconds, by tier and probe."""
    lab = Lab("rows")
    lab.up(NODES)
    try:
        lines = on_node(lab, "benchmarks.hosts", "fan-outs", seconds=300).split()
        empty = statistics.median(map(float, lines[-FAN_OUTS + 1 :]))
        print(f"empty task on {NODES} nodes: {spread(map(float, lines[-FAN_OUTS + 1 :]))} s")
        for tier, goal in GOALS.items():
            records = [
                acceptance(lab, f"{tier}-{run}", "probes/hosts", "--tier", tier)[0]
                for run in range(runs)
            ]
            whole = [seconds_of(record) for record in records]
            verdicts = ", ".join(record.verdict("HOSTS").value for record in records)
            print(f"{tier}: {verdicts}")
            for index, result in enumerate(records[0].results):
                each = spread(record.results[index].seconds for record in records)
                print(f"  {result.probe.split('::')[-1]}: {each} s")
            middle = statistics.median(whole)
            times = f"{middle / empty:.0f} times an empty task"
            judged(f"{tier}: {spread(whole)} s, {times} (goal {goal:g} s)", middle <= goal)
    finally:
        lab.down()


def judge_simulated() -> tuple[float, float, float]:
    """Judge the simulated nodes; return seconds of the first and last probe, and peak MB."""
    from tests.support.simulated_hosts import StandInHosts, run_closing, run_hosts

    begun = time.perf_counter()
    run_hosts(StandInHosts(SIMULATED))
    first = time.perf_counter() - begun
    begun = time.perf_counter()
    run_closing(StandInHosts(SIMULATED))
    last = time.perf_counter() - begun
    return first, last, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def main(runs: int) -> None:
    """Print both parts; exit with 8 where a goal is missed."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # its peak memory is its own
        first, last, peak = pool.apply(judge_simulated)
    judged(
        f"{SIMULATED} simulated nodes: {first:.1f} s and {last:.1f} s (goal {GOAL_SECONDS:g} s)",
        first + last <= GOAL_SECONDS,
    )
    judged(f"peak memory: {peak:.0f} MB (goal {GOAL_MB:g} MB)", peak <= GOAL_MB)
    measure_lab(runs)
    finish()


if __name__ == "__main__":
    if sys.argv[1:] == ["fan-outs"]:
        time_fan_outs()
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
