"""Computes the size of the model and the FLOP of one token, from the configuration alone."""

from __future__ import annotations

import re

from reference_trainer.config import TrainConfig

# Peak dense bf16 arithmetic in FLOP/s. An entry matches if all its words are in the device's name;
# the match with most words counts. None: a different board, whose peak that source does not have.
# Source: pytorch/torchtitan, torchtitan/tools/utils.py, which cites the vendors' data sheets.
PEAK_FLOPS = {
    "A100": 312e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200 NVL": None,
    "H200": 989e12,
    "B200": 2.25e15,
    "B300": 2.25e15,
    "GB200": 2.5e15,
    "GB300": 2.5e15,
    "MI300X": 1307e12,
}


def parameter_count(config: TrainConfig) -> int:
    """Count all trainable parameters of `transformer.Transformer`, embeddings included."""
    outside = 2 * config.vocab * config.dim + config.dim  # table, head, last norm
    return outside + config.layers * block_parameters(config)


def block_parameters(config: TrainConfig) -> int:
    """Count the trainable parameters of one block, its norms' gains included."""
    return _block_matmuls(config) + 2 * config.dim


def matmul_parameters(config: TrainConfig) -> int:
    """Count parameters that multiply every token: all but the lookup table and the norms' gains."""
    return config.layers * _block_matmuls(config) + config.vocab * config.dim


def _block_matmuls(config: TrainConfig) -> int:
    shape = config.shape
    attention = 2 * config.dim**2 + 2 * config.dim * shape.kv_heads * shape.head_dim
    return attention + 3 * config.dim * shape.hidden


def flops_per_token(config: TrainConfig) -> float:
    """Return the FLOP of forward and backward for one token: 6N + 12 L H Q T.

    PaLM (arXiv 2204.02311), appendix B: N parameters, L layers, H heads of size Q, T tokens in the
    sequence. N here leaves out the lookup table, which does no arithmetic. As in the paper the
    causal mask is not discounted.
    """
    attention = 12 * config.layers * config.dim * config.seq
    return float(6 * matmul_parameters(config) + attention)


def state_bytes(config: TrainConfig, shards: int) -> int:
    """Return the bytes of weights, gradients and AdamW's two moments on one of `shards` ranks.

    16 bytes per parameter, in float32 (ZeRO, arXiv 1910.02054, section 3.1, without its 16-bit
    copies). Activations, and one block's gathered weights, come on top.
    """
    return 16 * parameter_count(config) // shards


def peak_flops(device_name: str, dtype: str) -> float | None:
    """Return the peak dense FLOP/s of a GPU by its name, for a `dtype` of config.CHOICES.

    Returns None for another type than bf16 ("auto" means bf16 here). Returns None also for a slice
    of a GPU (MIG, vGPU), and for a name that the table does not contain.
    """
    parts = _split_name(device_name)
    known = [name for name in PEAK_FLOPS if _split_name(name) <= parts]
    is_slice = parts & {"mig", "grid"} or any(re.fullmatch(r"\d+[abcq]", part) for part in parts)
    if dtype == "fp32" or is_slice or not known:
        return None
    return PEAK_FLOPS[max(known, key=lambda name: len(_split_name(name)))]


def _split_name(name: str) -> set[str]:
    return {*re.findall("[a-z0-9]+", name.lower())}
