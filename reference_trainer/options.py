"""Makes command-line options from the fields of TrainConfig, so that the two cannot differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from typing import Any, get_type_hints

import click

from reference_trainer.config import CHOICES, PRESETS, TrainConfig


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --preset and one option for each field, with its help, to a click command (decorator)."""
    types = get_type_hints(TrainConfig)
    for knob in reversed(fields(TrainConfig)):
        command = _make_option(knob, types[knob.name])(command)
    return click.option(
        "--preset",
        type=click.Choice(list(PRESETS)),
        default="tiny",
        show_default=True,
        is_eager=True,  # the others' defaults come from it
        expose_value=False,
        callback=_apply_preset,
        help="Shape of the model; what is given besides holds.",
    )(command)


def build_config(values: dict[str, Any]) -> TrainConfig:
    """Build the configuration from parsed options. Raises click.UsageError if a value is wrong."""
    try:
        return TrainConfig(**values)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def cli_options(config: TrainConfig) -> list[str]:
    """Return the options that give this configuration again, for starting the trainer elsewhere."""
    options = []
    for knob in fields(config):
        value, flag = getattr(config, knob.name), knob.name.replace("_", "-")
        if isinstance(value, bool) and value != knob.default:
            options.append(f"--{flag}" if value else f"--no-{flag}")
        elif value != knob.default:
            options += [f"--{flag}", str(value)]
    return options


def _apply_preset(ctx: click.Context, _: click.Parameter, name: str) -> None:
    ctx.default_map = {**(ctx.default_map or {}), **PRESETS[name]}


def _make_option(knob: Field[Any], kind: Any) -> Callable[[Any], Any]:
    flag = "--" + knob.name.replace("_", "-")
    text: str = knob.metadata["help"]
    if kind is bool:
        off = flag.replace("--", "--no-", 1)
        return click.option(f"{flag}/{off}", default=knob.default, show_default=True, help=text)
    choices = CHOICES.get(knob.name)
    type_ = click.Choice(choices) if choices else str if kind == str | None else kind
    show = knob.default not in (None, "")
    return click.option(flag, type=type_, default=knob.default, show_default=show, help=text)
