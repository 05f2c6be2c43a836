"""Stores checkpoints in one folder that all ranks see, or only on the node of rank 0.

Rank 0 makes a marker folder, and every rank looks for it: this shows which of the two applies.
Without a shared folder each rank writes its part on its own node. The parts are sent to rank 0's
node over the process group, and only that node keeps them. On resume the node with the newest
complete checkpoint sends it to the others.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import BinaryIO

import torch.distributed as dist

from reference_trainer.checkpoint.rank_errors import call_on, raise_on_all, try_call
from reference_trainer.distributed import World
from reference_trainer.manifest import CheckpointError, sync_file

CHUNK_BYTES = 16 << 20  # bytes per message: a few of them fit into memory next to any model


class Storage:
    """Checkpoint folder of one run as this rank sees it. All ranks call every method together."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder = folder
        # A leftover marker counts as an unfinished save and is removed.
        token = world.broadcast(f"step-0.tmp-{secrets.token_hex(8)}")
        call_on(world, [0], lambda: self._make_marker(token), "cannot open the checkpoint folder")
        reports = world.gather((world.host, (folder / token).exists()))
        if world.rank == 0:
            with suppress(FileNotFoundError):  # another run that starts here has removed it
                (folder / token).rmdir()
        if not reports[0][1]:
            raise CheckpointError(f"another run has just begun in {folder}: give each its own")
        hosts = [host for host, _ in reports]
        self.remote_ranks = [rank for rank, (_, sees) in enumerate(reports) if not sees]
        # The first rank of each remote node is its leader.
        leaders = [r for r in self.remote_ranks if hosts.index(hosts[r], self.remote_ranks[0]) == r]
        self.leaders = [0, *leaders]

    @property
    def shared(self) -> bool:
        """Whether every rank sees the same folder."""
        return not self.remote_ranks

    def _make_marker(self, token: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / token).mkdir()

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
        failure = f"{original} was not sent"
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
    problem, failure = None, f"{path.name} was not sent"
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
