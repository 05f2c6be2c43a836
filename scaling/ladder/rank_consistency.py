"""Checks that the ranks of a rung trained one model. Ranks that never communicate are fast.

The trainer averages each step's loss over its ranks. Every rank reports that mean, its own loss,
its samples and its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

LOSS_TOLERANCE = 1e-3  # relative; float32 losses are averaged in another order


def find_disagreements(results: Sequence[dict[str, Any]]) -> list[str]:
    """List the steps in which these results are not those of one job, with the first difference.

    `results` are the trainer's results of every rank of one job, in order of rank.
    """
    wrong_world = [r for r in results if r["world"] != len(results)]
    world_message = (
        f"rank {wrong_world[0]['rank']} was one of {wrong_world[0]['world']}" if wrong_world else ""
    )
    step_tokens = results[0]["tokens_per_step"]
    rows = zip(*(result["steps"] for result in results), strict=True)
    messages = [
        (row[0]["step"], world_message or _step_disagreement(row, step_tokens)) for row in rows
    ]
    return [f"step {step}: {message}" for step, message in messages if message]


def _step_disagreement(ranks: Sequence[dict[str, Any]], step_tokens: int) -> str:
    """Describe why these are not one job's step of `step_tokens` tokens; "" if they agree.

    `ranks` are the records of one step, in order of rank.
    """
    for name in ("loss", "norm"):
        if len({rank[f"{name}_hex"] for rank in ranks}) > 1:
            return f"ranks differ in their {name}"
    ids = [id for rank in ranks for id in rank["ids"]]
    if len(set(ids)) < len(ids):
        return "ranks took the same samples"
    tokens = sum(rank["tokens"] for rank in ranks)
    if tokens != step_tokens:
        return f"{tokens} tokens were taken, not {step_tokens}"
    loss = ranks[0]["loss"]
    mean = sum(rank["local_loss"] * rank["tokens"] for rank in ranks) / tokens
    if math.isfinite(loss) and not math.isclose(mean, loss, rel_tol=LOSS_TOLERANCE):
        return f"the loss is {loss:.6g}, the mean of the ranks' losses is {mean:.6g}"
    return ""
