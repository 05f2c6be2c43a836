"""Counts a training step's peak memory, as torch does, with tensors that hold no data.

A mock of the hardware: no GPU is used. FSDP2 shards the model over ranks that do not exist, on a
nominal CPU. FusedNorm replaces RMSNorm: CUDA's fused kernel keeps less than the CPU's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from reference_trainer.config import TrainConfig
from reference_trainer.distributed import World
from reference_trainer.model.transformer import build_model, next_token_loss

CPU = torch.device("cpu")


class FusedNorm(torch.autograd.Function):
    """RMSNorm as `aten::_fused_rms_norm` has it: keeps its input, its gain, a number per token."""

    @staticmethod
    def forward(ctx: Any, x: Any, gain: Any) -> Any:
        ctx.save_for_backward(x, gain, torch.empty(*x.shape[:-1], 1, dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        x, gain, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(gain)


def peak_bytes(config: TrainConfig, ranks: int) -> int:
    """Return the most bytes that one of `ranks` ranks holds in a step that is not the first."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        world = SimpleNamespace(device=CPU, mesh=init_device_mesh("cpu", (ranks,)))
        with (
            patch.object(torch.nn.RMSNorm, "forward", lambda n, x: FusedNorm.apply(x, n.weight)),
            FakeTensorMode(),
        ):
            return _take_steps(config, cast(World, world))
    finally:
        dist.destroy_process_group()


def _take_steps(config: TrainConfig, world: World) -> int:
    model, tracker = build_model(config, world), MemTracker()
    optimizer = torch.optim.AdamW(model.parameters())
    tracker.track_external(model, optimizer)
    tokens = torch.zeros(config.batch, config.seq + 1, dtype=torch.int64)
    for _ in range(2):
        tracker.reset_mod_stats()
        with tracker:
            next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return int(tracker.get_tracker_snapshot("peak")[CPU]["Total"])
