"""Writes a checkpoint: all ranks fill a fresh folder, rank 0 commits it by manifest and rename."""

from __future__ import annotations

import logging
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp

from reference_trainer import manifest
from reference_trainer.checkpoint.rank_errors import raise_on_all, try_call
from reference_trainer.checkpoint.storage import Storage
from reference_trainer.config import TrainConfig
from reference_trainer.distributed import World
from reference_trainer.manifest import CheckpointError
from reference_trainer.telemetry.event_log import EventLog
from reference_trainer.telemetry.injected_delay import DelayInjector

log = logging.getLogger("reference_trainer")

FileEntries = dict[str, dict[str, Any]]  # file name -> {"size", "sha256"}


@dataclass
class CheckpointWriter:
    """Writer of a run's checkpoints. `events` records how far a save is on this rank.

    `world` carries the messages between ranks; a background save needs a `world` with its own
    group. `skipped_steps` are steps in the folder that were skipped when the run began.
    """

    config: TrainConfig
    storage: Storage
    world: World
    identity: dict[str, Any]
    delays: DelayInjector
    events: EventLog
    skipped_steps: set[int] = field(default_factory=set)
    _own_s: float = 0.0

    def __post_init__(self) -> None:
        self.folder = self.storage.folder

    def save(self, step: int, state: dict[str, Any]) -> dict[str, Any]:
        """Save the state; return {"step", "path", "bytes", "seconds", "own"} or {"step", "error"}.

        All ranks return the same kind: a save that failed on any rank is committed on none. "own"
        is this rank's seconds of writing, without its waits for others. A committed save also has
        "untidy" when LATEST or the old checkpoints could not be updated; it gives the reason.
        """
        start, self._own_s = time.perf_counter(), 0.0
        temp_folder: Path | None = None
        try:
            temp_folder = self._make_folder(step)
            size = self._write_and_commit(step, state, temp_folder)
            # If only this fails, the save is still complete. Every rank gets the reason.
            _, untidy = try_call(lambda: self._tidy(step)) if self.world.rank == 0 else (None, None)
            untidy = self.world.broadcast(untidy)
        except CheckpointError as error:
            if temp_folder is not None:  # all ranks have stopped writing; free the space
                shutil.rmtree(temp_folder, ignore_errors=True)
            self.events.write("unsaved", step=step, error=str(error))
            return {"step": step, "error": str(error)}
        seconds = time.perf_counter() - start
        path = str(self.folder / f"step-{step}")
        saved = {"step": step, "path": path, "bytes": size, "seconds": seconds, "own": self._own_s}
        if untidy is not None:
            saved["untidy"] = untidy
        self.events.write("saved", **saved)
        if self.world.rank != 0 and not self.storage.shared:
            shutil.rmtree(temp_folder, ignore_errors=True)
        return saved

    def _write_and_commit(self, step: int, state: dict[str, Any], temp_folder: Path) -> int:
        """Write all parts, exchange errors, commit; return the bytes of the complete checkpoint."""
        world, failure = self.world, f"step {step} was not saved"
        with self._count_own_time():
            self.delays.inject("upload", step)
        files, problem = try_call(lambda: self._write(temp_folder, state), world.rank)
        raise_on_all(world, problem, failure)
        rank_entries = world.gather(files)
        self.storage.collect(temp_folder, [sorted(entries) for entries in rank_entries], world)
        self.events.write("written", step=step)
        self.delays.inject("commit", step)
        commit = partial(self._commit, temp_folder, step, rank_entries)
        _, problem = try_call(commit) if world.rank == 0 else (None, None)
        raise_on_all(world, problem, failure)
        return sum(entry["size"] for entries in rank_entries for entry in entries.values())

    def _make_folder(self, step: int) -> Path:
        # A fresh name: a save into an old folder could mix two steps after a crash.
        path = self.folder / f"step-{step}.tmp-{self.world.broadcast(secrets.token_hex(4))}"
        leads = self.world.rank in self.storage.leaders
        _, problem = try_call(lambda: path.mkdir(parents=True)) if leads else (None, None)
        raise_on_all(self.world, problem, f"step {step} was not saved")
        return path

    def _write(self, path: Path, state: dict[str, Any]) -> FileEntries:
        """Write this rank's part and return its files with size and sha256."""
        # One thread: with more, torch 2.13 reports success although a file could not be written.
        writer = dcp.FileSystemWriter(path, thread_count=1)
        # Only this call of DCP is the rank's own work: before and after it, ranks wait for each
        # other.
        writer.write_data = self._count_own_time()(writer.write_data)
        dcp.save(state, storage_writer=writer, process_group=self.world.group)
        files = sorted(path.glob(f"__{self.world.rank}_*"))
        if self.world.rank == 0:
            files.append(path / ".metadata")
        with self._count_own_time():
            return {file.name: manifest.describe_file(file) for file in files}

    @contextmanager
    def _count_own_time(self) -> Iterator[None]:
        """Add the body's duration to the rank's own time; it must not wait for other ranks."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._own_s += time.perf_counter() - start

    def _commit(self, path: Path, step: int, rank_entries: list[FileEntries]) -> None:
        files = {name: entry for entries in rank_entries for name, entry in entries.items()}
        for rank, entries in enumerate(rank_entries):
            for name, entry in entries.items():
                _require_visible(path / name, entry["size"], rank)
        manifest.write(
            path,
            step=step,
            world_size=self.world.size,
            identity=self.identity,
            settings=self.config.settings(),
            files=files,
        )
        self.events.write("sealed", step=step)
        self.delays.inject("rename", step)
        final = self.folder / f"step-{step}"
        # An existing one was skipped as damaged when the run resumed: keep it under another name.
        if final.exists():
            aside = final.rename(self.folder / f"{final.name}.rejected-{secrets.token_hex(4)}")
            log.warning("step %d was damaged when this run began: it was kept as %s", step, aside)
        path.rename(final)
        manifest.sync_folder(self.folder)
        self.skipped_steps.discard(step)

    def _tidy(self, step: int) -> None:
        """Update LATEST to `step` and remove loadable checkpoints beyond the `keep_last` newest."""
        latest = self.folder / "LATEST.tmp"
        with latest.open("w", encoding="ascii") as file:
            file.write(f"step-{step}\n")
            manifest.sync_file(file)
        latest.rename(self.folder / "LATEST")
        manifest.sync_folder(self.folder)
        steps = [s for s in manifest.committed_steps(self.folder) if s <= step]
        for old in [*filter(self._is_loadable, steps)][self.config.keep_last :]:
            pruned = self.folder / f"step-{old}.tmp-pruned"  # half-deleted must not look complete
            (self.folder / f"step-{old}").rename(pruned)
            shutil.rmtree(pruned)

    def _is_loadable(self, step: int) -> bool:
        """Return whether this run would load the checkpoint.

        Another run's checkpoint, or a damaged one, must not count for `keep_last` and displace
        ours.
        """
        if step in self.skipped_steps:
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
