"""Measures how well an injected cause of a lost percent is named, in a lab of 4. Root on Linux.

`python -m benchmarks.loss_attribution_lab [RUNS [CAUSE...]]` runs the rungs of 1 and 4 nodes, RUNS
times with each cause and with none. It prints how often the cause is named with its place: first
for one cause, both in their order for two. The controls and the rung of 2 are left out, and most
steps are paced at half of the lab contract's time. Neither is measured here.

The ladders are kept in runs/planted; `python -m benchmarks.loss_attribution_lab again` judges them
again.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.harness import finish, judged, on_node
from probes.check.recorder import Recorder
from probes.contract.contract import Contract
from reports.run_folder.store import Store
from tests.faults.launchers import faulty_rung
from tests.faults.launchers.faulty_rung import BRISK, EVERY, SLOW_LINK, STRICT
from tests.lab.faults import clear, inject
from tests.lab.lab import Lab
from tests.support.paths import REPO
from tests.support.trial import otherwise

Named = list[tuple[str, list[str]]]  # codes and suspects of findings
STEPS = 24
HALF = {"pace_seconds = 0.25": "pace_seconds = 0.2"}
KEPT = REPO / "runs" / "planted"
# For each case: faults injected in the lab, changes to the contract, and expected findings.
Case = tuple[list[list[str]], dict[str, str], Named]
CASES: dict[str, Case] = {
    "none": ([], {}, []),
    **{fault: ([], HALF, want) for fault, want in faulty_rung.NAMED.items()},
    "slow-link": ([["slow-link", "2", SLOW_LINK]], BRISK, [("SCALE-LINK", ["node2"])]),
    "wrong-interface": ([["wrong-interface"]], {**BRISK, **STRICT}, [("SCALE-NETWORK", EVERY)]),
    "few-tokens": (
        [["slow-link", str(node), SLOW_LINK] for node in range(4)],
        {**BRISK, "at_least = 0.090": "at_least = 0.004"},
        [("SCALE-TOKENS", [])],
    ),
}


def inside(fault: str, runs: int) -> None:
    """Run on node 0: `runs` ladders of two rungs in one gang, stored as the probe stores them."""
    from probes.cluster.cluster import connect
    from probes.contract.contract import load
    from probes.scaling import run_ladder
    from scaling.loss.predict import step_collectives

    if fault in faulty_rung.FAULTS:
        faulty_rung.plant(fault)
    contract = load(str(KEPT / f"{fault}.toml"))
    terms, limit = contract.cluster, contract.limit("SCALING", "efficiency")
    config = run_ladder.train_config(terms, False, STEPS)
    plan = run_ladder.Plan([1, 4], config, step_collectives(config, 4), terms.fabric)
    with closing(connect("auto")) as cluster, cluster.gang() as gang:
        for run in range(runs):
            with ledger(contract) as measure:
                rig = run_ladder.LadderRig(gang, cluster.node_names, measure)
                climbed = run_ladder.run_ladder(rig, plan)
                ladder = run_ladder.build_ladder(
                    climbed, [], plan, contract.limit("FABRIC", "busbw"), []
                )
                ladder = run_ladder.locate_slow_links(rig, ladder, limit)
            (KEPT / f"{fault}-{run}.json").write_text(json.dumps(ladder.to_dict()))
            shutil.rmtree(faulty_rung.CHECKPOINTS, ignore_errors=True)


def named(fault: str, run: int) -> Named:
    """Return what the probe's own code names in a stored ladder."""
    from probes.contract.contract import load
    from probes.scaling.judge import judge_ladder
    from scaling.loss.ladder_result import load_ladder

    contract = load(str(KEPT / f"{fault}.toml"))
    ladder = load_ladder(json.loads((KEPT / f"{fault}-{run}.json").read_text()))
    with ledger(contract) as measure:
        judge_ladder(ladder, partial(contract.limit, "SCALING"), measure)
        findings = measure.finish("finished", 0).findings
    return [(one.code, one.suspects) for one in findings if one.code != "SCALE-EFFICIENCY"]


@contextmanager
def ledger(contract: Contract) -> Iterator[Recorder]:
    """Yield a Recorder that belongs to no run."""
    with tempfile.TemporaryDirectory() as folder:
        yield Recorder(Store(Path(folder)), contract, "p", "SCALING", "", "", lambda words: None)


def climb(lab: Lab, fault: str, other: dict[str, str], runs: int) -> None:
    """Run `inside` on node 0 of the lab."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for old in KEPT.glob(f"{fault}-[0-9]*.json"):
        old.unlink()
    (KEPT / f"{fault}.toml").write_text(otherwise(other))
    words = ("inside", fault, str(runs))
    on_node(lab, "benchmarks.loss_attribution_lab", *words, seconds=120 + 120 * runs)


def line(what: str, want: Named, found: list[Named]) -> None:
    """Judge and print one row of the table."""
    causes, runs = 2 if "-and-" in what else 1, len(found)
    right = sum(named[:causes] == want[:causes] for named in found)
    alone = sum(named == want for named in found)
    least = runs if causes == 1 else runs - runs // 10
    said = f"{what:24} {right} of {runs} (target {least}), {alone} with nothing else"
    judged(said, runs > 0 and right >= least)
    for named in found:
        if named != want:
            print(f"    named: {', '.join(' '.join([code, *who]) for code, who in named)}")


def table(runs: int, only: Sequence[str] = ()) -> None:
    """Run each cause `runs` times in one lab, and print the table."""
    lab = Lab("planted")
    lab.up(4)
    try:
        for fault in only or CASES:
            ways, other, want = CASES[fault]
            for way in ways:
                inject(lab, *way)
            climb(lab, fault, other, runs)
            clear(lab)
            line(fault, want, [named(fault, run) for run in range(runs)])
    finally:
        lab.down()


def again() -> None:
    """Judge the stored ladders with the present code, and print the table."""
    for fault, (_, _, want) in CASES.items():
        runs = len([*KEPT.glob(f"{fault}-[0-9]*.json")])
        line(fault, want, [named(fault, run) for run in range(runs)])


if __name__ == "__main__":
    if sys.argv[1:2] == ["inside"]:
        inside(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1:2] == ["again"]:
        again()
        finish()
    else:
        table(int(sys.argv[1]) if sys.argv[1:] else 10, sys.argv[2:])
        finish()
