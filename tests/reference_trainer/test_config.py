"""Knobs: presets, refusals, and the way to the ranks."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict

import click
import pytest
from click.testing import CliRunner

from reference_trainer.config import TrainConfig


def test_a_preset_is_a_shape_that_options_may_change():
    from reference_trainer.config import build_config, config_options

    @click.command()
    @config_options
    def show(**values):
        config = build_config(values)
        click.echo(f"{config.dim} {config.layers} {config.seq} {config.vocab}")

    assert CliRunner().invoke(show, []).output == "64 2 64 256\n"
    said = CliRunner().invoke(show, ["--layers", "3", "--preset", "1B", "--seq", "512"])
    assert said.output == "2048 3 512 32000\n"
    refused = CliRunner().invoke(show, ["--preset", "70B"])
    assert refused.exit_code == 2
    assert "'70B' is not one of" in refused.output


@pytest.mark.parametrize(
    ("values", "message"),
    [({"dim": 65}, "dim is 65, expected a multiple of 8, which is 2 x heads"),
     ({"steps": 0}, "steps is 0, expected at least 1"),
     ({"dropout": 1.0}, "dropout is 1.0"),
     ({"lr": float("nan")}, "lr is nan"),
     ({"dtype": "fp8"}, "dtype is fp8, expected one of auto, fp32, bf16"),
     ({"save_every": 2}, "save_every is 2, expected 0, because no checkpoints folder is given")],
)  # fmt: skip
def test_a_wrong_knob_is_refused_with_a_sentence(values, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**values)


def test_a_configuration_travels():
    config = TrainConfig(steps=3, checkpoints="/c", save_every=1, resume=False, lr=0.5)
    assert pickle.loads(pickle.dumps(config)) == config
    assert json.loads(json.dumps(asdict(config))) == asdict(config)
