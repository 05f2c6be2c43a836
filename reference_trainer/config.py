"""Options of a training job and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from typing import Any, get_type_hints

import click

from reference_trainer.rank_environment import KINDS, parse_errors
from reference_trainer.telemetry import event_log
from reference_trainer.telemetry.event_log import SEGMENTS, STAGES, USAGE, InjectedDelay

CHOICES = {  # allowed values of the fields that take one of a few words
    "dtype": ("auto", "fp32", "bf16"),
    "device": ("auto", "cpu", "cuda"),
    "save_mode": ("sync", "async"),
    # Errors that a resume can inject, to test the comparison of two runs.
    "forget": ("", "rng", "data", "optimizer", "peer", "all"),
}
POSITIVE_FIELDS = (
    "steps", "batch", "seq", "vocab", "dim", "layers", "heads", "accumulate", "keep_last",
)  # fmt: skip
NONNEGATIVE_FIELDS = (
    "kv_heads", "hidden", "shard", "save_every", "save_failures", "seed", "validate", "pace_s",
    "weight_decay", "warmup",
)  # fmt: skip
# Fields that must be equal in a checkpoint and a run: the model's shape and the seed.
IDENTITY = ("seq", "vocab", "dim", "layers", "heads", "kv_heads", "hidden", "seed")
# A resumed run may change SETTINGS. But SAVED_SETTINGS keep their saved values, which come with the
# optimizer and the data position.
SAVED_SETTINGS = ("lr", "weight_decay", "batch")
SETTINGS = (
    *SAVED_SETTINGS, "warmup", "decay", "clip", "dropout", "accumulate", "dtype", "deterministic",
)  # fmt: skip


def knob(default: Any, text: str) -> Any:
    """Make a dataclass field with its help text."""
    return field(default=default, metadata={"help": text})


# Shapes of Llama (arXiv 2302.13971, 2407.21783): 8B is Llama's own, the others follow it. GPU
# memory with these batches: 125M takes 13 GiB and 1B 42 GiB on one GPU. 8B takes 28 GiB on each of
# eight GPUs; without recompute it would take 71 GiB (model/size.py). Llama uses no dropout.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "125M": {"dim": 768, "layers": 12, "heads": 12, "kv_heads": 4, "hidden": 2048, "vocab": 32000,
             "seq": 2048, "batch": 8, "dropout": 0.0},
    "1B": {"dim": 2048, "layers": 16, "heads": 16, "kv_heads": 8, "hidden": 8192, "vocab": 32000,
           "seq": 4096, "batch": 4, "dropout": 0.0},
    "8B": {"dim": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "hidden": 14336, "vocab": 128256,
           "seq": 8192, "batch": 1, "dropout": 0.0, "recompute": True},
}  # fmt: skip


@dataclass(frozen=True)
class BlockShape:
    """Sizes inside a block: width of a head, number of key and value heads, width of the MLP."""

    head_dim: int
    kv_heads: int
    hidden: int


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All options of one run. Picklable; importing it needs no torch. Raises ValueError if invalid.

    `steps` counts from the job's first step: a run resumed after step 12 with steps=20 takes 8
    more. The fields of IDENTITY decide whether a checkpoint fits this run.
    """

    steps: int = knob(20, "Last step of the run; a resumed run also trains up to this step.")
    batch: int = knob(
        4,
        "Sequences per rank and step. A run that resumes with another number of ranks keeps the "
        "total of sequences per step.",
    )
    seq: int = knob(64, "Tokens per sequence.")
    vocab: int = knob(256, "Size of the vocabulary.")
    dim: int = knob(64, "Width of the model.")
    layers: int = knob(2, "Number of transformer blocks.")
    heads: int = knob(4, "Attention heads per block.")
    kv_heads: int = knob(
        0, "Heads of keys and values (grouped-query attention). 0 means as many as --heads."
    )
    hidden: int = knob(
        0, "Width of each block's MLP. 0 means 8/3 of --dim, rounded up to a multiple of 8."
    )
    shard: int = knob(
        0,
        "Number of ranks that share one copy of the model. 0 means all ranks (FSDP). 1 means DDP. "
        "The number of ranks of a node means HSDP.",
    )
    accumulate: int = knob(1, "Gradient accumulation: parts into which a rank splits its --batch.")
    recompute: bool = knob(
        False, "Save GPU memory: compute activations again in backward instead of keeping them."
    )
    compile: bool = knob(False, "Compile each block (torch.compile).")
    dropout: float = knob(0.1, "Dropout probability.")
    lr: float = knob(1e-3, "Learning rate of AdamW.")
    warmup: int = knob(0, "Number of first steps in which the learning rate rises to --lr.")
    decay: int = knob(
        0, "Step at which the learning rate has fallen to a tenth. 0 means that it does not fall."
    )
    weight_decay: float = knob(0.1, "Weight decay of AdamW.")
    clip: float = knob(
        1.0, "Largest norm of the gradients; larger gradients are scaled down to it."
    )
    seed: int = knob(1234, "Seed of weights, dropout and data.")
    data: str = knob(
        "", "Folder on each node with its token shard (see `shards`). Empty means synthetic data."
    )
    dtype: str = knob("auto", "Data type for compute. auto means bf16 on a GPU, and fp32 on a CPU.")
    device: str = knob(
        "auto", "Device for compute. auto means a GPU if the rank sees one, and else the CPU."
    )
    deterministic: bool = knob(True, "Use deterministic kernels, so that a run can be repeated.")
    digest: bool = knob(True, "Report a hash of all parameters at the end of the run.")
    digest_start: bool = knob(
        False, "Also report a hash of each rank's parameters before the first step."
    )
    digest_steps: bool = knob(False, "Also report a hash of the parameters after each step.")
    validate: int = knob(
        0, "Number of sequences for a validation after the last step. 0 means no validation."
    )
    export: str | None = knob(
        None,
        "Folder into which rank 0 writes the trained model, in the format of Hugging Face's Llama. "
        "Without it, no model is written.",
    )
    keep_export: bool = knob(
        True, "Keep the model of --export. With --no-keep-export it is removed after a test load."
    )
    show: str = knob(
        "", "Names of environment variables that each rank also prints, separated by commas."
    )
    out: str | None = knob(
        None,
        "Folder for timings, metrics and results, one file of each per rank. Without it, none are "
        "written.",
    )
    checkpoints: str | None = knob(
        None, "Folder for checkpoints. If the nodes do not share it, the node of rank 0 keeps them."
    )
    save_every: int = knob(
        0, "Steps between two saves; the last step is saved too. 0 means no regular saves."
    )
    save_mode: str = knob(
        "sync", "sync: training waits until a save is written. async: training continues meanwhile."
    )
    save_failures: int = knob(2, "Failed saves in a row that a run survives. One more ends it.")
    keep_last: int = knob(3, "Number of newest checkpoints to keep; older ones are removed.")
    resume: bool = knob(
        True,
        "Resume from the newest complete checkpoint in --checkpoints. With --no-resume, a folder "
        "that has checkpoints is refused.",
    )
    forget: str = knob(
        "",
        "Plant an error in the resume, for tests. rng, optimizer, all: this state is not restored. "
        "data: one sample is skipped. peer: one rank loads an older checkpoint.",
    )
    pace_s: float = knob(
        0.0,
        "Emulate an accelerator: the compute of each step lasts this many seconds or more. "
        "0 means no emulation.",
    )
    stall: str = knob(
        "",
        f"Delay a rank, for tests: {USAGE}, several separated by commas. PLACE is a part of a step "
        f"({', '.join(SEGMENTS)}) or of a save ({', '.join(STAGES)}).",
    )
    plant: str = knob(
        "",
        f"Plant errors, for tests. One or more of these, separated by commas: {', '.join(KINDS)}.",
    )
    # Both exceed the supervisor's limits (see launchers.job_timeouts).
    timeout_s: float = knob(
        90.0, "Seconds after which a collective of a step fails, from the second step on."
    )
    init_timeout_s: float = knob(
        330.0, "Seconds after which a collective fails, in the first step and in saves."
    )

    def __post_init__(self) -> None:
        for name in POSITIVE_FIELDS:
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("lr", "clip", "timeout_s", "init_timeout_s"):
            self._require(name, getattr(self, name) > 0, "above 0")
        for name in NONNEGATIVE_FIELDS:
            self._require(name, getattr(self, name) >= 0, "0 or more")
        self._require("dropout", 0 <= self.dropout < 1, "at least 0 and below 1")
        divisor = 2 * self.heads  # rotary positions rotate a head's numbers in pairs
        expected = f"a multiple of {divisor}, which is 2 x heads"
        self._require("dim", self.dim % divisor == 0, expected)
        divisible = self.heads % self.shape.kv_heads == 0
        self._require("heads", divisible, f"a multiple of kv_heads={self.kv_heads}")
        falls_after_rise = self.decay == 0 or self.decay > self.warmup
        self._require("decay", falls_after_rise, f"0, or above warmup={self.warmup}")
        for name, choices in CHOICES.items():
            self._require(name, getattr(self, name) in choices, f"one of {', '.join(choices)}")
        can_save = self.save_every == 0 or self.checkpoints is not None
        self._require("save_every", can_save, "0, because no checkpoints folder is given")
        self._require("pace_s", not (self.recompute and self.pace_s), "0 with recompute=True")
        event_log.parse_delays(self.stall)
        parse_errors(self.plant)

    @property
    def shape(self) -> BlockShape:
        """Sizes inside a block; options that are 0 are replaced by their computed value."""
        kv_heads, hidden = self.kv_heads or self.heads, self.hidden or -(-8 * self.dim // 24) * 8
        return BlockShape(head_dim=self.dim // self.heads, kv_heads=kv_heads, hidden=hidden)

    @property
    def delays(self) -> tuple[InjectedDelay, ...]:
        """Injected delays, parsed from `stall`."""
        return event_log.parse_delays(self.stall)

    def identity(self) -> dict[str, Any]:
        """Return the fields that must be equal in a checkpoint and a run, by name."""
        return {name: getattr(self, name) for name in IDENTITY}

    def settings(self) -> dict[str, Any]:
        """Return the settings that a resumed run may change; changes are logged."""
        return {name: getattr(self, name) for name in SETTINGS}

    def changed_settings(self, saved: dict[str, Any]) -> list[str]:
        """Return a sentence for each setting that differs from `saved`; skip unsaved ones."""
        return [
            f"{name} stays {old}, as in the checkpoint: {new} is ignored"
            if name in SAVED_SETTINGS
            else f"{name} is {new} from now on; in the checkpoint it was {old}"
            for name, new in self.settings().items()
            if (old := saved.get(name, new)) != new
        ]

    def _require(self, name: str, valid: bool, expected: str) -> None:
        if not valid:
            raise ValueError(f"{name} is {getattr(self, name)}, expected {expected}")


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
        help="Size of the model, with a batch that suits it. Other options override its values.",
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


def lr_factor(done: int, warmup: int, decay: int) -> float:
    """Return the learning rate of the step after `done` steps, as a fraction of the full rate.

    Linear warm-up, then a cosine down to 0.1 at step `decay` (0: none). It depends on the step
    alone, so a run that is extended later has the same rates up to there.
    """
    if done < warmup:
        return (done + 1) / warmup
    if decay == 0:
        return 1.0
    fraction = min((done - warmup) / (decay - warmup), 1.0)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * fraction))
