"""Gradients are clipped as torch clips them."""

from __future__ import annotations

import pytest
import torch

from reference_trainer.config import TrainConfig
from reference_trainer.distributed import join_job
from reference_trainer.model.transformer import (
    build_model,
    clip_gradients,
    local_gradients,
    next_token_loss,
    square_sum,
)
from tests.support.single_rank import only_rank

CONFIG = TrainConfig(dim=16, seq=8, vocab=32, layers=2, heads=2, batch=2, device="cpu")


@pytest.mark.parametrize("share", [0.1, 10.0])
def test_gradients_are_clipped_to_the_norm_as_torch_does(share: float) -> None:
    with only_rank(), join_job(CONFIG) as world:
        model = build_model(CONFIG, world)
        tokens = torch.arange(18).reshape(2, 9)
        next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
        ours = local_gradients(model.parameters())
        theirs = [torch.nn.Parameter(torch.zeros_like(one)) for one in ours]
        for parameter, gradient in zip(theirs, ours, strict=True):
            parameter.grad = gradient.clone()

        norm = square_sum(ours).sqrt()
        most = share * norm.item()  # less than there is, and more
        clip_gradients(ours, norm, most)
        assert norm.item() == torch.nn.utils.clip_grad_norm_(theirs, most).item()
        for parameter, wanted in zip(model.parameters(), theirs, strict=True):
            assert torch.equal(parameter.grad.to_local(), wanted.grad)
