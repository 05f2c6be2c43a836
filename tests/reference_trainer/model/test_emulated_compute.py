"""Emulated accelerators train and validate: compute is padded in both."""

from __future__ import annotations

from reference_trainer.config import TrainConfig
from reference_trainer.train import train
from tests.support.single_rank import only_rank


def test_a_paced_job_validates() -> None:
    """No tensor needs a gradient in validation: a hook on one ended the job, four times over."""
    config = TrainConfig(steps=2, dim=32, seq=32, device="cpu", pace_s=0.03, validate=2)
    with only_rank():
        result = train(config)
    assert result["validation"]["loss"] > 0
    assert all(step["seconds"] >= config.pace_s for step in result["steps"])
