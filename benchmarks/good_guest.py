"""Measures what a trial does to another job: its steps before, during and after, probe by probe.

Needs root.  `python -m benchmarks.good_guest [tier]`.  The other job has two actors on two nodes of
a lab of 4.  Each step is as one on GPUs: 50 ms in which the host has nothing to do, then 1 MB from
one actor to the other.  It holds no accelerator, or most probes could not run.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from benchmarks.harness import finish, spread
from tests.lab.lab import Lab
from tests.support.trial import acceptance

NODES, ALONE_RUNS, ALONE_S = 4, 5, 30
Step = tuple[float, float]  # when it ended (epoch), seconds

FOREIGN = """
import ray, sys, time
ray.init("auto", namespace="other", log_to_driver=False)
nodes = sorted(n["NodeID"] for n in ray.nodes() if n["Alive"])
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
@ray.remote(num_cpus=0)
class Rank:
    def compute(self):
        time.sleep(0.05)
        return bytes(1_000_000)
    def take(self, data):
        return len(data)
ranks = [Rank.options(scheduling_strategy=On(nodes[i], soft=False)).remote() for i in (1, 2)]
with open(sys.argv[1], "w", buffering=1) as log:
    while True:
        began = time.perf_counter()
        ray.get(ranks[1].take.remote(ranks[0].compute.remote()))
        print(time.time(), time.perf_counter() - began, file=log)
"""


@contextmanager
def foreign_job(lab: Lab, name: str) -> Iterator[Path]:
    """Run the other job until the end; yield the file with its steps."""
    node, log = lab.nodes[0], lab.home / "shared" / name
    command = node.command(sys.executable, "-c", FOREIGN, f"/shared/{name}", cwd="/")
    job = subprocess.Popen(command, env=node.environment(), stdout=subprocess.DEVNULL)
    try:
        while not log.exists() or log.read_text().count("\n") < 20:
            time.sleep(0.2)
        yield log
    finally:
        node.run("pkill", "-f", "namespace=.other", check=False)
        job.wait()


def read_steps(log: Path) -> list[Step]:
    """Read the steps that are complete."""
    lines = log.read_text().split("\n")[20:-1]  # without the first, in which the actors start
    return [(float(end), float(seconds)) for end, _, seconds in (x.partition(" ") for x in lines)]


def median_ms(steps: list[Step]) -> float:
    """Return the median step in ms; NaN without one."""
    return 1000 * statistics.median(s for _, s in steps) if steps else float("nan")


def epoch(text: str) -> float:
    """Read the time of an event."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def windows(folder: Path) -> list[tuple[str, float, float]]:
    """List each probe with its begin and end."""
    lines = (folder / "events.jsonl").read_text().splitlines()
    begun: dict[str, float] = {}
    found = []
    for event in map(json.loads, lines):
        if event["event"] == "probe_started":
            begun[event["probe"]] = epoch(event["t"])
        elif event["event"] == "probe_finished":
            name = event["probe"].split("::")[-1]
            found.append((name, begun[event["probe"]], epoch(event["t"])))
    return found


def main(tier: str) -> None:
    """Print the medians alone, by probe, and after."""
    lab = Lab("guides")
    lab.up(NODES)
    try:
        alone = []
        for run in range(ALONE_RUNS):
            with foreign_job(lab, f"alone{run}") as log:
                time.sleep(ALONE_S)
                alone.append(median_ms(read_steps(log)))
        print(f"alone: {spread(alone)} ms, {ALONE_RUNS} runs of {ALONE_S} s")
        highest = max(alone)
        with foreign_job(lab, "during") as log:
            time.sleep(ALONE_S)
            _, trial = acceptance(lab, "trial", "probes", "--tier", tier, seconds=3000)
            ended = time.time()
            time.sleep(ALONE_S)
            steps = read_steps(log)
        usual = statistics.median(alone)
        for name, begin, end in windows(trial.folder):
            inside = [step for step in steps if begin <= step[0] - step[1] and step[0] <= end]
            if not inside:
                continue  # it is shorter than a step
            median = median_ms(inside)
            mark = "" if median <= highest else "  beyond the spread alone"
            print(f"  {name}: {end - begin:.0f} s, {median:.1f} ms, x {median / usual:.2f}{mark}")
        after = median_ms([step for step in steps if step[0] > ended + 5])
        print(f"after: {after:.1f} ms, x {after / usual:.2f}")
    finally:
        lab.down()
    finish()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "quick")
