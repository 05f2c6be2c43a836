"""The model: a transformer, its build under FSDP2, and emulated compute."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from reference_trainer.config import TrainConfig
from reference_trainer.distributed import World

ROPE_THETA = 10000.0  # base of the angles, arXiv 2104.09864, section 3.2


class Attention(nn.Module):
    """Causal self-attention with rotary positions. [batch, seq, dim] -> [batch, seq, dim]."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        shape = config.shape
        self.head_dim, self.dropout = shape.head_dim, config.dropout
        self.widths = config.dim, shape.kv_heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.grouped_query = shape.kv_heads != config.heads
        self.qkv = nn.Linear(config.dim, sum(self.widths), bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)
        frequencies = ROPE_THETA ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim)
        angles = torch.outer(torch.arange(config.seq), frequencies)
        self.register_buffer("turns", torch.stack([angles.cos(), angles.sin()]), persistent=False)

    def forward(self, x: Any) -> Any:
        """Mix tokens of [batch, seq, dim]; position t sees positions 0..t only."""
        batch, seq, dim = x.shape
        q, k, v = (
            part.view(batch, seq, -1, self.head_dim).transpose(1, 2)
            for part in self.qkv(x).split(self.widths, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(
            apply_rotary(q, self.turns[:, :seq]),
            apply_rotary(k, self.turns[:, :seq]),
            v,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
            enable_gqa=self.grouped_query,
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, dim))


def apply_rotary(x: Any, turns: Any) -> Any:
    """Rotate each pair of a head's numbers by its position's angle, in fp32 (rotary positions).

    x [batch, heads, seq, head], turns [2, seq, head / 2]: cosines and sines.
    """
    cos, sin = turns
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class TransformerBlock(nn.Module):
    """Attention, then a SwiGLU MLP, each with a norm before it and a residual around it."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        hidden = config.shape.hidden
        self.norm1 = nn.RMSNorm(config.dim)
        self.attention = Attention(config)
        self.norm2 = nn.RMSNorm(config.dim)
        self.gate = nn.Linear(config.dim, hidden, bias=False)
        self.up = nn.Linear(config.dim, hidden, bias=False)
        self.down = nn.Linear(hidden, config.dim, bias=False)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Any) -> Any:
        """Run the block: [batch, seq, dim] -> [batch, seq, dim]."""
        x = x + self.drop(self.attention(self.norm1(x)))
        y = self.norm2(x)
        return x + self.drop(self.down(F.silu(self.gate(y)) * self.up(y)))


class Transformer(nn.Module):
    """Token embedding, blocks, a norm and an output head (not tied to the embedding)."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.dim)
        self.blocks = nn.ModuleList([TransformerBlock(config) for _ in range(config.layers)])
        self.recompute = config.recompute
        self.norm = nn.RMSNorm(config.dim)
        self.head = nn.Linear(config.dim, config.vocab, bias=False)
        self.apply(_init_weights)

    def forward(self, tokens: Any) -> Any:
        """Compute logits [batch, seq, vocab] from int64 tokens [batch, seq]."""
        x = self.tokens(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(self.norm(x))


def next_token_loss(logits: Any, targets: Any) -> Any:
    """Compute mean cross entropy in nats, in fp32.

    logits [batch, seq, vocab], targets [batch, seq].
    """
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def count_parameters(model: Any) -> int:
    """Count the trainable parameters of a model; sharded ones count in full."""
    return sum(parameter.numel() for parameter in model.parameters())


def _init_weights(module: Any) -> None:
    # 0.02 as in GPT-2; RMSNorm already starts with gains of one.
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


EPSILON = 1e-6  # as in torch.nn.utils.clip_grads_with_norm_: no division by a norm of zero


def local_gradients(parameters: Iterable[Any]) -> list[Any]:
    """Return this rank's shards of the gradients: the memory the optimizer reads, not a copy."""
    with torch.no_grad():
        return [parameter.grad.to_local() for parameter in parameters if parameter.grad is not None]


def square_sum(gradients: list[Any]) -> Any:
    """Return the sum of the squares of all numbers in these tensors, a scalar on their device."""
    return torch.nn.utils.get_total_norm(gradients).square()


def clip_gradients(gradients: list[Any], norm: Any, max_norm: float) -> None:
    """Scale the gradients so that `norm`, that of all shards together, is at most `max_norm`."""
    torch._foreach_mul_(gradients, (max_norm / (norm + EPSILON)).clamp(max=1.0))


# Backward does twice the arithmetic of forward: the 6N of PaLM's appendix B is 2N + 4N.
FORWARD_SHARE = 1 / 3


class EmulatedCompute:
    """Padding of forward and backward of each block it is attached to.

    Attach it after `fully_shard`: its hooks must run after FSDP's own, which gather the weights.
    `overruns` counts paddings that were not needed because the real compute took longer.
    """

    def __init__(self, seconds: float, blocks: int) -> None:
        self.forward_s = seconds * FORWARD_SHARE / blocks
        self.backward_s = seconds * (1 - FORWARD_SHARE) / blocks
        self.overruns = 0
        self._forward_began = self._backward_began = 0.0

    def attach(self, block: Any) -> None:
        """Pad this module, which takes one tensor and returns one."""
        block.register_forward_pre_hook(self._before_forward)
        block.register_forward_hook(self._after_forward)

    def _before_forward(self, block: Any, inputs: tuple[Any, ...]) -> None:
        if inputs[0].requires_grad:  # in validation nothing does
            # The gradient of the input is the last thing a block's backward computes.
            inputs[0].register_hook(lambda _: self._pad(self._backward_began, self.backward_s))
        self._forward_began = time.perf_counter()

    def _after_forward(self, block: Any, inputs: tuple[Any, ...], output: Any) -> None:
        self._pad(self._forward_began, self.forward_s)
        if output.requires_grad:
            # Registered after FSDP's hook on the same tensor, hence called after the all-gather.
            output.register_hook(self._begin_backward)

    def _begin_backward(self, gradient: Any) -> None:
        self._backward_began = time.perf_counter()

    def _pad(self, start: float, seconds: float) -> None:
        remaining = start + seconds - time.perf_counter()
        if remaining > 0:
            time.sleep(remaining)
        else:
            self.overruns += 1


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


def parameter_digest(model: Any, *, sharded: bool = True) -> str:
    """Return the sha256 of all full parameters in order of name.

    All ranks of a sharded model call it; of one that is not sharded yet, each has its own.  Raises
    AttributeError for a model that should be sharded and is not.
    """
    hasher = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        own = parameter.detach()
        full = own.full_tensor() if sharded else own
        hasher.update(name.encode())
        hasher.update(full.float().cpu().contiguous().numpy().tobytes())
    return hasher.hexdigest()
