"""Save and load that survive a kill at any moment: fresh folder, manifest, rename.

Save (save.py): `step-N.tmp-<attempt>/` -> DCP writes -> every rank tells how it went and what it
wrote -> rank 0 writes the manifest and renames to `step-N` -> `LATEST` by rename, oldest removed.
A folder without a manifest was never committed.  Nothing is ever written over.

Load (select.py): from newest to oldest, all ranks check each against its manifest, and rank 0
decides.  `LATEST` is for people and scripts; the trainer believes only manifests.

One folder belongs to one run.  Every rank must see it, or rank 0's node keeps it (storage.py).
"""

from __future__ import annotations

import dataclasses
import secrets
import shutil
import threading
from collections.abc import Callable
from concurrent import futures
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reference_trainer import manifest
from reference_trainer.checkpoint import rng_state as rng
from reference_trainer.checkpoint.rank_errors import agree, attempt
from reference_trainer.checkpoint.save import Writer
from reference_trainer.checkpoint.select import Choice, Chooser
from reference_trainer.checkpoint.storage import Storage
from reference_trainer.distributed import World, another_group
from reference_trainer.manifest import CheckpointError
from reference_trainer.telemetry.injected_delay import Stalls

FORGOTTEN = {"optimizer": ("optimizer",), "all": ("optimizer", "model")}
# For a save in the background when the run ends in an error.  More than gang.py's END_SECONDS.
PATIENCE_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class Training:
    """What a checkpoint holds besides counters: the sharded model, its optimizer, the schedule."""

    model: Any
    optimizer: Any
    schedule: Any

    def state(self) -> dict[str, Any]:
        """Model, optimizer and schedule with names that do not depend on the world size."""
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        schedule = {k: v for k, v in self.schedule.state_dict().items() if k != "lr_lambdas"}
        return {"model": model, "optimizer": optimizer, "schedule": schedule}

    def set(self, state: dict[str, Any]) -> None:
        """Put a loaded state into model, optimizer and schedule."""
        from torch.distributed.checkpoint.state_dict import set_state_dict

        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.schedule.load_state_dict({**self.schedule.state_dict(), **state["schedule"]})


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far the data was read: the id of the next sample, and how many a step takes."""

    position: int
    per_step: int


class Checkpoints:
    """The checkpoints of one run in one folder.  Every method is called by all ranks together.

    In the `background` a save costs the run a copy of its state; else it waits for the storage.
    """

    def __init__(
        self,
        folder: str,
        world: World,
        identity: dict[str, Any],
        keep: int,
        *,
        settings: dict[str, Any] | None = None,
        background: bool = False,
        timeout: float = 300,
        stalls: Stalls | None = None,
        tell: Callable[..., None] = lambda event, **values: None,
    ) -> None:
        self.folder, self.world, self.identity = Path(folder), world, identity
        self.storage = Storage(self.folder, world)
        # Two threads must not talk over one group: their messages would cross.
        talk = world
        if background:
            talk = dataclasses.replace(world, group=another_group(world, timeout))
        self._timeout = timeout
        self._writer = Writer(
            self.storage,
            talk,
            identity=identity,
            settings=settings or {},
            keep=keep,
            stalls=stalls or Stalls((), world.rank),
            tell=tell,
        )
        self._stage = _stager(world.device.type == "cuda") if background else None
        self._saving: futures.Future[dict[str, Any]] | None = None

    def open(self, resume: bool) -> Choice:
        """Choose what to resume from (see Chooser.choose).  Raises CheckpointError."""
        chooser = Chooser(self.storage, self.world, self.identity)
        choice, self._writer.distrusted = chooser.choose(resume)
        return choice

    def save(self, step: int, progress: Progress, training: Training) -> list[dict[str, Any]]:
        """Save the state after `step`; the saves that have ended by now (see Writer.save).

        In the background that is none: `wait` for it, at the latest before the next one.
        """
        assert self._saving is None, "the save before was not waited for"
        state = self._capture(step, progress, training)
        if self._stage is None:
            return [self._writer.save(step, state)]
        self._saving = _in_background(self._writer.save, step, self._stage(state))
        return []

    def wait(self) -> list[dict[str, Any]]:
        """Wait for the save in the background; none where there is none.

        Raises CheckpointError when it does not end: whoever waits for this rank's part is told so
        by the time-out of the group that they talk over.
        """
        if self._saving is None:
            return []
        try:
            saved = self._saving.result(self._timeout)
        except futures.TimeoutError:
            late = f"the save in the background did not end within {self._timeout:.0f} s"
            raise CheckpointError(late) from None
        self._saving = None
        return [saved]

    def abandon(self) -> None:
        """The run ends in an error: give a save in the background a moment to see it too."""
        if self._saving is not None:
            futures.wait([self._saving], PATIENCE_SECONDS)

    def load(
        self, choice: Choice, training: Training, forget: str = ""
    ) -> tuple[Progress, bytes | None]:
        """Load a chosen checkpoint; returns (progress, this rank's random state).

        The random state is None when the world size differs, for then no rank has its own.
        `forget` plants an error (config.FORGETTABLE).  Raises CheckpointError on all ranks when it
        failed on any.
        """
        rank, folder = self.world.rank, self._fetch(choice)
        blank = deepcopy(training.state()) if forget in ("optimizer", "all") else {}
        loaded, problem = attempt(lambda: self._read(choice, folder, training), rank)
        agree(self.world, problem, f"{choice.path} was not loaded")
        assert loaded is not None
        if forget == "peer":
            _mix_up(loaded, self.folder, choice, self.world)
        # The state is loaded in place, so what is to be forgotten was set aside before.
        loaded.update({part: blank[part] for part in FORGOTTEN.get(forget, ())})
        training.set(loaded)
        if folder != Path(str(choice.path)):
            shutil.rmtree(folder, ignore_errors=True)
        at = loaded["progress"]
        progress = Progress(position=int(at["position"]), per_step=int(at["per_step"]))
        return progress, loaded.get("rng", {}).get(f"rank{rank}")

    def _capture(self, step: int, progress: Progress, training: Training) -> dict[str, Any]:
        state = training.state()
        state["progress"] = {"step": step, **dataclasses.asdict(progress)}
        # DCP keeps one copy of a key that several ranks save, so each rank has its own.
        state["rng"] = {f"rank{self.world.rank}": rng.capture()}
        return state

    def _fetch(self, choice: Choice) -> Path:
        """The folder of the chosen checkpoint on this node, sent here if it lies elsewhere."""
        path = Path(str(choice.path))
        if self.storage.shared:
            return path
        names, problem = attempt(lambda: [*manifest.read(path)["files"], manifest.NAME])
        problem = problem if self.world.rank == choice.keeper else None
        agree(self.world, problem, f"{path} was not sent")
        names = self.world.gather(names)[choice.keeper]
        copy = self.folder / f"{path.name}.tmp-{self.world.broadcast(secrets.token_hex(4))}"
        self.storage.spread(copy, names, choice.keeper, self.world, original=path)
        _, problem = attempt(lambda: _require_whole(copy, choice.step, self.identity))
        agree(self.world, problem, f"{path} was not sent whole")
        return copy

    def _read(self, choice: Choice, folder: Path, training: Training) -> dict[str, Any]:
        import torch.distributed.checkpoint as dcp

        state = training.state()
        state["progress"] = {"step": 0, "position": 0, "per_step": 0}
        if choice.saved_world == self.world.size:
            state["rng"] = {f"rank{self.world.rank}": b""}
        reader = dcp.FileSystemReader(str(folder))
        dcp.load(state, storage_reader=reader, process_group=self.world.group)
        if state["progress"]["step"] != choice.step:
            raise CheckpointError(f"it holds step {state['progress']['step']}, not {choice.step}")
        return state


def _require_whole(folder: Path, step: int, identity: dict[str, Any]) -> None:
    if reason := manifest.verify(folder, step, identity):
        raise CheckpointError(reason)


def _mix_up(loaded: dict[str, Any], folder: Path, choice: Choice, world: World) -> None:
    """Plant an error: the last rank has model and optimizer of the checkpoint before."""
    import torch.distributed.checkpoint as dcp

    older = [step for step in manifest.committed_steps(folder) if step < choice.step]
    if not older:
        raise CheckpointError(f"there is none before step-{choice.step} to mix up with")
    last = world.rank == world.size - 1
    reader = dcp.FileSystemReader(str(folder / f"step-{older[0] if last else choice.step}"))
    mixed = {part: loaded[part] for part in ("model", "optimizer")}
    dcp.load(mixed, storage_reader=reader, process_group=world.group)
    loaded.update(mixed)


def _in_background(function: Callable[..., Any], *arguments: Any) -> futures.Future[Any]:
    """As an executor's submit, but the process may end while it still runs."""
    future: futures.Future[Any] = futures.Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001  (the future raises it again)
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _stager(on_gpu: bool) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function that copies a state into memory of its own, which it uses again each time."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    stager = DefaultStager(
        StagingOptions(
            use_pinned_memory=on_gpu,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=on_gpu,
        )
    )
    return stager.stage
