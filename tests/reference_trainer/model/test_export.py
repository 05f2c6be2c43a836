"""The exported model is Llama's: names, shapes, and what it computes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from reference_trainer.config import TrainConfig
from reference_trainer.model.export import (
    load_export,
    read_files,
    to_llama,
    write_export,
)
from reference_trainer.model.transformer import Transformer

CONFIG = TrainConfig(
    dim=32, layers=2, heads=4, kv_heads=2, hidden=48, vocab=50, seq=12, dropout=0.0
)


@pytest.fixture
def model() -> Any:
    torch.manual_seed(3)
    return Transformer(CONFIG).eval()


def weights_of(model: Any) -> dict[str, Any]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def llama(weights: dict[str, Any], shape: dict[str, Any], tokens: Any) -> Any:
    """Compute Llama's logits as its paper and modeling_llama.py define them."""

    def linear(x: Any, name: str) -> Any:
        return x @ weights[f"{name}.weight"].T

    def norm(x: Any, name: str) -> Any:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + shape["rms_norm_eps"])
        return x * scale * weights[f"{name}.weight"]

    def rotate(x: Any) -> Any:
        size, count = x.shape[-1], x.shape[-2]
        inverse = 1.0 / shape["rope_theta"] ** (torch.arange(0, size, 2).float() / size)
        angles = torch.outer(torch.arange(count).float(), inverse).repeat(1, 2)
        half = torch.cat([-x[..., size // 2 :], x[..., : size // 2]], dim=-1)
        return x * angles.cos() + half * angles.sin()

    heads, groups = shape["num_attention_heads"], shape["num_key_value_heads"]
    size, count = shape["head_dim"], tokens.shape[1]
    mask = torch.full((count, count), -math.inf).triu(1)
    x = weights["model.embed_tokens.weight"][tokens]
    for index in range(shape["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        y = norm(x, f"{layer}.input_layernorm")
        q, k, v = (
            linear(y, f"{layer}.self_attn.{name}_proj").unflatten(-1, (-1, size)).transpose(1, 2)
            for name in "qkv"
        )
        k, v = (part.repeat_interleave(heads // groups, dim=1) for part in (rotate(k), v))
        scores = rotate(q) @ k.transpose(-1, -2) / math.sqrt(size) + mask
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + linear(mixed, f"{layer}.self_attn.o_proj")
        y = norm(x, f"{layer}.post_attention_layernorm")
        gate = F.silu(linear(y, f"{layer}.mlp.gate_proj"))
        x = x + linear(gate * linear(y, f"{layer}.mlp.up_proj"), f"{layer}.mlp.down_proj")
    return linear(norm(x, "model.norm"), "lm_head")


def test_another_implementation_of_llama_computes_the_same(model: Any, tmp_path: Path) -> None:
    write_export(weights_of(model), CONFIG, tmp_path)
    exported = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    shape = json.loads((tmp_path / "config.json").read_text())
    tokens = torch.randint(0, CONFIG.vocab, (3, CONFIG.seq))
    torch.testing.assert_close(llama(exported, shape, tokens), model(tokens), rtol=1e-4, atol=1e-5)


def test_it_loads_from_its_files_alone(model: Any, tmp_path: Path) -> None:
    write_export(weights_of(model), CONFIG, tmp_path)
    files = read_files(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)
    loaded = load_export(files)
    tokens = torch.randint(0, CONFIG.vocab, (2, CONFIG.seq))
    assert torch.equal(loaded(tokens), model(tokens))


def test_queries_keys_and_values_are_split_by_their_heads(model: Any) -> None:
    renamed = to_llama(weights_of(model), CONFIG)
    shapes = [
        tuple(renamed[f"model.layers.1.self_attn.{name}_proj.weight"].shape) for name in "qkv"
    ]
    assert shapes == [(32, 32), (16, 32), (16, 32)]
    assert len(renamed) == 3 + 2 * 9


def test_a_file_that_is_torn_or_of_another_model_is_refused(model: Any, tmp_path: Path) -> None:
    write_export(weights_of(model), CONFIG, tmp_path)
    files = read_files(tmp_path)
    with pytest.raises((RuntimeError, ValueError, EOFError)):
        load_export({**files, "pytorch_model.bin": files["pytorch_model.bin"][:-100]})
    other = {**json.loads(files["config.json"]), "vocab_size": 51}
    with pytest.raises(RuntimeError, match="size mismatch"):
        load_export({**files, "config.json": json.dumps(other).encode()})
