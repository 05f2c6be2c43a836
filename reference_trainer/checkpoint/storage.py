"""Where checkpoints lie: in one folder that all ranks see, or on the node of rank 0 alone.

Which of the two it is, is found out by looking for a folder that rank 0 made.  Without a shared one
each rank writes its part on its own node, the parts are sent to rank 0's node over the process
group, and only that node keeps them.  On resume the node that has the newest whole checkpoint sends
it to the others.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from reference_trainer.checkpoint.rank_errors import agree, attempt
from reference_trainer.distributed import World
from reference_trainer.manifest import CheckpointError

CHUNK = 16 << 20  # bytes sent at once: a few of them fit beside any model


class Storage:
    """One run's folder as this rank sees it.  Every method is called by all ranks together."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder = folder
        token = world.broadcast(f"step-0.tmp-{secrets.token_hex(8)}")  # if left, it is cleared away
        problem = None
        if world.rank == 0:
            _, problem = attempt(lambda: self._show(token))
        agree(world, problem, "cannot open the checkpoint folder")
        told = world.gather((world.host, (folder / token).exists()))
        if world.rank == 0:
            with suppress(FileNotFoundError):  # another run that begins here has cleared it away
                (folder / token).rmdir()
        if not told[0][1]:
            raise CheckpointError(f"another run has just begun in {folder}: give each its own")
        hosts = [host for host, _ in told]
        self.far = [rank for rank, (_, sees) in enumerate(told) if not sees]
        # One rank of each far node speaks for it.
        speakers = [r for r in self.far if hosts.index(hosts[r], self.far[0]) == r]
        self.speakers = [0, *speakers]

    @property
    def shared(self) -> bool:
        """Whether every rank sees the same folder."""
        return not self.far

    def _show(self, token: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / token).mkdir()

    def collect(self, path: Path, names: Sequence[Sequence[str]], world: World) -> None:
        """Send what far ranks wrote in `path` to rank 0's node; names[rank] are rank's files."""
        for rank in self.far:
            for name in names[rank]:
                _send(path / name, path / name, rank, [0], world)

    def spread(
        self, copy: Path, names: Sequence[str], source: int, world: World, *, original: Path
    ) -> None:
        """Send the files of `original` on source's node to all nodes, its own too, as `copy`."""
        problem = None
        if world.rank in self.speakers:
            _, problem = attempt(lambda: copy.mkdir(parents=True))
        agree(world, problem, f"{original} was not sent")
        targets = [rank for rank in self.speakers if rank != source]
        for name in names:
            _send(original / name, copy / name, source, targets, world)
        problem = None
        if world.rank == source:
            _, problem = attempt(lambda: _link(original, copy, names))
        agree(world, problem, f"{original} was not sent")


def _link(original: Path, copy: Path, names: Sequence[str]) -> None:
    for name in names:
        os.link(original / name, copy / name)


def _send(path: Path, there: Path, source: int, targets: Sequence[int], world: World) -> None:
    """One file from `source` to the nodes of `targets`; an error is agreed on."""
    file: BinaryIO | None = None
    problem = None
    if world.rank == source:
        file, problem = attempt(lambda: path.open("rb"))
    elif world.rank in targets:
        file, problem = attempt(lambda: there.open("xb"))
    try:
        agree(world, problem, f"{path.name} was not sent")
        _, problem = attempt(lambda: _pass_on(file, source, targets, world))
    finally:
        if file is not None:
            file.close()
    agree(world, problem, f"{path.name} was not sent")


def _pass_on(file: BinaryIO | None, source: int, targets: Sequence[int], world: World) -> None:
    """Chunk by chunk, until one is short; who neither has nor wants the file does nothing.

    Whoever fails goes on with nothing, to the end: the others must not be left waiting.
    """
    import numpy as np
    import torch
    import torch.distributed as dist

    failure: OSError | None = None
    while file is not None:
        chunk = b""
        if world.rank == source:
            try:
                chunk = file.read(CHUNK)
            except OSError as error:
                failure = error
        head = torch.tensor([len(chunk)])
        body = torch.from_numpy(np.frombuffer(bytearray(chunk), dtype=np.uint8))
        if world.rank == source:
            for target in targets:
                dist.send(head, group=world.group, group_dst=target)
                dist.send(body, group=world.group, group_dst=target)
        else:
            dist.recv(head, group=world.group, group_src=source)
            body = torch.empty(int(head), dtype=torch.uint8)
            dist.recv(body, group=world.group, group_src=source)
            try:
                file.write(body.numpy().tobytes())
            except OSError as error:
                failure = failure or error
        if int(head) < CHUNK:
            break
    if failure:
        raise failure
    if file is not None and file.writable():  # else the sender's, which is on its disk
        file.flush()
        os.fsync(file.fileno())
