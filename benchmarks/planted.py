"""How well the cause of a lost percent is named, planted in a lab of 4.  Root on Linux.

`python -m benchmarks.planted [RUNS [CAUSE...]]` climbs the rungs of 1 and 4 nodes so often with
each cause, and with none, and prints how often what it was is named, with its place: first, for one
cause, and both in their order, for two.  The controls and the rung of 2 are left out, and most
steps are paced at half of what the lab's contract says: neither is what is measured here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.spread import finish, judged
from tests.faults import faulty_rung
from tests.faults.conftest import agreed
from tests.lab.faults import clear, inject
from tests.lab.lab import Lab
from tests.lab.node import REPO

Named = list[tuple[str, list[str]]]  # codes and suspects of findings
STEPS = 24
SLOW = "50mbit"
EVERY = ["node0", "node1", "node2", "node3"]
HALF = {"pace_seconds = 0.4": "pace_seconds = 0.2"}
BRISK = {"pace_seconds = 0.4": "pace_seconds = 0.1"}  # links show where there is less to compute
STRICT = {"at_least = 0.55": "at_least = 0.85", "marginal = 0.65": "marginal = 0.95"}
# Faults of the lab, what the contract says otherwise, and what is named first.
Case = tuple[list[list[str]], dict[str, str], Named]
ROADS: dict[str, Case] = {
    "slow-link": ([["slow-link", "2", SLOW]], BRISK, [("SCALE-LINK", ["node2"])]),
    "wrong-interface": ([["wrong-interface"]], {**BRISK, **STRICT}, [("SCALE-NETWORK", EVERY)]),
    "few-tokens": (
        [["slow-link", str(node), SLOW] for node in range(4)],
        {**BRISK, "at_least = 0.090": "at_least = 0.004"},
        [("SCALE-TOKENS", [])],
    ),
}


def inside(fault: str, contract: str, runs: int) -> list[Named]:
    """Run on node 0: what the probe's own code names in each of so many ladders in one gang."""
    from probes.cluster import connect
    from probes.contract import load
    from probes.ledger import Ledger
    from reports.store import Store

    if fault in faulty_rung.FAULTS:
        faulty_rung.plant(fault)
    terms, found = load(contract), []
    with closing(connect("auto")) as cluster, cluster.gang() as gang:
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as folder:
                store = Store(Path(folder))
                ledger = Ledger(store, terms, fault, "SCALING", "", "", lambda words: None)
                climbed(gang, cluster.names, ledger)
                result = ledger.finish("finished", 0)
            shutil.rmtree(faulty_rung.CHECKPOINTS, ignore_errors=True)
            found.append([(f.code, f.suspects) for f in result.findings if f.code != "SCALE-LOSS"])
    return found


def climbed(gang: Any, names: dict[str, str], measure: Any) -> None:
    """The probe's ladder of two rungs, without its controls."""
    from probes.scaling_judging import judge
    from probes.scaling_rungs import Plan, ascend, placed, told
    from probes.test_scaling import load_of
    from scaling.expected import order_of

    terms, limits = measure.contract.cluster, partial(measure.contract.limit, "SCALING")
    load = load_of(terms, False, STEPS)
    plan = Plan([1, 4], load, order_of(load, 4), terms.fabric)
    climbed = ascend(gang, names, plan, measure)
    ladder = told(climbed, [], plan, measure.contract.limit("FABRIC", "busbw"))
    judge(placed(gang, names, ladder, limits("efficiency"), measure), limits, measure)


def on_node(lab: Lab, fault: str, other: dict[str, str], runs: int) -> list[Named]:
    """The same, from outside."""
    node = lab.nodes[0]
    contract = agreed(lab, other) if other else "lab"
    told = ["inside", fault, contract, str(runs)]
    command = [sys.executable, "-m", "benchmarks.planted", *told]
    done = subprocess.run(
        node.command(*command, cwd=str(REPO)),
        env={**node.environment(), "PYTHONPATH": str(REPO)},
        capture_output=True, text=True, timeout=120 + 120 * runs, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    lists = json.loads(done.stdout.splitlines()[-1])
    return [[(code, suspects) for code, suspects in named] for named in lists]


def line(what: str, want: Named, found: list[Named]) -> None:
    """One row of the table."""
    causes, runs = 2 if "-and-" in what else 1, len(found)
    right = sum(named[:causes] == want[:causes] for named in found)
    alone = sum(named == want for named in found)
    least = runs if causes == 1 else runs - runs // 10
    said = f"{what:24} {right} of {runs} (target {least}), {alone} with nothing else"
    judged(said, right >= least)
    for named in found:
        if named != want:
            print(f"    named: {', '.join(' '.join([code, *who]) for code, who in named)}")


def table(runs: int, only: Sequence[str] = ()) -> None:
    """Each cause so often, in a lab of its own."""
    # What is planted in the lab and in the ranks, the contract's other lines, and what is named.
    cases: dict[str, Case] = {"none": ([], {}, [])} | {
        fault: ([], HALF, want) for fault, want in faulty_rung.NAMED.items()
    } | ROADS  # fmt: skip
    lab = Lab("planted")
    lab.up(4)
    try:
        for fault in only or cases:
            ways, other, want = cases[fault]
            for way in ways:
                inject(lab, *way)
            found = on_node(lab, fault, other, runs)
            clear(lab)
            line(fault, want, found)
    finally:
        lab.down()


if __name__ == "__main__":
    if sys.argv[1:2] == ["inside"]:
        print(json.dumps(inside(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        table(int(sys.argv[1]) if sys.argv[1:] else 10, sys.argv[2:])
        finish()
