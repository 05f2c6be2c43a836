"""Saves and loads checkpoints so that a kill at any moment leaves a usable one.

Save (save.py): DCP writes into a fresh folder `step-N.tmp-<attempt>/`. All ranks exchange errors
and file lists. Rank 0 writes the manifest and renames the folder to `step-N`. Then it replaces
`LATEST` by rename and removes the oldest checkpoint. A folder without a manifest was never
committed. No checkpoint file is ever overwritten.

Load (select.py): checkpoints are checked against their manifests, from newest to oldest. In a
shared folder all ranks divide the check, and rank 0 decides. `LATEST` is for people and scripts;
the trainer uses only the manifests.

Write access to the folder is enough to change what is trained: a sha256 detects damage, not intent.
It is not enough to run code on a rank (load_plain), although all files that DCP writes are
pickles or contain pickles.

One folder belongs to one run. Either every rank sees it, or only rank 0's node keeps it
(save.py).
"""

from __future__ import annotations

import dataclasses
import enum
import io
import pickle
import random
import secrets
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from reference_trainer import manifest
from reference_trainer.checkpoint import save as saving
from reference_trainer.checkpoint.save import CheckpointWriter, Storage
from reference_trainer.checkpoint.select import CheckpointSelector, Selection
from reference_trainer.config import TrainConfig
from reference_trainer.data.shard_stream import SampleStream
from reference_trainer.distributed import World, new_gloo_group
from reference_trainer.manifest import CheckpointError
from reference_trainer.telemetry.event_log import DelayInjector, EventLog


def seed_all(seed: int, rank: int, step: int = 0) -> None:
    """Seed every generator of this process; each rank gets its own streams, which dropout needs.

    `step` is the step at which a run continues without its old random state. With it, the run does
    not draw the same numbers again as from step 0.
    """
    seeds = np.random.SeedSequence([seed, rank, step] if step else [seed, rank]).generate_state(2)
    random.seed(int(seeds[0]))
    np.random.seed(int(seeds[0]))
    torch.manual_seed(int(seeds[1]))  # seeds the GPUs too


def capture() -> bytes:
    """Return the state of all generators of this process, as plain data for `restore`."""
    numpy_state: Any = np.random.get_state()
    kind, keys, *rest = numpy_state
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (kind, keys.tolist(), *rest),  # weights_only loading rejects arrays
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    blob = io.BytesIO()
    torch.save(state, blob)
    return blob.getvalue()


def restore(blob: bytes) -> None:
    """Restore every generator. Call it last: a later draw would change the restored state."""
    state = torch.load(io.BytesIO(blob), weights_only=True)  # numbers, text and tensors: no code
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


# Modules whose dataclasses and enums describe a checkpoint.
RECORD_MODULES = {
    "torch.distributed.checkpoint.filesystem",
    "torch.distributed.checkpoint.metadata",
}
PLAIN_NAMES = {  # types in their fields, besides numbers, strings and containers
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # the same, as Python 3.13 names it
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
}


def load_plain(state: dict[str, Any], folder: Path, group: Any) -> None:
    """Load a checkpoint into `state`, in place. Raises CheckpointException of DCP."""
    reader, planner = PlainReader(str(folder)), _PlainPlanner()
    dcp.load(state, storage_reader=reader, planner=planner, process_group=group)


class PlainReader(dcp.FileSystemReader):
    """DCP reader that loads `.metadata` without calling what it names. Raises CheckpointError."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Read the description of the checkpoint's contents and where they are stored."""
        with Path(self.path, ".metadata").open("rb") as file:
            metadata = _RecordUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            found = type(metadata).__name__
            raise CheckpointError(
                f".metadata contains a {found}, not the Metadata of torch.distributed.checkpoint. "
                "Remove this checkpoint, so that the run resumes from the previous checkpoint"
            )
        return metadata


