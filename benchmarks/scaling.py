"""The scaling row against its targets.  The lab's part needs root.

`python -m benchmarks.scaling [REPEATS]`: the price of the clock on every step, and the trainer
against a plain FSDP2 loop, in one process taken in turns; then the ladder in a lab of 8, on three
fabrics.  How well causes are named is benchmarks/causes.py's.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import replace
from functools import partial

from benchmarks.spread import spread
from benchmarks.trainer import overhead, price
from probes.scaling_commands import ladder_of
from reference_trainer.config import TrainConfig
from tests.faults.conftest import acceptance
from tests.lab.lab import Lab

# On the slower ones the links take most of what collectives do, and the two cores the rest.
FABRICS = ("1gbit", "50mbit", "20mbit")
CONFIG = TrainConfig(steps=240, dim=128, layers=4, digest=False, dropout=0.0, device="cpu")
LARGER = replace(CONFIG, steps=50, dim=512, heads=8)


def in_turns(repeats: int) -> None:
    """Ratios of neighbouring steps, so that what else the machine does falls out."""
    over = "a step of the trainer over one of a plain loop, both with the fused AdamW"
    for said, ratio in (
        ("price of the clock, a step with over without (target <= 1.01)", partial(price, CONFIG)),
        (f"{over}, of 30 ms (target <= 1.00)", partial(overhead, CONFIG, True)),
        (f"{over}, of 0.3 s (target <= 1.00)", partial(overhead, LARGER, True)),
        ("the first of them where that loop has AdamW's default", partial(overhead, CONFIG, None)),
    ):
        print(f"{said}: {spread([ratio() for _ in range(repeats)])}", flush=True)


def ladder(fabric: str) -> None:
    """1, 2, 4 and 8 nodes: seconds (target <= 300), and what more nodes cost beside two figures.

    Those are the rung's own collectives replayed without the trainer, beyond one node's, which is
    what a rung is judged by, and the time of the same calls by their alpha-beta fits.
    """
    lab = Lab("ladder")
    lab.up(8, fabric=fabric)
    try:
        record, trial = acceptance(lab, "ladder", "probes/test_scaling.py", "--tier", "standard")
        found = ladder_of(trial.folder)
    finally:
        lab.down()
    (result,) = record.results
    took = f"{result.verdict.value} in {result.seconds:.0f} s (target <= 300)"
    print(f"ladder of 8, {fabric}: {took}")
    one = found.rungs[0].seconds
    for rung in found.rungs[1:]:
        more, replayed = rung.seconds - one, found.replayed.get(rung.count, math.nan)
        modelled = found.by_fits.get(rung.count, math.nan)
        print(
            f"  {rung.count} nodes: efficiency {found.efficiency(rung):.3f}, "
            f"{rung.tokens_per_second:.0f} tokens/s; {more * 1e3:.1f} ms more than one node, "
            f"as replayed {replayed * 1e3:.1f}: {more / replayed:.2f}, "
            f"by alpha-beta {modelled * 1e3:.1f}: {more / modelled:.2f} (target 0.85 to 1.15)"
        )
    print(f"  {result.coverage}", flush=True)


def main(repeats: int = 5) -> None:
    """All parts."""
    in_turns(repeats)
    if os.geteuid() == 0:
        for fabric in FABRICS:
            ladder(fabric)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
