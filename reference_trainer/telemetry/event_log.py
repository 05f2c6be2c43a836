"""Writes events and heartbeats of a rank, and delays that were asked for."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO


class JsonLines:
    """File of JSON objects, one a line, flushed. Without a folder it does nothing."""

    def __init__(self, folder: str | None, name: str) -> None:
        self._file: BinaryIO | None = None
        if folder is None:
            return
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._file = (Path(folder) / name).open("a+b")
        if self._file.tell():
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")  # a killed run left half a line: end it

    def append(self, record: dict[str, Any]) -> None:
        """Append one object and hand it to the operating system."""
        if self._file is not None:
            self._file.write(json.dumps(record).encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class EventLog(JsonLines):
    """Events in a file of JSON lines; a resumed run appends.

    Events of a rank: "start", "begin" (a step begins), "step" (its numbers), "saving", "saved",
    "end". Each carries "t", seconds since the epoch.
    """

    def write(self, event: str, **values: Any) -> None:
        """Append one event."""
        self.append({"event": event, "t": time.time(), **values})


@dataclass
class Progress:
    """Current step (0: none yet), its phase, and when the run last progressed."""

    step: int = 0
    phase: str = ""  # starting | training | saving | ended; empty: no run yet
    updated_at: float = field(default_factory=time.monotonic)
    stop_requested: threading.Event = field(default_factory=threading.Event)

    def update(self, phase: str, step: int = 0) -> None:
        """Record that the run has reached this phase and step."""
        self.step, self.phase, self.updated_at = step, phase, time.monotonic()

    def read(self) -> dict[str, Any]:
        """Return {"step", "phase", "age": seconds since the last update}."""
        return {"step": self.step, "phase": self.phase, "age": time.monotonic() - self.updated_at}


PROGRESS = Progress()


def handle_sigterm() -> None:
    """Take SIGTERM as the notice of a preemption: save, then leave. Main thread only."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: PROGRESS.stop_requested.set())


def exit_message(result: Mapping[str, Any]) -> str:
    """Return the last message of a run that left on SIGTERM: whether its last step was saved."""
    step = result["steps"][-1]["step"]
    if any(save["step"] == step for save in result["checkpoints"]):
        return f"the run exited on request (SIGTERM), and step {step} is saved"
    errors = [save["error"] for save in result["unsaved"] if save["step"] == step]
    reason = errors[0] if errors else f"step {step} was not saved: the run has no checkpoint folder"
    return f"the run exited on request (SIGTERM), but {reason}"


def process_start_ticks() -> int | None:
    """Return when this process started, in clock ticks since boot; None without /proc (proc(5))."""
    try:
        return int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    except OSError:
        return None


def process_age() -> float | None:
    """Return the age of this process in seconds, by Linux's CLOCK_BOOTTIME; None without /proc."""
    start_ticks = process_start_ticks()
    if start_ticks is None:
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")


# The consecutive intervals a step is cut into, in order.  See step_timer.py.
SEGMENTS = ("data", "forward", "backward", "clip", "optimizer", "checkpoint", "other")

# Moments of a save, which may be in the background. upload: before a rank's data is written.
# commit: all data is written and nothing is committed yet. rename: rank 0 has written the manifest,
# and renames next.
STAGES = ("upload", "commit", "rename")

NO_DELAYS = "SEATRIAL_NO_DELAYS"  # variable: a supervised run sets it for attempts without a fault

USAGE = "PLACE:rank=R:seconds=S[:from=FIRST_STEP][:to=LAST_STEP]"


@dataclass(frozen=True, kw_only=True)
class InjectedDelay:
    """Sleep of `seconds` on `rank` in `segment` of each step from `first` to `last` (None: on)."""

    segment: str
    rank: int
    seconds: float
    first: int = 1
    last: int | None = None

    def __str__(self) -> str:
        """Show as `rank 2 waits 0.2 s in data, in steps 1 to 4`."""
        steps = f"in steps {self.first} to {self.last}"
        steps = steps if self.last is not None else f"from step {self.first} on"
        return f"rank {self.rank} waits {self.seconds:g} s in {self.segment}, {steps}"

    def covers_step(self, step: int) -> bool:
        """Return whether this step is among those that are delayed."""
        return self.first <= step and (self.last is None or step <= self.last)


class DelayInjector:
    """Delays of one rank; none where NO_DELAYS is set in the environment.

    `fired` counts executed delays, to prove an injected delay.
    """

    def __init__(self, delays: tuple[InjectedDelay, ...], rank: int) -> None:
        planned = () if os.environ.get(NO_DELAYS) else delays
        self.delays = tuple(delay for delay in planned if delay.rank == rank)
        self.fired = 0

    def inject(self, segment: str, step: int) -> None:
        """Sleep as planned for this segment of this step."""
        for delay in self.delays:
            if delay.segment == segment and delay.covers_step(step):
                time.sleep(delay.seconds)
                self.fired += 1


def parse_delays(text: str) -> tuple[InjectedDelay, ...]:
    """Read a plan such as "data:rank=2:seconds=0.2"; a comma separates several delays.

    Raises ValueError with the expected form when the text cannot be read.
    """
    return tuple(_parse_delay(part.strip()) for part in text.split(",") if part.strip())


def _parse_delay(text: str) -> InjectedDelay:
    segment, _, pairs = text.partition(":")
    try:
        items = dict(pair.split("=", 1) for pair in pairs.split(":"))
        rank, seconds = int(items.pop("rank")), float(items.pop("seconds"))
        first = int(items.pop("from", "1"))
        last = int(items.pop("to")) if "to" in items else None
    except (KeyError, ValueError):
        raise ValueError(f"stall is {text!r}, expected {USAGE}") from None
    if items or segment not in SEGMENTS + STAGES or rank < 0 or not 0 <= seconds < float("inf"):
        places = ", ".join(SEGMENTS + STAGES)
        raise ValueError(f"stall is {text!r}, expected {USAGE}. PLACE is one of {places}")
    return InjectedDelay(segment=segment, rank=rank, seconds=seconds, first=first, last=last)