class _RecordUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return the object that a pickle names, if it is a DCP record or a plain type.

        Raises CheckpointError for any other name.
        """
        if module in RECORD_MODULES and "." not in name:
            found = super().find_class(module, name)
            if dataclasses.is_dataclass(found) or isinstance(found, enum.EnumMeta):
                return found
        elif module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        elif (module, name) in PLAIN_NAMES:
            return super().find_class(module, name)
        elif (module, name) == ("builtins", "getattr"):
            return _member_of
        raise CheckpointError(
            f".metadata names {module}.{name}, which no checkpoint needs. Loading it could run "
            "code: check who wrote this checkpoint, and remove the checkpoint"
        )


def _member_of(owner: Any, name: Any) -> enum.Enum:
    """Return a member of an enum; replaces getattr, which Python 3.11.0 to 3.11.3 pickles for it.

    Raises CheckpointError for any other object or name.
    """
    if isinstance(owner, enum.EnumMeta) and name in owner.__members__:
        return owner.__members__[name]
    raise CheckpointError(
        f".metadata reads {name!r} of an object, which no checkpoint needs. Loading it could run "
        "code: check who wrote this checkpoint, and remove the checkpoint"
    )


class _PlainPlanner(DefaultLoadPlanner):
    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        """Refuse a value that is not plain data before DCP unpickles it. Raises CheckpointError."""
        try:
            torch.load(value, weights_only=True)
        except pickle.UnpicklingError:
            name = read_item.dest_index.fqn
            raise CheckpointError(
                f"{name} contains more than numbers and text. Loading it could run code: check who "
                "wrote this checkpoint, and remove the checkpoint"
            ) from None
        value.seek(0)
        super().load_bytes(read_item, value)


RESET_PARTS = {"optimizer": ("optimizer",), "all": ("optimizer", "model")}
# Seconds that a background save gets when the run ends in an error. Must exceed END_SECONDS
# (gang.py).
ABANDON_SECONDS = 10


@dataclass(frozen=True)
class TrainState:
    """State in a checkpoint: sharded model, optimizer, learning-rate schedule and data position."""

    model: Any
    optimizer: Any
    schedule: Any
    stream: SampleStream

    def state_dict(self) -> dict[str, Any]:
        """Return model, optimizer and schedule under names that do not depend on the world size."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        schedule = {k: v for k, v in self.schedule.state_dict().items() if k != "lr_lambdas"}
        return {"model": model, "optimizer": optimizer, "schedule": schedule}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state into model, optimizer and schedule."""
        parts = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        set_state_dict(self.model, self.optimizer, **parts)
        self.schedule.load_state_dict({**self.schedule.state_dict(), **state["schedule"]})


class Checkpointer:
    """Checkpoints of one run in one folder. All ranks call every method together.

    With save_mode "async" a save blocks the run only while the state is copied. Otherwise the run
    waits for storage.
    """

    def __init__(
        self,
        config: TrainConfig,
        world: World,
        training: TrainState,
        delays: DelayInjector,
        events: EventLog,
    ) -> None:
        self.folder, self.world, self.training = Path(str(config.checkpoints)), world, training
        self.identity = identity = {**config.identity(), **training.stream.identity()}
        self.storage = Storage(self.folder, world)
        self._timeout_s = config.init_timeout_s
        own_world, self._stage = world, None
        if config.save_mode == "async":
            # Two threads must not share a process group: their messages would mix.
            own_world = replace(world, group=new_gloo_group(world, self._timeout_s))
            self._stage = _make_stager(world.device.type == "cuda")
        self._writer = CheckpointWriter(config, self.storage, own_world, identity, delays, events)
        self._saving: futures.Future[dict[str, Any]] | None = None

    def select(self, resume: bool) -> Selection:
        """Choose what to resume from (see CheckpointSelector.select). Raises CheckpointError."""
        selector = CheckpointSelector(self.storage, self.world, self.identity)
        choice, self._writer.skipped_steps = selector.select(resume)
        return choice

    def save(self, step: int) -> list[dict[str, Any]]:
        """Save the state after `step`; return the saves that ended (see CheckpointWriter.save).

        An async save returns an empty list. Call `wait` for it, at the latest before the next save.
        """
        assert self._saving is None, "the previous save was not waited for"
        state = self._full_state(step)
        if self._stage is None:
            return [self._writer.save(step, state)]
        self._saving = _run_in_background(self._writer.save, step, self._stage(state))
        return []

    def wait(self) -> list[dict[str, Any]]:
        """Wait for the background save and return its result in a list; empty if there is none.

        Raises CheckpointError when the save does not end in time. Ranks that wait for this rank's
        part fail by the time-out of their process group.
        """
        if self._saving is None:
            return []
        try:
            saved = self._saving.result(self._timeout_s)
        except futures.TimeoutError:
            late = f"did not end within {self._timeout_s:.0f} s. Check the storage of {self.folder}"
            raise CheckpointError(f"the background save of a checkpoint {late}") from None
        self._saving = None
        return [saved]

    def abandon(self) -> None:
        """Give a background save up to ABANDON_SECONDS to see that the run ends in an error."""
        if self._saving is not None:
            futures.wait([self._saving], ABANDON_SECONDS)

    def load(self, choice: Selection, forget: str = "") -> bytes | None:
        """Load a chosen checkpoint into the run and return this rank's random state.

        Returns None when the world size differs, because then no rank has its own random state.
        `forget` injects an error (config.CHOICES). Raises CheckpointError on all ranks when loading
        failed on any.
        """
        rank, folder, training = self.world.rank, self._fetch(choice), self.training
        initial = deepcopy(training.state_dict()) if forget in ("optimizer", "all") else {}
        loaded, problem = saving.try_call(lambda: self._load_state(choice, folder), rank)
        saving.raise_on_all(self.world, problem, f"{choice.path} was not loaded")
        if forget == "peer":
            _load_stale_rank(loaded, self.folder, choice, self.world)
        # The state is loaded in place, so the parts to forget were copied before the load.
        loaded.update({part: initial[part] for part in RESET_PARTS.get(forget, ())})
        training.load_state_dict(loaded)
        if folder != Path(str(choice.path)):
            shutil.rmtree(folder, ignore_errors=True)
        training.stream.position = int(loaded["progress"]["position"])
        training.stream.per_step = int(loaded["progress"]["per_step"])
        return loaded.get("rng", {}).get(f"rank{rank}")

    def _full_state(self, step: int) -> dict[str, Any]:
        state, stream = self.training.state_dict(), self.training.stream
        # Data position: id of the next sample, and samples per step.
        state["progress"] = {"step": step, "position": stream.position, "per_step": stream.per_step}
        # DCP keeps one copy of a key that several ranks save, so each rank uses its own key.
        state["rng"] = {f"rank{self.world.rank}": capture()}
        return state

    def _fetch(self, choice: Selection) -> Path:
        """Return the folder of the chosen checkpoint; if it is not shared, a copy on this node."""
        path = Path(str(choice.path))
        if self.storage.shared:
            return path
        world, source, failure = self.world, choice.source_rank, f"{path} was not sent to all nodes"
        files = saving.call_on(world, [source], lambda: manifest.read(path)["files"], failure)
        names = [*world.gather(files)[source], manifest.NAME]
        copy = self.folder / f"{path.name}.tmp-{world.broadcast(secrets.token_hex(4))}"
        self.storage.distribute(copy, names, source, world, original=path)
        reason, problem = saving.try_call(lambda: manifest.verify(copy, choice.step, self.identity))
        saving.raise_on_all(world, reason or problem, f"{failure} completely")
        return copy

    def _load_state(self, choice: Selection, folder: Path) -> dict[str, Any]:
        state = self.training.state_dict()
        state["progress"] = {"step": 0, "position": 0, "per_step": 0}
        if choice.saved_world == self.world.size:
            state["rng"] = {f"rank{self.world.rank}": b""}
        load_plain(state, folder, self.world.group)
        if (held := state["progress"]["step"]) != choice.step:
            raise CheckpointError(f"the files hold step {held}, not step {choice.step}")
        return state


def _load_stale_rank(loaded: dict[str, Any], folder: Path, choice: Selection, world: World) -> None:
    """Inject an error: load model and optimizer of the previous checkpoint on one rank.

    It is the last of those that hold most: of many ranks, the last have no rows. Raises
    CheckpointError when there is no previous checkpoint.
    """
    older = [step for step in manifest.committed_steps(folder) if step < choice.step]
    if not older:
        needed = f"a checkpoint before step-{choice.step}"
        raise CheckpointError(f"--forget peer needs {needed}, but there is none")
    state = {part: loaded[part] for part in ("model", "optimizer")}
    held = sum(one.to_local().numel() for one in state["model"].values())  # by this rank
    stale = last_largest(world.gather(held))
    step = older[0] if world.rank == stale else choice.step
    load_plain(state, folder / f"step-{step}", world.group)
    loaded.update(state)


def last_largest(counts: Sequence[int]) -> int:
    """Return the last index of the largest count."""
    return max(range(len(counts)), key=lambda rank: (counts[rank], rank))


def _run_in_background(function: Callable[..., Any], *arguments: Any) -> futures.Future[Any]:
    """Run a function in a daemon thread and return its future.

    Unlike with an executor, the process may exit while the function still runs.
    """
    future: futures.Future[Any] = futures.Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001  (the future raises it again)
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _make_stager(on_gpu: bool) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Make a function that copies a state into its own buffers, which it reuses at each call."""
    # Imported here: older torch versions lack these names, and a job without async saves needs
    # none.
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    copies = {"use_pinned_memory": on_gpu, "use_non_blocking_copy": on_gpu}
    options = StagingOptions(use_shared_memory=False, use_async_staging=False, **copies)
    return DefaultStager(options).stage
