"""The size of the model, and what a token sees."""

from __future__ import annotations

import pytest

from reference_trainer.config import PRESETS, TrainConfig
from reference_trainer.model.size import block_parameters, parameter_count


@pytest.mark.parametrize("more", [{}, {"kv_heads": 2}, {"hidden": 50}])
def test_the_count_of_parameters_is_that_of_the_real_model(more):
    from reference_trainer.model.transformer import Transformer, count_parameters

    config = TrainConfig(dim=48, layers=3, heads=4, vocab=100, seq=20, **more)
    model = Transformer(config)
    assert parameter_count(config) == count_parameters(model)
    assert block_parameters(config) == count_parameters(model.blocks[0])


@pytest.mark.parametrize(("name", "millions"), [("125M", 125), ("1B", 1138), ("8B", 8030)])
def test_presets_have_the_size_of_their_name(name, millions):
    assert parameter_count(TrainConfig(**PRESETS[name])) / 1e6 == pytest.approx(millions, rel=0.01)


def test_positions_turn_by_what_is_between_them_alone():
    """Rotary positions: the product of two turned vectors depends on their distance only."""
    import torch

    from reference_trainer.model.transformer import Attention, apply_rotary

    turns = Attention(TrainConfig(dim=32, heads=2, seq=24)).turns
    q, k = torch.randn(2, 1, 1, 1, 16).expand(2, 1, 1, 24, 16)
    products = apply_rotary(q, turns)[0, 0] @ apply_rotary(k, turns)[0, 0].T
    for apart in range(24):
        along = products.diagonal(apart)
        assert torch.allclose(along, along[:1].expand_as(along), atol=1e-4)
    assert not torch.allclose(products[0, 1], products[0, 5], atol=1e-3)


def test_a_token_sees_none_that_come_after_it():
    import torch

    from reference_trainer.model.transformer import Transformer

    model = Transformer(TrainConfig(heads=4, kv_heads=2)).eval()
    tokens = torch.randint(256, (1, 20))
    other = tokens.clone()
    other[0, 12] = (other[0, 12] + 1) % 256
    same = (model(tokens) == model(other)).all(dim=-1)[0]
    assert same[:12].all()
    assert not same[12:].any()
