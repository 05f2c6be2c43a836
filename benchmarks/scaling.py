"""The scaling row against its targets.  The lab's part needs root.

`python -m benchmarks.scaling [REPEATS]`: the price of the clock on every step, and the trainer
against a plain FSDP2 loop, in one process taken in turns; then the ladder in a lab of 8, on two
fabrics.  How well causes are named is benchmarks/causes.py's.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.gang import spread
from probes.scaling_commands import ladder_of
from reference_trainer.build import build_model
from reference_trainer.config import TrainConfig
from reference_trainer.data import Stream
from reference_trainer.model import next_token_loss
from reference_trainer.spans import Spans
from reference_trainer.train import Run, train
from reference_trainer.world import World
from scaling.decompose import mean_seconds
from tests.alone import only_rank
from tests.faults.conftest import acceptance
from tests.lab.lab import Lab

STEPS, WARM_UP = 240, 10
SLOWER = "50mbit"  # here the links take most of what collectives do, and the two cores the rest
CONFIG = TrainConfig(steps=STEPS, dim=128, layers=4, digest=False, dropout=0.0, device="cpu")


def price() -> float:
    """A whole step's seconds with the clock over those without, in one run that does both in turns.

    Without it nothing is stamped, and no record of spans is made or written.
    """
    mark, end, record = Spans.mark, Spans.end, Run._record
    taken: dict[bool, list[float]] = {True: [], False: []}
    ended = [0.0]

    def clocked(step: int) -> bool:
        return step % 2 == 0

    def marked(self: Spans, segment: str) -> None:
        if clocked(self._step):
            mark(self, segment)

    def ending(self: Spans) -> dict[str, Any]:
        self._last = None  # each step begins anew, with the clock and without
        return end(self) if clocked(self._step) else {"seconds": 1.0}

    def recorded(self: Run, step: int, *told: Any) -> None:
        record(self, step, *told)
        now = time.perf_counter()
        taken[clocked(step)].append(now - ended[0])
        ended[0] = now

    with (
        patch.object(Spans, "mark", marked),
        patch.object(Spans, "end", ending),
        patch.object(Run, "_record", recorded),
    ):
        trained()
    with_, without = (statistics.median(each[WARM_UP:]) for each in (taken[True], taken[False]))
    return with_ / without


def trained() -> None:
    """A run of the trainer as it is, with all that it writes."""
    with only_rank(), tempfile.TemporaryDirectory() as folder:
        train(replace(CONFIG, out=folder))


class Plain:
    """The loop that anyone would write: same model, same data."""

    def __init__(self, world: World, fused: bool | None) -> None:
        self.model = build_model(CONFIG, world)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=CONFIG.lr, fused=fused)
        self.stream = Stream(
            seed=CONFIG.seed, seq=CONFIG.seq, vocab=CONFIG.vocab, per_step=CONFIG.batch
        )

    def step(self) -> float:
        """Seconds of one step."""
        begun = time.perf_counter()
        tokens = torch.from_numpy(self.stream.take(0, 1).tokens)
        loss = next_token_loss(self.model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CONFIG.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        loss.item()
        return time.perf_counter() - begun


def overhead(fused: bool | None) -> float:
    """A whole step's seconds of the trainer over a plain loop's, in one process step by step."""
    loops: list[Plain] = []
    ours: list[float] = []
    theirs: list[float] = []
    ended = [0.0]
    record = Run._record

    def then_plain(self: Run, *told: Any) -> None:
        record(self, *told)
        ours.append(time.perf_counter() - ended[0])
        if not loops:
            loops.append(Plain(self.world, fused))
        theirs.append(loops[0].step())
        self.spans._last = None  # the trainer's next step begins after it
        ended[0] = time.perf_counter()

    with patch.object(Run, "_record", then_plain):
        trained()
    pairs = [*zip(ours, theirs, strict=True)][WARM_UP:]
    return statistics.median(own / plain for own, plain in pairs)


def in_turns(repeats: int) -> None:
    """Ratios of neighbouring steps, so that what else the machine does falls out."""
    for said, ratio in (
        ("price of the clock, a step with over without (target <= 1.01)", price),
        (
            "a step of the trainer over one of a plain loop, both with the fused AdamW "
            "(target <= 1.00)",
            partial(overhead, True),
        ),
        ("the same where that loop has AdamW's default", partial(overhead, None)),
    ):
        print(f"{said}: {spread([ratio() for _ in range(repeats)])}", flush=True)


def ladder(fabric: str) -> None:
    """1, 2, 4 and 8 nodes: seconds (target <= 300), and what more nodes cost beside the prediction.

    What is predicted is what the rung's own collectives lead to expect, beyond one node's.
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
    one = mean_seconds(found.rungs[0].median_node())
    for rung in found.rungs[1:]:
        more, predicted = rung.seconds - one, found.expected.get(rung.count, math.nan)
        print(
            f"  {rung.count} nodes: efficiency {found.efficiency(rung):.3f}, "
            f"{rung.tokens_per_second:.0f} tokens/s; {more * 1e3:.1f} ms more than one node, "
            f"predicted {predicted * 1e3:.1f}: {more / predicted:.2f} (target 0.85 to 1.15)"
        )
    print(f"  {result.coverage}", flush=True)


def main(repeats: int = 5) -> None:
    """All parts."""
    in_turns(repeats)
    if os.geteuid() == 0:
        for fabric in ("1gbit", SLOWER):
            ladder(fabric)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
