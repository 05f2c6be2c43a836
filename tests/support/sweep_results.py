"""Makes a sweep result as FABRIC's judge gets it."""

from __future__ import annotations

from typing import Any

from probes.fabric.sweep import SweepResult

CALLS = 10
ROW = {"placement": "in_place", "calls": CALLS, "wrong": 0, "first_wrong": [], "spread": 0.0}


def sweep_result(busbw: float, road: str = "fab0", size: int = 1 << 20, **more: Any) -> SweepResult:
    """Make ten calls among four ranks, whose bytes took this interface."""
    seconds = 1.5 * size / busbw / 1e9
    timed = {"seconds": seconds, "algbw": size / seconds / 1e9, "low": busbw, "high": busbw}
    ranks = {"rank_seconds": [seconds] * 4, "rank_worst": [seconds] * 4, "rank_cv": 0.0}
    counts = {"count": size // 4, "elements": size // 4, "samples": 4 * CALLS}
    row = {**ROW, **timed, **ranks, **counts, "size": size, "busbw": busbw}
    sent = {f"n{at}": {road: size * 15} for at in range(4)}  # 2 x 3/4 of each call
    return SweepResult(ranks=4, backend="gloo", rows=[row], sent=sent, **more)
