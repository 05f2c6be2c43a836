"""The scaling row against its targets.  The lab's part needs root.

`python -m benchmarks.scaling [REPEATS]`: the price of the clock on every step, and the trainer
against a plain FSDP2 loop, in one process taken in turns; then the ladder in a lab of 8.  How well
causes are named is benchmarks/causes.py's.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.gang import spread
from reference_trainer.build import build_model
from reference_trainer.config import TrainConfig
from reference_trainer.data import Stream
from reference_trainer.model import next_token_loss
from reference_trainer.spans import Spans
from reference_trainer.train import Run, train
from reference_trainer.world import World
from reports.record import RunRecord
from tests.alone import only_rank
from tests.faults.conftest import acceptance
from tests.lab.lab import Lab

STEPS, WARM_UP = 240, 10
CONFIG = TrainConfig(steps=STEPS, dim=128, layers=4, digest=False, dropout=0.0, device="cpu")


def price() -> float:
    """A step's seconds with the clock over those without, in one run that does both in turns.

    Every other step is stamped at its end alone.
    """
    mark = Spans.mark

    def rarely(self: Spans, segment: str) -> None:
        if self._step % 2 == 0:
            mark(self, segment)
        elif segment == "other":
            self._stamps, self._names = self._stamps[:1], []
            mark(self, segment)

    with only_rank(), patch.object(Spans, "mark", rarely):
        spans = train(CONFIG)["spans"][WARM_UP:]
    with_, without = (
        [span["seconds"] for span in spans if span["step"] % 2 == odd] for odd in (0, 1)
    )
    return statistics.median(with_) / statistics.median(without)


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
    """A step's seconds of the trainer over those of a plain loop, in one process step by step."""
    loops: list[Plain] = []
    theirs: list[float] = []
    record = Run._record

    def then_plain(self: Run, *told: Any) -> None:
        record(self, *told)
        if not loops:
            loops.append(Plain(self.world, fused))
        theirs.append(loops[0].step())
        self.spans._last = None  # the trainer's next step begins after it

    with only_rank(), patch.object(Run, "_record", then_plain):
        ours = [span["seconds"] for span in train(CONFIG)["spans"]]
    pairs = [*zip(ours, theirs, strict=True)][WARM_UP:]
    return statistics.median(own / plain for own, plain in pairs)


def in_turns(repeats: int) -> None:
    """Ratios of neighbouring steps, so that what else the machine does falls out."""
    for said, ratio in (
        ("price of the clock, a step with over without (target <= 1.01)", price),
        (
            "a step of the trainer over one of a plain loop (target <= 1.00)",
            partial(overhead, None),
        ),
        ("the same where that loop has the fused AdamW too", partial(overhead, True)),
    ):
        print(f"{said}: {spread([ratio() for _ in range(repeats)])}", flush=True)


def noted(record: RunRecord, name: str) -> dict[str, Any]:
    """A figure by the rung it is of."""
    (result,) = record.results
    return {m.subject: m.value for m in result.measurements if m.name == name}


def ladder() -> None:
    """1, 2, 4 and 8 nodes: seconds (target <= 300), what was lost, and what was expected of it."""
    lab = Lab("ladder")
    lab.up(8)
    try:
        record, _ = acceptance(lab, "ladder", "probes/test_scaling.py", "--tier", "standard")
    finally:
        lab.down()
    (result,) = record.results
    print(f"ladder of 8: {result.verdict.value} in {result.seconds:.0f} s (target <= 300)")
    efficiency = noted(record, "efficiency")
    tokens = noted(record, "tokens_per_second")
    predicted = noted(record, "predicted_communication")
    one = float(tokens["1 node"])
    for rung, share in efficiency.items():
        nodes = int(str(rung).split()[0])
        print(f"  {rung}: efficiency {share:.3f}; predicted communication {predicted[rung]:.3f} s,")
        print(f"    tokens/s {tokens[rung]:.0f} of {nodes * one:.0f}")
    print(f"  {result.coverage}")


def main(repeats: int = 5) -> None:
    """All parts."""
    in_turns(repeats)
    if os.geteuid() == 0:
        ladder()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
