"""Exports the trained model in the format of Hugging Face's Llama, and loads it again.

`config.json` and `pytorch_model.bin`, with the names of `LlamaForCausalLM`
(huggingface/transformers, models/llama/modeling_llama.py). The model has Llama's shape: its fused
projection of queries, keys and values is split, and nothing else changes.
"""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import torch

from reference_trainer.config import TrainConfig
from reference_trainer.manifest import sync_file
from reference_trainer.model.transformer import ROPE_THETA, Transformer

WEIGHTS, CONFIG = "pytorch_model.bin", "config.json"
# nn.RMSNorm without an eps takes that of the dtype, here of fp32.
RMS_NORM_EPS = torch.finfo(torch.float32).eps
BLOCK_NAMES = {
    "norm1": "input_layernorm",
    "attention.out": "self_attn.o_proj",
    "norm2": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
OUTER_NAMES = {"tokens": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def gather_weights(model: Any, keep: bool) -> dict[str, Any]:
    """Gather the full parameters by name, in fp32 on the CPU; all ranks call it.

    Only a rank that may `keep` them has them; the others return {}.
    """
    weights = {}
    for name, parameter in model.named_parameters():
        full = parameter.detach().full_tensor()
        if keep:
            weights[name] = full.float().cpu()
    return weights


def write_export(weights: dict[str, Any], config: TrainConfig, folder: Path) -> str:
    """Write the model into `folder`; return the sha256 of its weights' file. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(to_llama(weights, config), buffer)
    _write_whole(folder / WEIGHTS, buffer.getvalue())
    _write_whole(folder / CONFIG, json.dumps(llama_config(config), indent=2).encode())
    return hashlib.sha256(buffer.getvalue()).hexdigest()


def read_files(folder: Path) -> dict[str, bytes]:
    """Read the files of an export by name. Raises OSError."""
    return {name: (folder / name).read_bytes() for name in (CONFIG, WEIGHTS)}


def load_export(files: dict[str, bytes]) -> Any:
    """Build the model on the CPU from an export's files. Raises ValueError, RuntimeError."""
    shape = json.loads(files[CONFIG])
    config = TrainConfig(
        vocab=shape["vocab_size"],
        dim=shape["hidden_size"],
        layers=shape["num_hidden_layers"],
        heads=shape["num_attention_heads"],
        kv_heads=shape["num_key_value_heads"],
        hidden=shape["intermediate_size"],
        seq=shape["max_position_embeddings"],
    )
    weights = torch.load(io.BytesIO(files[WEIGHTS]), weights_only=True)
    model = Transformer(config)
    model.load_state_dict(from_llama(weights, config))
    return model.eval()


def llama_config(config: TrainConfig) -> dict[str, Any]:
    """Return the model's shape as LlamaConfig has it."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.dim,
        "intermediate_size": config.shape.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.shape.kv_heads,
        "head_dim": config.shape.head_dim,
        "max_position_embeddings": config.seq,
        "rms_norm_eps": RMS_NORM_EPS,
        "rope_theta": ROPE_THETA,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": config.vocab,
        "torch_dtype": "float32",
    }


def to_llama(weights: dict[str, Any], config: TrainConfig) -> dict[str, Any]:
    """Rename the parameters, and split queries, keys and values (rows, in this order)."""
    kv = config.shape.kv_heads * config.shape.head_dim
    renamed = {f"{new}.weight": weights[f"{old}.weight"] for old, new in OUTER_NAMES.items()}
    for index in range(config.layers):
        old_block, block = f"blocks.{index}", f"model.layers.{index}"
        for old, new in BLOCK_NAMES.items():
            renamed[f"{block}.{new}.weight"] = weights[f"{old_block}.{old}.weight"]
        parts = weights[f"{old_block}.attention.qkv.weight"].split([config.dim, kv, kv])
        for name, part in zip(PROJECTIONS, parts, strict=True):
            renamed[f"{block}.self_attn.{name}.weight"] = part.clone()
    return renamed


def from_llama(weights: dict[str, Any], config: TrainConfig) -> dict[str, Any]:
    """Undo `to_llama`."""
    renamed = {f"{old}.weight": weights[f"{new}.weight"] for old, new in OUTER_NAMES.items()}
    for index in range(config.layers):
        old_block, block = f"blocks.{index}", f"model.layers.{index}"
        for old, new in BLOCK_NAMES.items():
            renamed[f"{old_block}.{old}.weight"] = weights[f"{block}.{new}.weight"]
        parts = [weights[f"{block}.self_attn.{name}.weight"] for name in PROJECTIONS]
        renamed[f"{old_block}.attention.qkv.weight"] = torch.cat(parts)
    return renamed


def _write_whole(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content)
        sync_file(file)
    partial.replace(path)
