"""Save and load that survive a kill at any moment: fresh folder, manifest, rename.

Save: `step-N.tmp-<attempt>/` -> DCP writes -> every rank tells how it went and what it wrote
-> rank 0 writes the manifest and renames to `step-N` -> `LATEST` by rename, oldest removed.
A folder without a manifest was never committed.  Nothing is ever written over.

Load: rank 0 goes from newest to oldest, checks each against its manifest, and tells the others
which one it is.  `LATEST` is for people and scripts; the trainer believes only manifests.

One folder belongs to one run, and every rank must see it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reference_trainer import manifest, rng
from reference_trainer.manifest import CheckpointError
from reference_trainer.world import World


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What to resume from.  step 0 and path None: nothing.  `note` is a sentence for the log."""

    step: int
    path: str | None
    saved_world: int
    skipped: list[dict[str, str]]
    note: str


@dataclass(frozen=True, kw_only=True)
class Training:
    """What a checkpoint holds besides counters: the sharded model and its optimizer."""

    model: Any
    optimizer: Any

    def state(self) -> dict[str, Any]:
        """Model and optimizer state with names that do not depend on the world size."""
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def set(self, state: dict[str, Any]) -> None:
        """Put a loaded state into model and optimizer."""
        from torch.distributed.checkpoint.state_dict import set_state_dict

        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


