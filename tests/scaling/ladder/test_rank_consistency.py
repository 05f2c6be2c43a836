"""Ranks that do not train one model are found out, whatever their speed."""

from __future__ import annotations

from typing import Any

import pytest

from scaling.ladder.ladder import find_disagreements


def results(ranks: int = 2, steps: int = 2) -> list[dict[str, Any]]:
    """What the trainer returns of one job: a sample of 64 tokens per rank and step."""
    return [
        {
            "rank": rank,
            "world": ranks,
            "tokens_per_step": 64 * ranks,
            "steps": [
                {
                    "step": step,
                    "loss": 5.0,
                    "loss_hex": (5.0).hex(),
                    "norm": 1.0,
                    "norm_hex": "0x1p+0",
                    "local_loss": 5.0 + (0.1 if rank % 2 else -0.1),
                    "ids": [ranks * step + rank],
                    "tokens": 64,
                }
                for step in range(1, steps + 1)
            ],
        }
        for rank in range(ranks)
    ]


def test_one_job_agrees() -> None:
    assert find_disagreements(results(4)) == []
    (alone,) = results(1)
    alone["steps"][0]["local_loss"] = alone["steps"][1]["local_loss"] = 5.0
    assert find_disagreements([alone]) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"loss_hex": "0x1.8p+2"}, "the ranks have different values of the loss"),
        ({"norm_hex": "0x1.8p+2"}, "the ranks have different values of the gradient norm"),
        ({"ids": [4]}, "a sample was used twice. Expected: each sample once"),
        ({"tokens": 32}, "96 tokens were used. Expected: 128"),
        ({"local_loss": 5.2}, "the loss is 5, the mean of the ranks' losses is 5.05"),
    ],
)
def test_a_step_that_is_not_one_jobs_is_told(change: dict[str, Any], says: str) -> None:
    lying = results()
    lying[1]["steps"][1].update(change)
    assert find_disagreements(lying) == [f"step 2: {says}"]


def test_a_rank_that_trained_alone_is_named() -> None:
    lying = results(4)
    lying[2]["world"] = 1
    assert find_disagreements(lying) == [
        f"step {step}: rank 2 is in a job of 1 rank. Expected: 4" for step in (1, 2)
    ]


def test_a_loss_that_is_no_number_is_not_this_ones_to_tell() -> None:
    lost = results()
    for rank in lost:
        for step in rank["steps"]:
            step |= {"loss": float("nan"), "loss_hex": "nan", "local_loss": float("nan")}
    assert find_disagreements(lost) == []


def test_a_rank_that_made_fewer_steps_is_refused() -> None:
    """What the others did in their last step agrees with nobody's."""
    short = results()
    del short[1]["steps"][1]
    with pytest.raises(ValueError, match="shorter"):
        find_disagreements(short)
