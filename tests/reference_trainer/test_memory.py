"""What a run that has ended still holds in its process: nothing."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest

from reference_trainer.config import TrainConfig
from reference_trainer.distributed import World
from reference_trainer.train import Trainer


def watch_models(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """Weak references to the model of each run from now on."""
    models: list[weakref.ref[Any]] = []
    build = Trainer.__init__

    def watched(self: Trainer, config: TrainConfig, world: World) -> None:
        build(self, config, world)
        models.append(weakref.ref(self.model))

    monkeypatch.setattr(Trainer, "__init__", watched)
    return models


def test_of_ten_trainings_no_model_is_left(
    alone: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    models, left = watch_models(monkeypatch), []
    for _ in range(10):
        alone(steps=1)
        left.append(sum(model() is not None for model in models))
    assert len(models) == 10
    assert left == [0] * 10


def test_a_run_that_failed_leaves_none_once_its_error_is_gone(
    alone: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from reference_trainer import train

    models = watch_models(monkeypatch)

    def breaks(self: Trainer, step: int) -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(Trainer, "_take_step", breaks)
    with pytest.raises(RuntimeError, match="out of memory"):
        alone(steps=1)
    train.free_memory()
    assert [model() for model in models] == [None]
