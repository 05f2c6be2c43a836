"""Saves a checkpoint: whole or not at all, and on a disk that may be full."""

from __future__ import annotations

import logging
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException  # derives from BaseException

from reference_trainer import manifest
from reference_trainer.config import TrainConfig
from reference_trainer.distributed import World
from reference_trainer.manifest import CheckpointError, sync_file
from reference_trainer.telemetry.event_log import DelayInjector, EventLog


def raise_on_all(world: World, problem: str | None, failure: str) -> None:
    """Raise CheckpointError on all ranks when any rank has a problem.

    `problem` is None without a problem, and "" when another rank reports the cause.
    """
    reports = world.gather((world.host, problem))
    if any(why is not None for _, why in reports):
        lines = [f"rank {rank} on {host}: {why}" for rank, (host, why) in enumerate(reports) if why]
        raise CheckpointError(f"{failure}: {'; '.join(lines) or 'no rank reports why'}")


def call_on(world: World, ranks: Collection[int], action: Callable[[], Any], failure: str) -> Any:
    """Call `action` on these ranks; return its result there and None on the others.

    Raises CheckpointError on all ranks when it failed on any.
    """
    result, problem = try_call(action, world.rank) if world.rank in ranks else (None, None)
    raise_on_all(world, problem, failure)
    return result


def try_call(action: Callable[[], Any], rank: int = 0) -> tuple[Any, str | None]:
    """Call `action`; return (result, None), or (None, the problem of this rank in one line)."""
    try:
        return action(), None
    except (Exception, CheckpointException) as error:  # noqa: BLE001  (`raise_on_all` raises it on all)
        return None, _error_text(error, rank)


def _error_text(error: BaseException, rank: int) -> str:
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict):  # DCP gives all ranks' failures to every rank: keep our own
        if rank not in failures:
            return ""
        error = failures[rank][0]
    lines = str(error).strip().splitlines()
    if isinstance(error, CheckpointError):
        return str(error)
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


CHUNK_BYTES = 16 << 20  # bytes per message: a few of them fit into memory next to any model


class Storage:
    """Checkpoint folder of one run as this rank sees it. All ranks call every method together."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder = folder
        # A leftover marker counts as an unfinished save and is removed.
        marker = folder / world.broadcast(f"step-0.tmp-{secrets.token_hex(8)}")
        failure = f"cannot write to the checkpoint folder {folder}"
        call_on(world, [0], lambda: marker.mkdir(parents=True), failure)
        reports = world.gather((world.host, marker.exists()))
        if world.rank == 0:
            with suppress(FileNotFoundError):  # another run that starts here has removed it
                marker.rmdir()
        if not reports[0][1]:
            do = "name another folder with --checkpoints"
            raise CheckpointError(f"another run has just begun in {folder}: {do}")
        hosts = [host for host, _ in reports]
        self.remote_ranks = [rank for rank, (_, sees) in enumerate(reports) if not sees]
        # The first rank of each remote node is its leader.
        leaders = [r for r in self.remote_ranks if hosts.index(hosts[r], self.remote_ranks[0]) == r]
        self.leaders = [0, *leaders]

    @property
    def shared(self) -> bool:
        """Whether every rank sees the same folder."""
        return not self.remote_ranks

    def collect(self, path: Path, names: Sequence[Sequence[str]], world: World) -> None:
        """Send what remote ranks wrote in `path` to rank 0's node; names[rank] are their files."""
        for rank in self.remote_ranks:
            for name in names[rank]:
                _send_file(path / name, path / name, rank, [0], world)

    def distribute(
        self, copy: Path, names: Sequence[str], source: int, world: World, *, original: Path
    ) -> None:
        """Send the files of `original` on the node of `source` to the folder `copy` on every node.

        The node of `source` gets hard links. Raises CheckpointError on all ranks when it failed on
        any.
        """
        failure = f"{original} was not sent to all nodes"
        call_on(world, self.leaders, lambda: copy.mkdir(parents=True), failure)
        targets = [rank for rank in self.leaders if rank != source]
        for name in names:
            _send_file(original / name, copy / name, source, targets, world)
        call_on(world, [source], lambda: _link_files(original, copy, names), failure)


