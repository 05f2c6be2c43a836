"""Defines a decoder-only transformer of Llama's shape (arXiv 2302.13971), written to be read."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from reference_trainer.config import TrainConfig

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
