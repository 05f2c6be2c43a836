"""Measures the gang row against its targets: seconds, false alarms, controls, latencies.

Needs root. `python -m benchmarks.gang [runs [tier [-k words]]]` runs the quick and the standard
tier in a lab of 4, or only the given tier. It repeats each tier and prints tables of target, median
and range.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from benchmarks.harness import spread
from reports.measurement import Verdict
from reports.record import ProbeResult, RunRecord
from tests.lab.lab import Lab
from tests.support.trial import acceptance

LATENCIES = {
    "placement_delay": "freed to placed (target <= 5)",
    "time_to_remove_gang": "cancelled, or driver killed, to gone",
    "release_time": "driver killed to all free (target <= 10)",
    "placed_behind_in": "asked to placed, behind one that waits",
    "deadlock_seen_after": "second group asked for to hold-and-wait seen",
    "loss_seen_after": "spare raylet killed to noticed, or to RESCHEDULING",
    "wait_small": "storm and mix: mean wait of the smaller gangs",
    "wait_large": "storm and mix: mean wait of the larger gangs",
    "large_gang_wait": "wait of a big gang under a stream of 8 s",
    "train_placed_in": "Ray Train: freed to placed",
    "lag": "age of what was seen, 95th of 100",
    "longest_lag": "the same, at most",
    "longest_gap": "longest time without a look (target <= 1)",
    "sample_rate": "samples a second (target >= 20)",
}


def short(result: ProbeResult) -> str:
    """Return the scenario's name."""
    return result.probe.split("::")[-1].removeprefix("test_").replace("_", " ")


def values(records: list[RunRecord], name: str) -> list[float]:
    """Return every number measured under this name."""
    return [
        float(m.value)
        for record in records
        for result in record.results
        for m in result.measurements
        if m.name == name and isinstance(m.value, int | float)
    ]


def table(records: list[RunRecord]) -> None:
    """Print one line per scenario: alarms, controls, seconds."""
    seen: dict[str, list[ProbeResult]] = defaultdict(list)
    for record in records:
        for result in record.results:
            seen[short(result)].append(result)
    print("| scenario | alarms (target 0) | controls caught (target all) | seconds |")
    print("|---|---|---|---|")
    for name, results in seen.items():
        alarms = sum(result.verdict is not Verdict.PASS for result in results)
        controls = [control for result in results for control in result.controls]
        caught = f"{sum(bool(c.caught) for c in controls)} of {len(controls)}"
        seconds = spread(result.seconds for result in results)
        print(f"| {name} | {alarms} of {len(results)} | {caught} | {seconds} |")


def main(runs: int, only: str = "", *words: str) -> None:
    """Run both tiers, or only the tier `only`, `runs` times in one lab."""
    lab = Lab("gangs")
    lab.up(4)
    try:
        for tier, target in (("quick", 30), ("standard", 240)):
            if only not in ("", tier):
                continue
            records = []
            for run in range(runs):
                arguments = ["probes/gang", "--tier", tier, *words]
                records.append(acceptance(lab, f"{tier}-{run}", *arguments)[0])
                print(f"{tier} {run}: {records[-1].verdict('GANG').value}", flush=True)
            whole = [sum(result.seconds for result in record.results) for record in records]
            print(f"\n{tier}: seconds of all scenarios (target <= {target}): {spread(whole)}")
            table(records)
            print("\n| latency | seconds, or Hz |\n|---|---|")
            for name, said in LATENCIES.items():
                if found := values(records, name):
                    print(f"| {said} | {spread(found)} |")
    finally:
        lab.down()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, *sys.argv[2:])