class Checkpoints:
    """The checkpoints of one run in one folder.  Every method is called by all ranks together."""

    def __init__(self, folder: str, world: World, identity: dict[str, Any], keep: int) -> None:
        self.folder, self.world, self.identity, self.keep = Path(folder), world, identity, keep

    def open(self, resume: bool) -> Choice:
        """Remove what dead attempts left, then choose what to resume from.

        Raises CheckpointError when the folder cannot be used, or when `resume` is off and the
        folder holds checkpoints: a later resume could not tell them from this run's.
        """
        choice, problem = None, None
        if self.world.rank == 0:
            choice, problem = _try(lambda: self._open(resume))
        self._agree(problem, "cannot open the checkpoint folder")
        chosen: Choice = self.world.broadcast(choice)
        return chosen

    def save(self, step: int, position: int, training: Training) -> dict[str, Any]:
        """Save the state after `step`; returns {"step", "path", "bytes", "seconds"}.

        Raises CheckpointError on all ranks when it failed on any; nothing is committed then.
        """
        began = time.perf_counter()
        unfinished = self._begin(step)
        rank = self.world.rank
        files, problem = _try(lambda: self._write(unfinished, step, position, training), rank)
        try:
            self._agree(problem, f"step {step} was not saved")
            told = self.world.gather(files)
            problem = None
            if self.world.rank == 0:
                _, problem = _try(lambda: self._commit(unfinished, step, told))
            self._agree(problem, f"step {step} was not saved")
        except CheckpointError:
            if self.world.rank == 0:  # all ranks have stopped writing; give the space back
                shutil.rmtree(unfinished, ignore_errors=True)
            raise
        if self.world.rank == 0:
            _, problem = _try(lambda: self._tidy(step))
        self._agree(problem, f"step {step} was saved, but the folder could not be tidied")
        return {
            "step": step,
            "path": str(self.folder / f"step-{step}"),
            "bytes": sum(entry["size"] for named in told for entry in named.values()),
            "seconds": time.perf_counter() - began,
        }

    def load(self, choice: Choice, training: Training) -> tuple[int, bytes | None]:
        """Load a chosen checkpoint; returns (data position, this rank's random state).

        The random state is None when the world size differs, for then no rank has its own.
        Raises CheckpointError on all ranks when it failed on any.
        """
        rank = self.world.rank
        loaded, problem = _try(lambda: self._read(choice, training), rank)
        self._agree(problem, f"{choice.path} was not loaded")
        assert loaded is not None
        training.set(loaded)
        blob = loaded.get("rng", {}).get(f"rank{rank}")
        return int(loaded["progress"]["position"]), blob

    def _open(self, resume: bool) -> Choice:
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in manifest.unfinished(self.folder):
            shutil.rmtree(leftover)
        steps = manifest.committed_steps(self.folder)
        if steps and not resume:
            raise CheckpointError(
                f"{self.folder} already holds step-{steps[0]} and resume is off:"
                " choose an empty folder"
            )
        skipped: list[dict[str, str]] = []
        for step in steps:
            path = self.folder / f"step-{step}"
            reason = manifest.verify(path, step, self.identity)
            if reason is None:
                return self._chosen(step, path, skipped)
            skipped.append({"name": path.name, "reason": reason})
        what = "no usable checkpoint" if skipped else "no checkpoint"
        note = f"{what} in {self.folder}: starting from step 0"
        return Choice(step=0, path=None, saved_world=0, skipped=skipped, note=note)

    def _chosen(self, step: int, path: Path, skipped: list[dict[str, str]]) -> Choice:
        world = int(manifest.read(path)["world"])
        note = f"resuming from {path}, saved by {world} ranks"
        return Choice(step=step, path=str(path), saved_world=world, skipped=skipped, note=note)

    def _begin(self, step: int) -> Path:
        # A name never used before: a save over an old one could mix two steps after a crash.
        attempt = self.world.broadcast(secrets.token_hex(4))
        path = self.folder / f"step-{step}.tmp-{attempt}"
        problem = None
        if self.world.rank == 0:
            _, problem = _try(lambda: path.mkdir(parents=True))
        self._agree(problem, f"step {step} was not saved")
        return path

    def _write(
        self, path: Path, step: int, position: int, training: Training
    ) -> dict[str, dict[str, Any]]:
        """Write this rank's part; returns name -> size and sha256 of the files this rank wrote."""
        import torch.distributed.checkpoint as dcp

        state = training.state()
        state["progress"] = {"step": step, "position": position}
        # DCP keeps one copy of a key that several ranks save, so each rank has its own.
        state["rng"] = {f"rank{self.world.rank}": rng.capture()}
        # One thread: with more, torch 2.13 reports success although a file could not be written.
        writer = dcp.FileSystemWriter(path, thread_count=1)
        dcp.save(state, storage_writer=writer, process_group=self.world.group)
        mine = sorted(path.glob(f"__{self.world.rank}_*"))
        if self.world.rank == 0:
            mine.append(path / ".metadata")
        return {file.name: manifest.describe(file) for file in mine}

    def _commit(self, path: Path, step: int, told: list[dict[str, dict[str, Any]]]) -> None:
        files = {name: entry for named in told for name, entry in named.items()}
        for rank, named in enumerate(told):
            for name, entry in named.items():
                _require_visible(path / name, entry["size"], rank)
        manifest.write(path, step=step, world=self.world.size, identity=self.identity, files=files)
        final = self.folder / f"step-{step}"
        if final.exists():  # one that was skipped as damaged when this run resumed: keep it aside
            final.rename(self.folder / f"{final.name}.rejected-{secrets.token_hex(4)}")
        path.rename(final)
        manifest.sync_folder(self.folder)

    def _tidy(self, step: int) -> None:
        """Point LATEST at the new checkpoint and remove the oldest."""
        fresh = self.folder / "LATEST.tmp"
        with fresh.open("w", encoding="ascii") as file:
            file.write(f"step-{step}\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(self.folder / "LATEST")
        manifest.sync_folder(self.folder)
        # Newer steps than this one were found damaged or foreign: they must not push out ours.
        older = [s for s in manifest.committed_steps(self.folder) if s <= step]
        for old in older[self.keep :]:
            doomed = self.folder / f"step-{old}.tmp-pruned"  # half-deleted must not look whole
            (self.folder / f"step-{old}").rename(doomed)
            shutil.rmtree(doomed)

    def _read(self, choice: Choice, training: Training) -> dict[str, Any]:
        import torch.distributed.checkpoint as dcp

        state = training.state()
        state["progress"] = {"step": 0, "position": 0}
        if choice.saved_world == self.world.size:
            state["rng"] = {f"rank{self.world.rank}": b""}
        reader = dcp.FileSystemReader(str(choice.path))
        dcp.load(state, storage_reader=reader, process_group=self.world.group)
        if state["progress"]["step"] != choice.step:
            raise CheckpointError(f"it holds step {state['progress']['step']}, not {choice.step}")
        return state

    def _agree(self, problem: str | None, what: str) -> None:
        """Raise on all ranks when any rank has a problem; "" is a problem that a peer explains."""
        told = self.world.gather((self.world.host, problem))
        if any(why is not None for _, why in told):
            bad = [f"rank {r} on {host}: {why}" for r, (host, why) in enumerate(told) if why]
            raise CheckpointError(f"{what}: {'; '.join(bad) or 'no rank says why'}")


def _require_visible(path: Path, size: int, rank: int) -> None:
    if not path.is_file() or path.stat().st_size != size:
        raise CheckpointError(
            f"{path.name}, written by rank {rank}, is not visible to rank 0:"
            " the checkpoint folder must be one that all nodes share"
        )


def _try(action: Callable[[], Any], rank: int = 0) -> tuple[Any, str | None]:
    """(result, None), or (None, the problem of this rank in one line)."""
    try:
        return action(), None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  (DCP's CheckpointException is no Exception)
        return None, _sentence(error, rank)


def _sentence(error: BaseException, rank: int) -> str:
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict):  # DCP tells every rank of every rank's failure: keep our own
        if rank not in failures:
            return ""
        error = failures[rank][0]
    lines = str(error).strip().splitlines()
    if isinstance(error, CheckpointError):
        return str(error)
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
