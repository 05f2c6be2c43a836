"""Keeps this process's progress for another thread to read, and whether it must leave.

One process is one rank of at most one run at a time, so this is the process's own state.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


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
        return f"it left on request (SIGTERM) with step {step} saved"
    errors = [save["error"] for save in result["unsaved"] if save["step"] == step]
    reason = errors[0] if errors else f"step {step} was not saved: it has no checkpoint folder"
    return f"it left on request (SIGTERM), but {reason}"


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
