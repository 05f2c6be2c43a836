"""Computes what a model costs: FLOPs of a token, and memory of a rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from reference_trainer.config import TrainConfig
from reference_trainer.model.devices import find_device

if TYPE_CHECKING:
    from reference_trainer.distributed import World


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
    device = find_device(device_name)
    return device.tflops * 1e12 if device and device.tflops and dtype != "fp32" else None


GIB = 2**30


class MemoryShortage(RuntimeError):
    """Raised when a step needs more memory than a GPU has free."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes on one rank at the peak of a step.

    `state` is for weights and AdamW's moments. `activations` are kept for backward. `work` is for
    the loss, or for gathered weights and gradients.
    """

    state: int
    activations: int
    work: int

    @property
    def total(self) -> int:
        """Sum of the three parts, in bytes."""
        return self.state + self.activations + self.work

    def __str__(self) -> str:
        """Show as `8 GiB (1 for weights and optimizer, 4 for activations, 3 to work with)`."""
        parts = (self.state, self.activations, self.work)
        state, activations, work = (f"{part / GIB:.1f}" for part in parts)
        return (
            f"{self.total / GIB:.1f} GiB ({state} for weights and optimizer, "
            f"{activations} for activations, {work} as work space)"
        )


def estimate_memory(config: TrainConfig, shards: int) -> MemoryNeed:
    """Estimate a step's peak on one of `shards` ranks; blocks that are compiled need less.

    Counted by hand from transformer.py, FSDP2's order of work and the CUDA kernels. RMSNorm keeps
    its input and a number for each token. Attention (flash) keeps its inputs, its output and a
    number for each head and token. tests/reference_trainer/model/test_memory.py compares it with
    torch's own count. The memory of NCCL and the allocator is not included.
    """
    element = 4 if config.dtype == "fp32" else 2
    tokens = -(-config.batch // config.accumulate) * config.seq
    block = element * block_parameters(config)
    whole = parameter_count(config)
    outside = element * (whole - config.layers * block_parameters(config))  # table and head
    inside = _kept_by_block(config, tokens, element)
    entrance = element * tokens * config.dim
    activations = config.layers * (entrance if config.recompute else inside)
    # Gradients of parts that are not reduced yet: FSDP2 keeps them unsharded, in fp32.
    unreduced = 4 * whole if config.accumulate > 1 else 0
    # Weights in the compute type: of the last block, or of all blocks if there is one shard.
    cast = block * (config.layers if shards == 1 else 1)
    # At the loss: the kept softmax, the gradient of the loss, and that of the logits, all in fp32.
    at_loss = 12 * tokens * config.vocab + outside + cast
    # In the last block's backward: the head's gradient, the weights of the next block, this block's
    # gradients, their fp32 copy for the reduction, and the gradients inside its MLP.
    mlp = 3 * element * tokens * config.shape.hidden
    in_block = (inside if config.recompute else 0) + mlp
    in_block += outside + outside // 2 + cast + 2 * block + 4 * block_parameters(config)
    # At the end: the last gradients are reduced; no activation is kept any more.
    at_end = 2 * outside + 4 * (outside // element) + 4 * whole // shards - activations
    return MemoryNeed(
        state=state_bytes(config, shards) * 3 // 4,  # 4 of its 16 bytes are the gradients'
        activations=activations,
        work=max(at_loss, in_block, at_end) + unreduced,
    )


def _kept_by_block(config: TrainConfig, tokens: int, element: int) -> int:
    """Count the bytes that one block keeps for its backward."""
    keys = config.shape.kv_heads * config.shape.head_dim
    # 7 dim: input, its norm, queries before and after rotation, attention's output, its sum with
    # the input, the norm of that. 3 keys: keys before and after rotation, values. 4 hidden: gate,
    # its SiLU, up, their product.
    kept = element * (7 * config.dim + 3 * keys + 4 * config.shape.hidden)
    masks = 2 * config.dim if config.dropout else 0  # a byte for each number that may be dropped
    return tokens * (kept + masks + 4 * config.heads + 2 * 4)


def describe_shortage(config: TrainConfig, shards: int, free: int) -> str:
    """Return what a step needs and what to change, if `free` bytes are not enough; else "".

    The text ends with the smallest change that is enough.
    """
    need = estimate_memory(config, shards)
    if need.total <= free:
        return ""
    return (
        f"a step needs about {need} on each GPU, but only {free / GIB:.1f} GiB "
        f"are free: use {_advice(config, shards, free)}"
    )


def require_memory(config: TrainConfig, world: World) -> None:
    """Raise MemoryShortage on every rank if a step is too large for some rank's GPU."""
    import torch

    if world.device.type != "cuda":
        return
    free, _ = torch.cuda.mem_get_info(world.device)
    shortage = describe_shortage(config, config.shard or world.size, free)
    shortages = world.gather(f"rank {world.rank} on {world.host}: {shortage}" if shortage else "")
    if short := [each for each in shortages if each]:
        raise MemoryShortage(short[0])


def _advice(config: TrainConfig, shards: int, free: int) -> str:
    """Find the smallest change of the options that is enough."""
    batches = [2**power for power in range(config.batch.bit_length()) if 2**power < config.batch]
    with_batch = [(f"--batch {batch}", {"batch": batch}) for batch in reversed(batches)]
    with_both = [(f"--recompute {text}", {"recompute": True, **b}) for text, b in with_batch]
    changes: list[tuple[str, dict[str, Any]]] = [*with_batch, *with_both]
    if not config.recompute and not config.pace_s:
        changes.insert(0, ("--recompute", {"recompute": True}))
    for text, change in changes:
        if estimate_memory(replace(config, **change), shards).total <= free:
            return text
    return "more ranks, or a smaller --preset"
