"""Where checkpoints lie: in one folder that all ranks see, or on the node of rank 0 alone.

Which of the two it is, is found out by looking for a folder that rank 0 made.  Without a shared one
each rank writes its part on its own node, the parts are sent to rank 0's node over the process
group, and only that node keeps them.  On resume the node that has the newest whole checkpoint sends
it to the others.
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

CHUNK_BYTES = 16 << 20  # bytes sent at once: a few of them fit beside any model


class Storage:
    """One run's folder as this rank sees it.  Every method is called by all ranks together."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder = folder
        token = world.broadcast(f"step-0.tmp-{secrets.token_hex(8)}")  # if left, it is cleared away
        call_on(world, [0], lambda: self._make_marker(token), "cannot open the checkpoint folder")
        reports = world.gather((world.host, (folder / token).exists()))
        if world.rank == 0:
            with suppress(FileNotFoundError):  # another run that begins here has cleared it away
                (folder / token).rmdir()
        if not reports[0][1]:
            raise CheckpointError(f"another run has just begun in {folder}: give each its own")
        hosts = [host for host, _ in reports]
        self.remote_ranks = [rank for rank, (_, sees) in enumerate(reports) if not sees]
        # One rank of each far node speaks for it.
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
        """Send what far ranks wrote in `path` to rank 0's node; names[rank] are rank's files."""
        for rank in self.remote_ranks:
            for name in names[rank]:
                _send_file(path / name, path / name, rank, [0], world)

    def distribute(
        self, copy: Path, names: Sequence[str], source: int, world: World, *, original: Path
    ) -> None:
        """Send the files of `original` on source's node to all nodes, its own too, as `copy`."""
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
    """Send one file from `source` to the nodes of `targets`; an error is agreed on."""
    file: BinaryIO | None = None
    problem, failure = None, f"{path.name} was not sent"
    if world.rank == source:
        file, problem = try_call(lambda: path.open("rb"))
    elif world.rank in targets:
        file, problem = try_call(lambda: copy.open("xb"))
    with file or nullcontext():
        raise_on_all(world, problem, failure)
        _, problem = try_call(lambda: _send_chunks(file, source, targets, world))
    raise_on_all(world, problem, failure)


def _send_chunks(file: BinaryIO | None, source: int, targets: Sequence[int], world: World) -> None:
    """Send chunk by chunk, until one is short; who neither has nor wants the file does nothing.

    Whoever fails goes on with nothing, to the end: the others must not be left waiting.
    """
    failure: OSError | None = None
    while file is not None:
        chunk = [b""]  # what the calls of torch take and fill
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
    if file is not None and file.writable():  # else the sender's, which is on its disk
        sync_file(file)
