"""What a job does once it is trained: validates, exports the model, and loads the export elsewhere.

All ranks call these functions, because a sharded model computes only with all of them.
"""

from __future__ import annotations

import hashlib
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reference_trainer.config import TrainConfig
from reference_trainer.data.shard_stream import make_sample
from reference_trainer.distributed import World
from reference_trainer.model import export as exports
from reference_trainer.model.transformer import next_token_loss
from reference_trainer.rank_environment import PlantedErrors, read_variables

FIRST_VALIDATION_SAMPLE = 1 << 40  # no training step gets that far
Part = dict[str, Any]  # what one rank contributes to the result
MAX_SENT_BYTES = 256 << 20  # of an export that is sent to another rank; a larger one is read there


def close_job(model: Any, config: TrainConfig, world: World, errors: PlantedErrors) -> Part:
    """Validate and export as the configuration says; return this rank's part of the result.

    Keys: variables (of this process), validation (crc32 of the data, loss), export (sha256 where
    this rank wrote it; loaded_sha256 and loaded_loss on the last rank, which loads it). Raises
    OSError.
    """
    # First: after a forward pass without a backward pass FSDP leaves its root's weights unsharded.
    export = _export(model, config, world, errors)
    variables, validation = read_variables(config.show), _validate(model, config, world, errors)
    return {"variables": variables, "export": export, "validation": validation}


def validation_tokens(config: TrainConfig, seed: int | None = None) -> Any:
    """Make the validation data: int64 [validate, seq + 1], the same on every rank."""
    seed = config.seed if seed is None else seed
    rows = [
        make_sample(seed, FIRST_VALIDATION_SAMPLE + index, config.seq + 1, config.vocab)
        for index in range(config.validate)
    ]
    return torch.from_numpy(np.stack(rows))


def validation_loss(model: Any, tokens: Any) -> float:
    """Compute the loss of the model on these tokens, without dropout and gradients."""
    model.eval()
    with torch.no_grad():
        return float(next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]))


def _validate(model: Any, config: TrainConfig, world: World, errors: PlantedErrors) -> Part | None:
    if not config.validate:
        return None
    tokens = validation_tokens(config, config.seed + errors.here("validation"))
    loss = validation_loss(model, tokens.to(world.device))
    return {"crc32": f"{zlib.crc32(tokens.numpy().tobytes()):08x}", "loss": loss}


def _export(model: Any, config: TrainConfig, world: World, errors: PlantedErrors) -> Part | None:
    """Write the export on rank 0, and load it on the last rank from what rank 0 wrote."""
    if config.export is None:
        return None
    writes = world.rank == 0 or errors.everywhere("export")
    folder, own = Path(config.export), {}
    weights = exports.gather_weights(model, keep=writes)
    files, problem = None, None
    if writes:
        if errors.everywhere("corrupt"):
            weights["head.weight"] = -weights["head.weight"]
        place = folder if world.rank == 0 else folder / f"rank{world.rank}"
        try:
            own["sha256"] = exports.write_export(weights, config, place)
            if (folder / exports.WEIGHTS).stat().st_size <= MAX_SENT_BYTES:
                files = exports.read_files(folder)
        except OSError as error:
            problem = f"rank {world.rank} on {world.host}: the model was not exported: {error}"
    files, problem = world.broadcast((files, problem))  # so that all ranks raise, or none
    if problem:
        raise OSError(problem)
    if world.rank == world.size - 1:
        own.update(_load(files or exports.read_files(folder), config))
    if not config.keep_export:
        world.gather(None)  # the last rank has loaded it
        if writes:
            shutil.rmtree(folder, ignore_errors=True)
    return own


def _load(files: dict[str, bytes], config: TrainConfig) -> Part:
    loaded = exports.load_export(files)
    sha256 = hashlib.sha256(files[exports.WEIGHTS]).hexdigest()
    loss = validation_loss(loaded, validation_tokens(config)) if config.validate else None
    return {"loaded_sha256": sha256, "loaded_loss": loss}
