"""What a node does with the shared folder: places, timed reads and writes, shards."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.cluster.shared_folder import remove_later
from probes.cluster.system_facts import find_temporary_folder, read_room

# Longest time (s) that a folder outlives its driver.  A round has a dozen calls, of up to 90 s
# each where nodes do not answer.
FOLDER_SECONDS = 1200
POLL_S, MAX_POLL_S = 0.01, 0.5  # s between two looks at a folder: often at first, then rarely
LINE_BYTES = 64  # of one line of a file
LINES = 64  # of a file that others read: 4 KiB, a block
NEVER_SEEN, OTHER_CONTENT = "not visible there", "different content"
MEET_S = 3.0  # s that a node waits for the others; then it goes on alone


@dataclass(frozen=True)
class Place:
    """Folder `name` of one round on node `node` (its id).

    It is in `parent`, or in the node's temporary folder if that is "".
    """

    parent: str
    name: str
    node: str

    @property
    def folder(self) -> Path:
        """Path on the node."""
        return Path(self.parent or find_temporary_folder()) / self.name


def open_place(place: Place, seconds: int = FOLDER_SECONDS) -> dict[str, Any]:
    """Make the folder, and write a file into it that others can read.

    Returns {"error", "room"}: why that failed, or "", and the room as in `read_room`.  The node
    removes the folder by itself after `seconds`.
    """
    folder = place.folder
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        remove_later(str(folder), seconds)
        os.listdir(folder)  # what a cache keeps of the folder is now older than all files
        write_text(folder / f"from-{place.node}", make_text(place, place.node))
        error = ""
    except (OSError, subprocess.SubprocessError) as problem:
        error = getattr(problem, "strerror", "") or str(problem)
    return {"error": error, "room": read_room(str(folder.parent))}


def close_place(place: Place) -> None:
    """Remove the folder, with all that is in it."""
    shutil.rmtree(place.folder, ignore_errors=True)


def make_text(place: Place, node: str) -> str:
    """Make the content of a node's file: lines that no other round and no other node has."""
    return (f"{place.name} {node} ".ljust(LINE_BYTES - 1, ".") + "\n") * LINES


def write_text(path: Path, text: str) -> None:
    """Write a file, with its data on disk when it is closed."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_others(wait_s: float, ask: tuple[Place, list[str]]) -> dict[str, dict[str, Any]]:
    """Read the files of other nodes, as soon as they are seen, for up to `wait_s`.

    `ask` is this node's place, and the ids of the others.  Returns {"seconds", "problem"} of each:
    how long it took, and "" or what is wrong.
    """
    place, others = ask
    answers: dict[str, dict[str, Any]] = {
        node: {"seconds": None, "problem": NEVER_SEEN} for node in others
    }

    def look(seconds: float) -> bool:
        try:
            names, problem = os.listdir(place.folder), ""
        except FileNotFoundError:
            names, problem = [], ""
        except OSError as error:
            names, problem = [], error.strerror or str(error)
        for node in [node for node in others if answers[node]["problem"]]:
            found = problem or _read_problem(place, node, names)
            answers[node] = {"seconds": None if found else seconds, "problem": found}
        return not any(answer["problem"] for answer in answers.values())

    poll(look, wait_s)
    return answers


def _read_problem(place: Place, node: str, names: list[str]) -> str:
    """Read the file of a node, which must be among the names in the folder; return what is wrong.

    A list of names is asked of the server; a name alone may come from a cache.
    """
    name = f"from-{node}"
    if name not in names:
        return NEVER_SEEN
    try:
        found = (place.folder / name).read_text(errors="replace")
    except FileNotFoundError:
        return NEVER_SEEN
    except OSError as problem:
        return problem.strerror or str(problem)
    return "" if found == make_text(place, node) else OTHER_CONTENT


def poll(is_done: Callable[[float], bool], wait_s: float) -> bool:
    """Call a function with the seconds that have passed, until it returns true or time is up."""
    start, pause = time.monotonic(), POLL_S
    while not is_done(seconds := time.monotonic() - start):
        if seconds > wait_s:
            return False
        time.sleep(pause)
        pause = min(2 * pause, MAX_POLL_S)
    return True


def meet_others(place: Place, what: str, others: Iterable[str]) -> None:
    """Wait until the other nodes come to the same step, so that all take it together."""
    (place.folder / f"{what}-{place.node}").touch()
    wanted = {f"{what}-{node}" for node in others}

    def all_here(_: float) -> bool:
        with suppress(OSError):
            return wanted.issubset(os.listdir(place.folder))
        return False

    poll(all_here, MEET_S)


CHUNK = 2**22  # bytes of one write: 4 MiB, as torch's and fio's large ones
MARK_BYTES = 32  # of a chunk, by which a reader knows it
SYNC_CHUNKS = 8  # after so many the data must be on disk: else a slow one is known only at the end
SEEN_S, STOP_S = 40.0, 40.0  # s to see a shard, and after which it is cut short: 90 s in all
BLOCK = 2**14  # bytes of one random read: 4,096 tokens of 4 bytes
LOADERS = 8  # threads that read at random, as the loaders of data of one node
SMALL_BYTES = 1024  # of a small file
OTHER_DATA = "the data read differs from the data written"
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

    def steps(self, kind: str) -> float:
        """Return how often a node pauses one after the other: its loaders do so at once."""
        return self.count(kind) / (LOADERS if kind == RANDOM else CHUNK)


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
    return {"done": done or 0, "seconds": seconds, "error": OTHER_DATA if done is None else ""}


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
    with work.shard.open("rb") as file:  # whose `read` gives a whole chunk
        forget_pages(file.fileno())
        start = time.monotonic()
        for mark in _marks(work):
            if time.monotonic() > start + STOP_S:
                break
            chunk = file.read(CHUNK)
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
