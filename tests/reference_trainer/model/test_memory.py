"""What a step needs of a GPU's memory: as torch counts it, and refused where it is not there."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from reference_trainer.config import PRESETS, TrainConfig
from reference_trainer.distributed import World
from reference_trainer.model.size import (
    GIB,
    MemoryShortage,
    describe_shortage,
    estimate_memory,
    require_memory,
)
from tests.support.fake_memory import peak_bytes

LONG = pytest.mark.soak(criterion="scaling")


def of_preset(name: str, **changes: Any) -> TrainConfig:
    return TrainConfig(**{**PRESETS[name], **changes})


@pytest.mark.parametrize(
    ("name", "changes", "ranks"),
    [
        ("125M", {}, 1),
        ("125M", {"vocab": 256}, 1),  # the loss is nothing here: a block's backward counts
        ("1B", {"layers": 4}, 1),
        ("1B", {"batch": 4, "seq": 2048, "layers": 4}, 8),  # as SCALING has it, with fewer layers
        ("1B", {"batch": 1, "seq": 256, "layers": 4}, 8),  # the weights that are gathered count
        ("1B", {"batch": 2, "vocab": 512, "layers": 4, "recompute": True}, 8),
        ("8B", {"layers": 4}, 8),
        pytest.param("1B", {}, 1, marks=LONG),
        pytest.param("8B", {}, 8, marks=LONG),
        pytest.param("8B", {"recompute": False}, 8, marks=LONG),
        pytest.param("8B", {}, 64, marks=LONG),
    ],
)
def test_the_estimate_is_torchs_own_count(name: str, changes: Any, ranks: int) -> None:
    config = of_preset(name, **changes)
    counted = peak_bytes(dataclasses.replace(config, device="cpu", dtype="bf16"), ranks)
    assert estimate_memory(config, ranks).total == pytest.approx(counted, rel=0.10)


def test_what_is_asked_for_besides_is_in_the_estimate() -> None:
    plain = estimate_memory(of_preset("125M"), 8)
    dropped = estimate_memory(of_preset("125M", dropout=0.1), 8)
    assert dropped.activations - plain.activations == 12 * 8 * 2048 * 2 * 768
    halves = estimate_memory(of_preset("125M", accumulate=2), 8)
    assert halves.activations == plain.activations / 2
    assert halves.total > plain.total / 2 + 4 * 123e6  # gradients that wait, whole, in fp32
    assert estimate_memory(of_preset("125M", dtype="fp32"), 8).activations > (
        1.9 * plain.activations
    )


def test_a_preset_that_fits_is_not_refused() -> None:
    for name, ranks in (("125M", 1), ("1B", 1), ("8B", 8)):
        assert describe_shortage(of_preset(name), ranks, 79 * GIB) == ""


@pytest.mark.parametrize(
    ("changes", "ranks", "free", "take"),
    [
        ({"batch": 4, "recompute": False}, 8, 79, "--recompute"),
        ({"batch": 4}, 8, 60, "--batch 2"),
        ({"batch": 4, "recompute": False}, 8, 40, "--recompute --batch 1"),
        ({"batch": 4, "recompute": False}, 1, 79, "more ranks, or a smaller --preset"),
    ],
)
def test_what_will_not_do_is_refused_with_what_would(
    changes: Any, ranks: int, free: int, take: str
) -> None:
    said = describe_shortage(of_preset("8B", **changes), ranks, free * GIB)
    assert said.startswith("a step needs about ")
    assert f"but only {free}.0 GiB are free" in said
    assert said.endswith(f": use {take}")


class Rank(SimpleNamespace):
    """A rank on a GPU that is not there; `others` told their own."""

    def gather(self, told: str) -> list[str]:
        return [told, *self.others]


def rank(*others: str, device: str = "cuda") -> World:
    found = Rank(rank=0, size=2, host="n0", device=torch.device(device), others=others)
    return cast(World, found)


def test_every_rank_ends_where_one_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 * GIB, 80 * GIB))
    config = of_preset("1B")
    with pytest.raises(MemoryShortage, match=r"^rank 0 on n0: a step needs about 37.1 GiB"):
        require_memory(config, rank(""))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (79 * GIB, 80 * GIB))
    with pytest.raises(MemoryShortage, match=r"^rank 1 on n1: no room"):
        require_memory(config, rank("rank 1 on n1: no room"))
    require_memory(config, rank(""))


def test_a_cpu_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cuda, "mem_get_info")
    require_memory(of_preset("8B"), rank(device="cpu"))
