"""Chooses what SCALING trains: a model that fits, with the same tokens per accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probes.acceptance.cluster_terms import ClusterTerms
from reference_trainer.config import PRESETS, TrainConfig
from reference_trainer.data.shards import VOCAB
from reference_trainer.model.flops import parameter_count
from reference_trainer.model.memory import GIB, estimate_memory

# 8192 tokens per GPU and step.  Efficiency depends on them: the same cluster drops from 96 to 77 %
# with an eighth of the tokens.
TOKENS = {"seq": 2048, "batch": 4, "dropout": 0.0, "deterministic": False}
# The first load that fits is trained: for a GPU of 80 GB, of 40 GB, of less.
GPU_LOADS: Sequence[dict[str, Any]] = (
    {**PRESETS["1B"], **TOKENS},
    {**PRESETS["1B"], **TOKENS, "recompute": True},
    {**PRESETS["125M"], **TOKENS},
)
USABLE = 0.9  # of a GPU's memory: the rest is CUDA's context, NCCL's buffers, and gaps


def train_config(
    terms: ClusterTerms, steps: int, gpu_gib: float | None = None, ranks: int = 1
) -> TrainConfig:
    """Choose the training configuration; it uses the shards that the contract names, if any.

    `gpu_gib` is the memory of the smallest GPU in GiB (None: emulated).  `ranks` is the number of
    ranks on the base rung.
    """
    shape: dict[str, Any] = {} if gpu_gib is None else _fitting_load(gpu_gib, ranks)
    if terms.shards:
        shape |= {"data": terms.shards, "vocab": max(VOCAB, shape.get("vocab", 0))}
    return TrainConfig(steps=steps, pace_s=terms.pace_seconds, digest=False, **shape)


def _fitting_load(gpu_gib: float, ranks: int) -> dict[str, Any]:
    for load in GPU_LOADS:
        if estimate_memory(TrainConfig(**load), ranks).total <= USABLE * gpu_gib * GIB:
            break
    return dict(load)


def describe_load(load: TrainConfig, gpu_gib: float | None) -> str:
    """Describe the load: `trained 133,440 parameters, 256 tokens per rank and step`.

    If it is not the largest load, the reason is added.
    """
    text = f"trained {parameter_count(load):,} parameters"
    text += f", {load.batch * load.seq} tokens per rank and step"
    whole = gpu_gib is None or (load.dim, load.recompute) == (GPU_LOADS[0]["dim"], False)
    return text if whole else f"{text}, because a GPU here has {gpu_gib:.0f} GiB"


def least_gpu_memory(facts: Sequence[dict[str, Any]]) -> float:
    """Find the smallest GPU's memory, GiB; infinite if no GPU reports it.

    Then the largest load is chosen, and the ranks show whether it fits.
    """
    sizes = [gpu.get("memory_gib") for fact in facts for gpu in fact["gpus"]]
    return min((size for size in sizes if size), default=float("inf"))
