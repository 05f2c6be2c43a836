"""Computes the norm of sharded gradients and clips them, without a collective of its own.

As torch.nn.utils.clip_grad_norm_, but the sum of squares travels with the loss, in the step's only
all-reduce. Each rank works on the plain tensors that hold its shards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

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
