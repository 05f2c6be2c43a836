"""Saves and restores the random state of one rank: python, numpy, torch and GPU."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import torch


def seed_all(seed: int, rank: int, step: int = 0) -> None:
    """Seed every generator of this process; each rank gets its own streams, which dropout needs.

    `step` is the step at which a run continues without its old random state. With it, the run does
    not draw the same numbers again as from step 0.
    """
    seeds = np.random.SeedSequence([seed, rank, step] if step else [seed, rank]).generate_state(2)
    random.seed(int(seeds[0]))
    np.random.seed(int(seeds[0]))
    torch.manual_seed(int(seeds[1]))  # seeds the GPUs too


def capture() -> bytes:
    """Return the state of all generators of this process, as plain data for `restore`."""
    numpy_state: Any = np.random.get_state()
    kind, keys, *rest = numpy_state
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (kind, keys.tolist(), *rest),  # weights_only loading rejects arrays
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    blob = io.BytesIO()
    torch.save(state, blob)
    return blob.getvalue()


def restore(blob: bytes) -> None:
    """Restore every generator. Call it last: a later draw would change the restored state."""
    state = torch.load(io.BytesIO(blob), weights_only=True)  # numbers, text and tensors: no code
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
