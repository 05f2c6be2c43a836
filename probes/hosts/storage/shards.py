"""Writes and reads files of the size of a checkpoint's shard on one node, and times that."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.hosts.storage.places import Place, poll

CHUNK = 2**22  # bytes of one write: 4 MiB, as torch's and fio's large ones
MARK_BYTES = 32  # of a chunk, by which a reader knows it
SYNC_CHUNKS = 8  # after so many the data must be on disk: else a slow one is known only at the end
SEEN_S, STOP_S = 40.0, 40.0  # s to see a shard, and after which it is cut short: 90 s in all
BLOCK = 2**14  # bytes of one random read: 4,096 tokens of 4 bytes
LOADERS = 8  # threads that read at random, as the loaders of data of one node
SMALL_BYTES = 1024  # of a small file
OTHER_DATA = "it reads something else than was written"
WRITE, READ, RANDOM, SMALL = "write", "read", "random", "small"


@dataclass(frozen=True)
class Size:
    """How much each node does: bytes of its shard, random reads, and small files."""

    shard_bytes: int
    reads: int
    files: int

    def count(self, kind: str) -> int:
        """Return how much work of one kind is: bytes, or times."""
        return {RANDOM: self.reads, SMALL: self.files}.get(kind, self.shard_bytes)


@dataclass(frozen=True)
class Work:
    """What one node does: `kind`, with the shard of node `owner`, for `count` bytes or times.

    `shard_bytes` is what the owner wrote, or is to write.
    `pause_s` is how long it waits after each chunk or block, for a control.
    """

    kind: str
    place: Place
    owner: str
    count: int
    shard_bytes: int
    pause_s: float = 0.0

    @property
    def shard(self) -> Path:
        """Path of the shard."""
        return self.place.folder / f"shard-{self.owner}"


def do_work(work: Work) -> dict[str, Any]:
    """Do it; return {"done", "seconds", "error"}: bytes or times, and how long they took."""
    steps = {WRITE: write_shard, READ: read_shard, RANDOM: read_blocks, SMALL: make_small_files}
    start = time.monotonic()
    try:
        done, seconds = steps[work.kind](work)
    except OSError as error:
        seconds = time.monotonic() - start
        return {"done": 0, "seconds": seconds, "error": error.strerror or str(error)}
    error_text = "" if done is not None else OTHER_DATA
    return {"done": done or 0, "seconds": seconds, "error": error_text}


def write_shard(work: Work) -> tuple[int, float]:
    """Write the shard, until it is on disk; return the bytes and the seconds."""
    body = os.urandom(CHUNK - MARK_BYTES)  # what is not compressed on its way
    start, done = time.monotonic(), 0
    with work.shard.open("wb", buffering=0) as file:
        for number, mark in enumerate(_marks(work), 1):
            if time.monotonic() > start + STOP_S:
                break
            done += file.write(mark + body)
            time.sleep(work.pause_s)
            if number % SYNC_CHUNKS == 0:
                os.fsync(file.fileno())
        os.fsync(file.fileno())
    return done, time.monotonic() - start


def read_shard(work: Work) -> tuple[int | None, float]:
    """Read the shard from storage; return the bytes (None if they are not right) and seconds."""
    wait_for_shard(work)
    done, is_right = 0, True
    with work.shard.open("rb", buffering=0) as file:
        forget_pages(file.fileno())
        start = time.monotonic()
        for mark in _marks(work):
            if time.monotonic() > start + STOP_S:
                break
            chunk = _read_chunk(file)
            is_right = is_right and chunk.startswith(mark) and len(chunk) == CHUNK
            if not is_right:
                break
            done += len(chunk)
            time.sleep(work.pause_s)
        seconds = time.monotonic() - start
    return (done if is_right and done else None), seconds


def wait_for_shard(work: Work) -> None:
    """Wait until the shard is seen with all that was written: how soon is judged elsewhere."""
    name = work.shard.name

    def is_seen(_: float) -> bool:
        with suppress(OSError):
            listed = name in os.listdir(work.shard.parent)
            return listed and work.shard.stat().st_size >= work.shard_bytes
        return False

    if work.shard.parent.is_dir():
        poll(is_seen, SEEN_S)


def _read_chunk(file: Any) -> bytes:
    parts, left = [], CHUNK
    while left and (part := file.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _marks(work: Work) -> Iterator[bytes]:
    """Yield what each chunk of a shard begins with."""
    for number in range(max(1, work.shard_bytes // CHUNK)):
        text = f"{work.place.name[-6:]} {work.owner[:12]} {number}"
        yield text.encode().ljust(MARK_BYTES)[:MARK_BYTES]


def forget_pages(file: int) -> None:
    """Drop what this node's memory holds of a file, so that storage is read."""
    with suppress(AttributeError, OSError):  # macOS has no such call, and some kinds of file
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def read_blocks(work: Work) -> tuple[int, float]:
    """Read blocks of the shard at random, by several threads; return how many, and seconds."""
    wait_for_shard(work)
    file = os.open(work.shard, os.O_RDONLY)
    try:
        forget_pages(file)
        blocks = max(1, os.fstat(file).st_size // BLOCK)
        draw = random.Random(work.place.node)  # each node reads others
        starts = [draw.randrange(blocks) * BLOCK for _ in range(work.count)]
        start = time.monotonic()

        def read_block(offset: int) -> int:
            if time.monotonic() > start + STOP_S:
                return 0
            time.sleep(work.pause_s)
            return 1 if os.pread(file, BLOCK, offset) else 0

        with ThreadPoolExecutor(LOADERS) as pool:
            done = sum(pool.map(read_block, starts))
        return done, time.monotonic() - start
    finally:
        os.close(file)


def make_small_files(work: Work) -> tuple[int, float]:
    """Write, look up and remove small files; return how many, and seconds."""
    start, done = time.monotonic(), 0
    for number in range(work.count):
        path = work.place.folder / f"small-{work.place.node}-{number}"
        path.write_bytes(bytes(SMALL_BYTES))
        os.stat(path)
        path.unlink()
        done += 1
        if time.monotonic() > start + STOP_S:
            break
    return done, time.monotonic() - start


def do_all_work(works: Sequence[Work]) -> list[dict[str, Any]]:
    """Do one after another."""
    return [do_work(work) for work in works]
