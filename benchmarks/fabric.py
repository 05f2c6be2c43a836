"""Measures the fabric row against its targets: plateau, byte counters, pair scan, time.

Needs root on Linux. `python -m benchmarks.fabric [runs]` starts labs of 2, 4 and 8 nodes. It prints
a table of target, measured value and spread, and whether each target is met. The plateau is
compared with iperf3 on the same link in the same run: `apt-get install iperf3`.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import closing
from typing import Any

from benchmarks import harness
from benchmarks.harness import on_node
from reports.measurement import Verdict
from tests.lab import network
from tests.lab.faults import clear, inject
from tests.lab.lab import Lab
from tests.support.trial import acceptance

NAME = "bench"
# Rates of slow links, on a fabric of 1 Gbit/s: node 1 both ways and each way, and the link between
# nodes 1 and 2. A slower link is easier to find and takes longer to scan, so the value divides the
# number of its scans.
RATES = {"700mbit": 1, "500mbit": 2, "100mbit": 7}
PAIR = {("node1", "node2"), ("node2", "node1")}
SLOW = [
    *(("slow-link", "1", rate) for rate in RATES),
    *(("slow-one-way", "1", rate, way) for rate in RATES for way in ("sends", "receives")),
    *(("slow-pair", "1", "2", rate) for rate in RATES),
]
ROWS = 3  # runs of the complete fabric row


def inside(what: str, count: int) -> Any:
    """Run `sweep` or `scan` on node 0, `count` times in one gang; return one result per run."""
    from probes.cluster.cluster import connect
    from probes.fabric.node_pairs import run_pair_search
    from probes.fabric.sweep import run_sweep
    from probes.fabric.transport import RankLogs

    cluster, found = connect("auto"), []
    with (
        closing(cluster),
        RankLogs(cluster) as logs,
        cluster.gang(environment={"NCCL_ALGO": "Ring"}) as gang,
    ):
        for _ in range(count):
            begun = time.perf_counter()
            if what == "sweep":
                journey = run_sweep(gang, cluster.node_names, logs)
                shares = [journey.share(node, "fab0") for node in journey.sent]
                row = journey.plateau
                found.append({"busbw": row["busbw"], "size": row["size"], "shares": shares})
            else:
                hunt, _ = run_pair_search(gang, cluster.node_names)
                slowest = min(hunt.speeds.values()) / hunt.typical
                found.append(
                    {"nodes": hunt.slow_nodes, "links": hunt.slow_links, "slowest": slowest}
                )
            found[-1]["seconds"] = time.perf_counter() - begun
    return found


def outside(lab: Lab, what: str, count: int) -> list[dict[str, Any]]:
    """Run `inside` on node 0 of the lab and return its results."""
    told = on_node(lab, "benchmarks.fabric", what, str(count), seconds=1200)
    return list(json.loads(told.splitlines()[-1]))


def iperf(lab: Lab, seconds: int = 4) -> float | None:
    """Measure the GB/s that iperf3 moves from node 0 to node 1 on the fabric, or return None."""
    if not shutil.which("iperf3"):
        return None
    there = ["ip", "netns", "exec", network.namespace(lab.name, 1), "iperf3", "-s", "-1", "-J"]
    server = subprocess.Popen(there, stdout=subprocess.DEVNULL)
    time.sleep(0.5)  # until it listens; a client that starts too early fails with an error
    client = ["ip", "netns", "exec", network.namespace(lab.name, 0), "iperf3", "-J"]
    client += ["-c", network.address("fab0", 1), "-t", str(seconds), "-O", "1"]
    try:
        done = subprocess.run(client, capture_output=True, text=True, check=True, timeout=60)
    finally:
        server.kill()
        server.wait()
    return float(json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"]) / 8e9


def line(what: str, target: str, measured: str, met: bool | None = None) -> None:
    """Print one row of the table and record a missed target; `met` is None without a target."""
    verdict = "" if met is None else "met" if met else "NOT met"
    print(f"{what:44} {target:18} {measured:46} {verdict}", flush=True)
    if met is False:
        harness.MISSED.append(what)


def spread(values: list[float], digits: int = 3) -> str:
    """Format median, range and count."""
    middle = statistics.median(values)
    return (
        f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f}, "
        f"n={len(values)})"
    )


def plateau(lab: Lab, nodes: int) -> None:
    """Compare busbw with iperf3, and the bytes on fab0 with the expected bytes."""
    wire = iperf(lab)
    runs = outside(lab, "sweep", 3)
    bandwidth = [run["busbw"] for run in runs]
    line(f"busbw GB/s, {nodes} nodes", "", spread(bandwidth, 4))
    if wire:
        ratios = [value / wire for value in bandwidth]
        line(f"  of iperf3's {wire:.4f} GB/s", ">= 0.97", spread(ratios), min(ratios) >= 0.97)
    else:
        line("  of iperf3's", ">= 0.97", "not measured: iperf3 is not installed", False)
    shares = [share for run in runs for share in run["shares"]]
    within = min(shares) >= 0.97 and max(shares) <= 1.03
    line("  bytes on fab0 / expected", "0.97 to 1.03", spread(shares, 4), within)


def scans(lab: Lab, nodes: int, count: int) -> None:
    """Scan without and with injected faults; print how often the right node or link is named."""
    found = outside(lab, "scan", count)
    alarms = sum(bool(run["nodes"] or run["links"]) for run in found)
    told = f"{alarms} of {count}"
    line(f"pair scan, {nodes} nodes, healthy: alarms", f"0 of {count}", told, alarms == 0)
    line("  slowest link / typical", "", spread([run["slowest"] for run in found]))
    line("  seconds", "", spread([run["seconds"] for run in found], 1))
    for fault, *arguments in SLOW:
        (fewer,) = (RATES[word] for word in arguments if word in RATES)
        times = -(-count // fewer)
        inject(lab, fault, *arguments)
        runs = outside(lab, "scan", times)
        clear(lab)
        right = sum(named(run, fault, arguments) for run in runs)
        said = f"{right} of {times}; slowest {spread([run['slowest'] for run in runs], 2)}"
        line(f"  {fault} {' '.join(arguments)}", f"named {times} of {times}", said, right == times)


def named(run: dict[str, Any], fault: str, arguments: list[str]) -> bool:
    """Return whether a scan names only what was made slow, in the right direction."""
    if fault == "slow-pair":
        return not run["nodes"] and {tuple(link) for link in run["links"]} == PAIR
    way = arguments[2] if fault == "slow-one-way" else "both"
    return run["nodes"] == {"node1": way} and not run["links"]


def row(lab: Lab) -> None:
    """Measure the seconds of the complete fabric row, quick tier."""
    took = []
    for run in range(ROWS):
        record, _ = acceptance(lab, f"row-{run}", "probes/fabric/test_fabric.py", "--tier", "quick")
        (result,) = record.results
        took.append(result.seconds if result.verdict is Verdict.PASS else float("inf"))
    line("whole fabric row, quick, 4 nodes: seconds", "<= 90", spread(took, 1), max(took) <= 90)


def main(count: int) -> None:
    """Print the table; exit with TARGET_MISSED where a target is not met."""
    print(f"{'what':44} {'target':18} {'measured: median (range)':46}", flush=True)
    for nodes in (2, 4, 8):
        lab = Lab(NAME)
        lab.up(nodes)
        try:
            plateau(lab, nodes)
            if nodes == 4:
                row(lab)
            if nodes > 2:
                scans(lab, nodes, count)
        finally:
            lab.down()
    harness.finish()


if __name__ == "__main__":
    if sys.argv[1:2] and not sys.argv[1].isdigit():
        print(json.dumps(inside(sys.argv[1], int(sys.argv[2]))))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 20)
