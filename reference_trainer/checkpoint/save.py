"""One save: written to a fresh folder by all ranks, committed by rank 0's manifest and rename."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reference_trainer import manifest
from reference_trainer.checkpoint.rank_errors import agree, attempt
from reference_trainer.checkpoint.storage import Storage
from reference_trainer.distributed import World
from reference_trainer.manifest import CheckpointError
from reference_trainer.telemetry.injected_delay import Stalls

log = logging.getLogger("reference_trainer")

Told = dict[str, dict[str, Any]]  # file name -> {"size", "sha256"}


class Writer:
    """Writes a run's checkpoints.  `tell(event, **values)` hears how far a save is on this rank.

    `world` carries the talk between ranks: in the background it must be one of its own.
    `distrusted` are steps that lie in the folder and were skipped when the run began.
    """

    def __init__(
        self,
        storage: Storage,
        world: World,
        *,
        identity: dict[str, Any],
        settings: dict[str, Any],
        keep: int,
        stalls: Stalls,
        tell: Callable[..., None],
    ) -> None:
        self.storage, self.world, self.keep = storage, world, keep
        self.identity, self.settings = identity, settings
        self.stalls, self.tell, self.folder = stalls, tell, storage.folder
        self.distrusted: set[int] = set()
        self._own = 0.0

    def save(self, step: int, state: dict[str, Any]) -> dict[str, Any]:
        """Save the state; returns {"step", "path", "bytes", "seconds", "own"} or {"step", "error"}.

        All ranks return the same kind: a save that failed on any is committed on none.  "own" is
        this rank's seconds of writing, without its waits for others.  "untidy" beside the former
        says why old ones could not be removed.
        """
        began, world, self._own = time.perf_counter(), self.world, 0.0
        unfinished: Path | None = None
        try:
            unfinished = self._begin(step)
            size = self._finish(step, state, unfinished)
            untidy = self._tidied(step)
        except CheckpointError as error:
            if unfinished is not None:  # all ranks have stopped writing; give the space back
                shutil.rmtree(unfinished, ignore_errors=True)
            self.tell("unsaved", step=step, error=str(error))
            return {"step": step, "error": str(error)}
        seconds = time.perf_counter() - began
        path = str(self.folder / f"step-{step}")
        saved = {"step": step, "path": path, "bytes": size, "seconds": seconds, "own": self._own}
        saved |= untidy
        self.tell("saved", **saved)
        if world.rank != 0 and not self.storage.shared:
            shutil.rmtree(unfinished, ignore_errors=True)
        return saved

    def _finish(self, step: int, state: dict[str, Any], unfinished: Path) -> int:
        """Write, tell each other, commit; bytes of the whole checkpoint."""
        world, failed = self.world, f"step {step} was not saved"
        with self._at_work():
            self.stalls.wait("upload", step)
        files, problem = attempt(lambda: self._write(unfinished, state), world.rank)
        agree(world, problem, failed)
        told = world.gather(files)
        self.storage.collect(unfinished, [sorted(named) for named in told], world)
        self.tell("written", step=step)
        self.stalls.wait("commit", step)
        problem = None
        if world.rank == 0:
            _, problem = attempt(lambda: self._commit(unfinished, step, told))
        agree(world, problem, failed)
        return sum(entry["size"] for named in told for entry in named.values())

    def _tidied(self, step: int) -> dict[str, str]:
        """{"untidy": reason} if that failed: the save is whole all the same; every rank is told."""
        problem = None
        if self.world.rank == 0:
            _, problem = attempt(lambda: self._tidy(step))
        problem = self.world.broadcast(problem)
        return {} if problem is None else {"untidy": problem}

    def _begin(self, step: int) -> Path:
        # A name never used before: a save over an old one could mix two steps after a crash.
        token = self.world.broadcast(secrets.token_hex(4))
        path = self.folder / f"step-{step}.tmp-{token}"
        problem = None
        if self.world.rank in self.storage.speakers:
            _, problem = attempt(lambda: path.mkdir(parents=True))
        agree(self.world, problem, f"step {step} was not saved")
        return path

    def _write(self, path: Path, state: dict[str, Any]) -> Told:
        """Write this rank's part; what this rank wrote."""
        import torch.distributed.checkpoint as dcp

        # One thread: with more, torch 2.13 reports success although a file could not be written.
        writer = dcp.FileSystemWriter(path, thread_count=1)
        # Of what DCP does this alone is a rank's own: before and after it they wait for each other.
        writer.write_data = self._at_work()(writer.write_data)
        dcp.save(state, storage_writer=writer, process_group=self.world.group)
        mine = sorted(path.glob(f"__{self.world.rank}_*"))
        if self.world.rank == 0:
            mine.append(path / ".metadata")
        with self._at_work():
            return {file.name: manifest.describe(file) for file in mine}

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """The body is this rank's own work: it waits for no other."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._own += time.perf_counter() - begun

    def _commit(self, path: Path, step: int, told: list[Told]) -> None:
        files = {name: entry for named in told for name, entry in named.items()}
        for rank, named in enumerate(told):
            for name, entry in named.items():
                _require_visible(path / name, entry["size"], rank)
        manifest.write(
            path,
            step=step,
            world=self.world.size,
            identity=self.identity,
            settings=self.settings,
            files=files,
        )
        self.tell("sealed", step=step)
        self.stalls.wait("rename", step)
        final = self.folder / f"step-{step}"
        if final.exists():  # one that was skipped as damaged when this run resumed: keep it aside
            aside = final.rename(self.folder / f"{final.name}.rejected-{secrets.token_hex(4)}")
            log.warning("step %d was damaged when this run began: it is kept as %s", step, aside)
        path.rename(final)
        manifest.sync_folder(self.folder)
        self.distrusted.discard(step)

    def _tidy(self, step: int) -> None:
        """Point LATEST at the new checkpoint and remove the oldest."""
        fresh = self.folder / "LATEST.tmp"
        with fresh.open("w", encoding="ascii") as file:
            file.write(f"step-{step}\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(self.folder / "LATEST")
        manifest.sync_folder(self.folder)
        steps = manifest.committed_steps(self.folder)
        for old in [s for s in steps if s <= step and self._trusted(s)][self.keep :]:
            doomed = self.folder / f"step-{old}.tmp-pruned"  # half-deleted must not look whole
            (self.folder / f"step-{old}").rename(doomed)
            shutil.rmtree(doomed)

    def _trusted(self, step: int) -> bool:
        """Whether this run would load it: another's, or a damaged one, must not push out ours."""
        if step in self.distrusted:
            return False
        try:
            return bool(manifest.read(self.folder / f"step-{step}")["identity"] == self.identity)
        except CheckpointError:
            return False


def _require_visible(path: Path, size: int, rank: int) -> None:
    if not path.is_file() or path.stat().st_size != size:
        raise CheckpointError(
            f"{path.name}, written by rank {rank}, is not visible to rank 0:"
            " the checkpoint folder must be one that all nodes share"
        )
