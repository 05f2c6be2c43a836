"""Computes the learning rate of each step."""

from __future__ import annotations

import math


def lr_factor(done: int, warmup: int, decay: int) -> float:
    """Return the learning rate of the step after `done` steps, as a fraction of the full rate.

    Linear warm-up, then a cosine down to 0.1 at step `decay` (0: none). It depends on the step
    alone, so a run that is extended later has the same rates up to there.
    """
    if done < warmup:
        return (done + 1) / warmup
    if decay == 0:
        return 1.0
    fraction = min((done - warmup) / (decay - warmup), 1.0)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * fraction))
