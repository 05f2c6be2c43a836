"""Builds the model as it is trained (initialised, compiled, sharded, paced) and hashes it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from reference_trainer.config import TrainConfig
from reference_trainer.distributed import World
from reference_trainer.model.emulated_compute import EmulatedCompute
from reference_trainer.model.transformer import Transformer


def build_model(
    config: TrainConfig,
    world: World,
    inspect: Callable[[Any], None] = lambda model: None,
    wrong_seed: bool = False,
) -> Any:
    """Build the model, the same on all ranks, sharded over them block by block (FSDP2).

    Every rank initialises all weights on its own device and keeps its shard. So the unsharded model
    must fit on one device for a moment. `inspect` is called with it. With a `wrong_seed` this
    rank's weights are not those of the others, as a planted error.
    """
    torch.manual_seed(config.seed + wrong_seed)
    with world.device:
        model = Transformer(config)
    inspect(model)
    bf16 = config.dtype == "bf16" or (config.dtype == "auto" and world.device.type == "cuda")
    dtype = torch.bfloat16 if bf16 else None
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    # With one shard there is nothing to gather: the weights cast for forward are kept for backward.
    reshard = world.mesh.size(-1) > 1
    for block in model.blocks:
        if config.compile:
            block.compile()
        fully_shard(block, mesh=world.mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=world.mesh, mp_policy=policy)
    if config.pace_s > 0:
        emulated = EmulatedCompute(config.pace_s / config.accumulate, config.layers)
        for block in model.blocks:
            emulated.attach(block)
    return model


def parameter_digest(model: Any) -> str:
    """Return the sha256 of all full parameters in order of name, on all ranks; all call it."""
    return _digest(model, lambda parameter: parameter.full_tensor())


def local_digest(model: Any) -> str:
    """Return the same of a model that is not sharded yet, on this rank alone."""
    return _digest(model, lambda parameter: parameter)


def _digest(model: Any, complete: Callable[[Any], Any]) -> str:
    hasher = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        full = complete(parameter.detach()).float().cpu().contiguous()
        hasher.update(name.encode())
        hasher.update(full.numpy().tobytes())
    return hasher.hexdigest()
