"""A small decoder-only transformer, written to be read."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from reference_trainer.config import TrainConfig


class Attention(nn.Module):
    """Causal self-attention.  [batch, seq, dim] -> [batch, seq, dim]."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x: Any) -> Any:
        """Mix tokens of [batch, seq, dim]; position t sees positions 0..t only."""
        batch, seq, dim = x.shape
        q, k, v = (
            part.view(batch, seq, self.heads, dim // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, dim))


class Block(nn.Module):
    """Attention, then a GELU MLP, each with a norm before and a residual round it."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.dim)
        self.attention = Attention(config)
        self.norm2 = nn.RMSNorm(config.dim)
        self.up = nn.Linear(config.dim, 4 * config.dim, bias=False)
        self.down = nn.Linear(4 * config.dim, config.dim, bias=False)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Any) -> Any:
        """[batch, seq, dim] -> [batch, seq, dim]."""
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Transformer(nn.Module):
    """Token and position tables, blocks, a norm and an output head (not tied to the table)."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.dim)
        self.positions = nn.Embedding(config.seq, config.dim)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.layers)])
        self.recompute = config.recompute
        self.norm = nn.RMSNorm(config.dim)
        self.head = nn.Linear(config.dim, config.vocab, bias=False)
        self.apply(_initialise)

    def forward(self, tokens: Any) -> Any:
        """int64 tokens [batch, seq] -> logits [batch, seq, vocab]."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(self.norm(x))


def next_token_loss(logits: Any, targets: Any) -> Any:
    """Mean cross entropy in nats, in fp32.  logits [batch, seq, vocab], targets [batch, seq]."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def count_parameters(model: Any) -> int:
    """Trainable parameters of a model, counted whole even when they are sharded."""
    return sum(parameter.numel() for parameter in model.parameters())


def _initialise(module: Any) -> None:
    # 0.02 as in GPT-2; RMSNorm already starts with gains of one.
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
