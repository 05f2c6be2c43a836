"""Compares the trainer with a plain FSDP2 loop, and with itself without a clock, step by step.

All run in turn in one process. Needs no cluster. `config` gives the model, the number of steps and
the device.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, schedule

from reference_trainer.config import TrainConfig
from reference_trainer.data.shard_stream import SampleStream
from reference_trainer.distributed import World
from reference_trainer.model.transformer import build_model, next_token_loss
from reference_trainer.telemetry.step_timer import StepTimer
from reference_trainer.train import Trainer, train
from tests.support.single_rank import only_rank

WARM_UP, PROFILED = 10, 3  # steps


def trained(config: TrainConfig) -> dict[str, Any]:
    """Run the trainer unchanged, with all that it writes, and return its result."""
    with only_rank(), tempfile.TemporaryDirectory() as folder:
        return train(replace(config, out=folder))


def price(config: TrainConfig) -> float:
    """Return a step's seconds with the clock over those without, from one run that alternates.

    Without the clock nothing is stamped, and no record of spans is made or written.
    """
    begin, mark, waiting, end = StepTimer.begin, StepTimer.mark, StepTimer.waiting, StepTimer.end
    record = Trainer._record
    taken: dict[bool, list[float]] = {True: [], False: []}
    ended = [0.0]

    def clocked(step: int) -> bool:
        return step % 2 == 0

    def begun(self: StepTimer, step: int) -> None:
        if clocked(step):
            begin(self, step)
        self._step = step

    def waited(self: StepTimer, collective: str) -> AbstractContextManager[None]:
        return waiting(self, collective) if clocked(self._step) else nullcontext()

    def marked(self: StepTimer, segment: str) -> None:
        if clocked(self._step):
            mark(self, segment)

    def ending(self: StepTimer) -> dict[str, Any]:
        self._last = None  # each step begins with a reading of its own, with the clock and without
        if clocked(self._step):
            return end(self)
        if config.device == "cuda":
            torch.cuda.synchronize()  # as the clock does: this step's work is no part of the next
        return {"seconds": 1.0}

    def recorded(self: Trainer, step: int, *told: Any) -> None:
        record(self, step, *told)
        now = time.perf_counter()
        taken[clocked(step)].append(now - ended[0])
        ended[0] = now

    with (
        patch.object(StepTimer, "begin", begun),
        patch.object(StepTimer, "mark", marked),
        patch.object(StepTimer, "waiting", waited),
        patch.object(StepTimer, "end", ending),
        patch.object(Trainer, "_record", recorded),
    ):
        trained(config)
    with_, without = (statistics.median(each[WARM_UP:]) for each in (taken[True], taken[False]))
    return with_ / without


def profiled(config: TrainConfig) -> tuple[list[tuple[str, float]], float]:
    """Return the kernels as (name, seconds of a step), largest first, and a step's seconds.

    Profiles some steps after the warm-up. The mean seconds of those steps include the profiler's
    own work. On a CPU the kernels are torch's operators, each without those that it called.
    """
    record, on_gpu = Trainer._record, config.device == "cuda"
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    seen = profile(
        activities=kinds,
        schedule=schedule(wait=WARM_UP - 1, warmup=1, active=PROFILED, repeat=1),
        acc_events=True,
    )

    def recorded(self: Trainer, *told: Any) -> None:
        record(self, *told)
        seen.step()

    with seen, patch.object(Trainer, "_record", recorded):
        result = trained(replace(config, steps=WARM_UP + PROFILED))
    where = DeviceType.CUDA if on_gpu else DeviceType.CPU
    spent = {
        one.key: (one.self_device_time_total if on_gpu else one.self_cpu_time_total) / 1e6
        for one in seen.key_averages()
        if one.device_type == where and not one.is_user_annotation
    }
    largest = sorted(spent, key=spent.__getitem__, reverse=True)
    step = statistics.fmean(one["seconds"] for one in result["steps"][WARM_UP:])
    return [(name, spent[name] / PROFILED) for name in largest], step


class Plain:
    """Plain training loop that anyone would write: same model, same data."""

    def __init__(self, config: TrainConfig, world: World, fused: bool | None) -> None:
        self.clip, self.device = config.clip, world.device
        self.model = build_model(config, world)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr, fused=fused)
        self.stream = SampleStream(
            seed=config.seed, seq=config.seq, vocab=config.vocab, per_step=config.batch
        )

    def step(self) -> float:
        """Run one step and return its seconds."""
        begun = time.perf_counter()
        tokens = torch.from_numpy(self.stream.take(0, 1).tokens).to(self.device)
        loss = next_token_loss(self.model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        loss.item()
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # the trainer's clock waits for its step's end, too
        return time.perf_counter() - begun


def overhead(config: TrainConfig, fused: bool | None) -> float:
    """Return a step's seconds of the trainer over a plain loop's, in turn in one process."""
    loops: list[Plain] = []
    ours: list[float] = []
    theirs: list[float] = []
    ended = [0.0]
    record = Trainer._record

    def then_plain(self: Trainer, *told: Any) -> None:
        record(self, *told)
        ours.append(time.perf_counter() - ended[0])
        if not loops:
            loops.append(Plain(config, self.world, fused))
        theirs.append(loops[0].step())
        self.timer._last = None  # the trainer's next step begins after it
        ended[0] = time.perf_counter()

    with patch.object(Trainer, "_record", then_plain):
        trained(config)
    pairs = [*zip(ours, theirs, strict=True)][WARM_UP:]
    return statistics.median(own / plain for own, plain in pairs)
