"""Every knob of the training job in one frozen dataclass; the command line is made from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from reference_trainer.stall import Stall, parse_stalls

DTYPES = ("auto", "fp32", "bf16")
DEVICES = ("auto", "cpu", "cuda")


def knob(default: Any, text: str, **extra: Any) -> Any:
    """A dataclass field with its help text; `identity=True` marks what two runs must share."""
    return field(default=default, metadata={"help": text, **extra})


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All knobs of one run.  Picklable; importing it needs no torch.  Raises ValueError when wrong.

    `steps` counts from the very first step of the job: a run resumed after step 12 with
    steps=20 takes 8 more.  Fields marked `identity` decide whether a checkpoint fits this run.
    """

    steps: int = knob(20, "Steps in total; a resumed run continues up to this number.")
    batch: int = knob(4, "Sequences per rank and step.")
    seq: int = knob(64, "Tokens per sequence.", identity=True)
    vocab: int = knob(256, "Size of the vocabulary.", identity=True)
    dim: int = knob(64, "Width of the model.", identity=True)
    layers: int = knob(2, "Number of transformer blocks.", identity=True)
    heads: int = knob(4, "Attention heads per block.", identity=True)
    dropout: float = knob(0.1, "Dropout probability.")
    lr: float = knob(1e-3, "Learning rate of AdamW.")
    weight_decay: float = knob(0.1, "Weight decay of AdamW.")
    clip: float = knob(1.0, "Gradients are clipped to this norm.")
    seed: int = knob(1234, "Seed of weights, dropout and data.", identity=True)
    dtype: str = knob("auto", "Compute type; auto is bf16 on a GPU, fp32 on a CPU.", choices=DTYPES)
    device: str = knob("auto", "Where to compute; auto takes a GPU if any.", choices=DEVICES)
    deterministic: bool = knob(True, "Use deterministic kernels, so that a run can be repeated.")
    digest: bool = knob(True, "Hash the full parameters at the end of the run.")
    out: str | None = knob(None, "Folder for spans, metrics and results, one file per rank.")
    checkpoints: str | None = knob(None, "Folder for checkpoints, seen by every rank.")
    save_every: int = knob(0, "Save after every so many steps and after the last; 0 never saves.")
    keep_last: int = knob(3, "Keep this many newest checkpoints.")
    resume: bool = knob(True, "Continue from the newest checkpoint that is whole.")
    restore_rng: bool = knob(True, "Restore the random state when resuming.")
    pace_s: float = knob(
        0.0, "Emulate an accelerator: pad the blocks' compute to this many seconds a step."
    )
    stall: str = knob(
        "", "Plant a delay, for debugging, e.g. data:rank=2:seconds=0.2 (comma for several)."
    )
    timeout_s: float = knob(60.0, "A collective may take this long after the first step.")
    init_timeout_s: float = knob(300.0, "A collective may take this long up to the first step.")

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "seq", "vocab", "dim", "layers", "heads", "keep_last"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("lr", "clip", "timeout_s", "init_timeout_s"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "above 0")
        for name in ("save_every", "seed", "pace_s", "weight_decay"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        _require(0 <= self.dropout < 1, "dropout", self.dropout, "from 0 up to, not including, 1")
        _require(self.dim % self.heads == 0, "dim", self.dim, f"a multiple of heads={self.heads}")
        _require(self.dtype in DTYPES, "dtype", self.dtype, f"one of {', '.join(DTYPES)}")
        _require(self.device in DEVICES, "device", self.device, f"one of {', '.join(DEVICES)}")
        _require(
            self.save_every == 0 or self.checkpoints is not None,
            "save_every",
            self.save_every,
            "0 when no checkpoints folder is given",
        )
        parse_stalls(self.stall)

    @property
    def stalls(self) -> tuple[Stall, ...]:
        """The planted delays, parsed."""
        return parse_stalls(self.stall)

    def identity(self) -> dict[str, Any]:
        """What a checkpoint and a run must have in common: the model's shape and the seed."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.metadata.get("identity")}

    def as_dict(self) -> dict[str, Any]:
        """All knobs as plain values, ready for JSON."""
        return asdict(self)


def _require(good: bool, name: str, value: object, wanted: str) -> None:
    if not good:
        raise ValueError(f"{name} is {value}, expected {wanted}")
