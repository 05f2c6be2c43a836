"""Whether the ranks of a rung trained one model: ranks that never meet are fast, and prove nothing.

The trainer averages each step's loss over its ranks, and every rank reports that mean beside its
own loss, its samples and its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

NEAR = 1e-3  # a mean of float32 losses, taken in another order


def disagreements(results: Sequence[dict[str, Any]]) -> list[str]:
    """Steps in which these results are not those of one job, each with the first thing that shows.

    `results` are the trainer's, of every rank of one job, in the order of ranks.
    """
    alone = [r for r in results if r["world"] != len(results)]
    apart = f"rank {alone[0]['rank']} was one of {alone[0]['world']}" if alone else ""
    whole = results[0]["tokens_per_step"]
    rows = zip(*(result["steps"] for result in results), strict=True)
    told = [(row[0]["step"], apart or _disagreement(row, whole)) for row in rows]
    return [f"step {step}: {said}" for step, said in told if said]


def _disagreement(ranks: Sequence[dict[str, Any]], whole: int) -> str:
    """What shows that these are not one step, of `whole` tokens; "" for nothing."""
    for name in ("loss", "norm"):
        if len({rank[f"{name}_hex"] for rank in ranks}) > 1:
            return f"ranks differ in their {name}"
    ids = [id for rank in ranks for id in rank["ids"]]
    if len(set(ids)) < len(ids):
        return "ranks took the same samples"
    tokens = sum(rank["tokens"] for rank in ranks)
    if tokens != whole:
        return f"{tokens} tokens were taken, not {whole}"
    loss = ranks[0]["loss"]
    mean = sum(rank["local_loss"] * rank["tokens"] for rank in ranks) / tokens
    if math.isfinite(loss) and not math.isclose(mean, loss, rel_tol=NEAR):
        return f"the loss is {loss:.6g}, the mean of the ranks' own is {mean:.6g}"
    return ""