def _link_files(original: Path, copy: Path, names: Sequence[str]) -> None:
    for name in names:
        (copy / name).hardlink_to(original / name)


def _send_file(path: Path, copy: Path, source: int, targets: Sequence[int], world: World) -> None:
    """Send one file from `source` to the nodes of the ranks `targets`.

    Raises CheckpointError on all ranks when it failed on any.
    """
    file: BinaryIO | None = None
    problem, failure = None, f"{path.name} was not sent to another node"
    if world.rank == source:
        file, problem = try_call(lambda: path.open("rb"))
    elif world.rank in targets:
        file, problem = try_call(lambda: copy.open("xb"))
    with file or nullcontext():
        raise_on_all(world, problem, failure)
        _, problem = try_call(lambda: _send_chunks_to_ranks(file, source, targets, world))
    raise_on_all(world, problem, failure)


def _send_chunks_to_ranks(
    file: BinaryIO | None, source: int, targets: Sequence[int], world: World
) -> None:
    """Send chunks until one is short; a rank that is neither source nor target does nothing.

    A rank that fails continues to the end, because the others must not be left waiting. Then it
    raises its OSError.
    """
    failure: OSError | None = None
    while file is not None:
        chunk = [b""]  # list that the calls of torch read or fill
        if world.rank == source:
            try:
                chunk = [file.read(CHUNK_BYTES)]
            except OSError as error:
                failure = error
            for target in targets:
                dist.send_object_list(chunk, group=world.group, group_dst=target)
        else:
            dist.recv_object_list(chunk, group=world.group, group_src=source)
            try:
                file.write(chunk[0])
            except OSError as error:
                failure = failure or error
        if len(chunk[0]) < CHUNK_BYTES:
            break
    if failure:
        raise failure
    if file is not None and file.writable():  # the source's file is already on disk
        sync_file(file)


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
        files = call_on(world, range(world.size), lambda: self._write(temp_folder, state), failure)
        rank_entries = world.gather(files)
        self.storage.collect(temp_folder, [sorted(entries) for entries in rank_entries], world)
        self.events.write("written", step=step)
        self.delays.inject("commit", step)
        call_on(world, [0], lambda: self._commit(temp_folder, step, rank_entries), failure)
        return sum(entry["size"] for entries in rank_entries for entry in entries.values())

    def _make_folder(self, step: int) -> Path:
        # A fresh name: a save into an old folder could mix two steps after a crash.
        path = self.folder / f"step-{step}.tmp-{self.world.broadcast(secrets.token_hex(4))}"
        failure = f"step {step} was not saved"
        call_on(self.world, self.storage.leaders, lambda: path.mkdir(parents=True), failure)
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
        run = {"identity": self.identity, "settings": self.config.settings()}
        manifest.write(path, step=step, world=self.world.size, files=files, **run)
        self.events.write("sealed", step=step)
        self.delays.inject("rename", step)
        final = self.folder / f"step-{step}"
        # An existing one was skipped as damaged when the run resumed: keep it under another name.
        if final.exists():
            aside = final.rename(self.folder / f"{final.name}.rejected-{secrets.token_hex(4)}")
            text = "the checkpoint of step %d was skipped when this run began: it is kept as %s"
            log.warning(text, step, aside)
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
        if step not in self.skipped_steps:
            with suppress(CheckpointError):
                content = manifest.read(self.folder / f"step-{step}")
                return bool(content["identity"] == self.identity)
        return False


def _require_visible(path: Path, size: int, rank: int) -> None:
    if not path.is_file() or path.stat().st_size != size:
        raise CheckpointError(
            f"{path.name}, written by rank {rank}, is not visible to rank 0:"
            " the checkpoint folder must be one that all nodes share"
        )
