"""Times the parts of a step, and the waits of FSDP in it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from reference_trainer.telemetry.event_log import SEGMENTS, JsonLines


class HostClock:
    """Boundaries on the host's monotonic clock, integer nanoseconds."""

    name = "host"

    def stamp(self) -> Any:
        """Read the monotonic clock, in nanoseconds."""
        return time.perf_counter_ns()

    def wait(self, stamp: Any) -> None:
        """Return once this boundary has been passed; on the host it already has."""

    def intervals(self, stamps: list[Any]) -> list[float]:
        """Return the seconds between each boundary and the next: one fewer than boundaries."""
        return [(b - a) / 1e9 for a, b in pairwise(stamps)]

    def total(self, stamps: list[Any], intervals: list[float]) -> float:
        """Return the seconds from the first boundary to the last; `intervals` are between them."""
        return (stamps[-1] - stamps[0]) / 1e9


class CudaClock(HostClock):
    """Boundaries on the GPU's compute stream. Resolution about 0.5 us (CUDA runtime API)."""

    name = "cuda events"

    def stamp(self) -> Any:
        """Record an event on the current stream and return it; the host does not wait for it."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self, stamp: Any) -> None:
        """Wait until the stream reaches this event."""
        stamp.synchronize()

    def intervals(self, stamps: list[Any]) -> list[float]:
        """Return seconds between consecutive events, each rounded by itself; wait for the last."""
        self.wait(stamps[-1])
        return [a.elapsed_time(b) / 1e3 for a, b in pairwise(stamps)]

    def total(self, stamps: list[Any], intervals: list[float]) -> float:
        """Return the sum of the intervals: one long interval would be rounded differently."""
        return sum(intervals)


class StepTimer:
    """Timer of a step's segments: begin(step), mark(name) at each boundary, end() -> record.

    Keys of a record: "step"; "t" (seconds since the epoch at the step's start); "rank"; "seconds"
    (from its first boundary to its last); "wall" (the same by the host's monotonic clock);
    "segments" {name: seconds}; "clock"; "separable"; "exposed" {segment: {collective: seconds of
    the segment that were spent waiting for it}}, empty where that is not separable. `end` appends
    the record to the file and flushes it.
    """

    def __init__(self, clock: HostClock, rank: int, folder: str | None = None) -> None:
        self.clock, self.rank = clock, rank
        self.separable = False  # whether `waiting` measures all waits in forward and backward
        self.records: list[dict[str, Any]] = []
        self._lines = JsonLines(folder, f"spans.rank{rank}.jsonl")
        self._stamps: list[Any] = []
        self._names: list[str] = []
        self._waits: list[tuple[int, str, Any, Any]] = []
        self._exposed: dict[str, dict[str, float]] = {}
        self._last: tuple[Any, int] | None = None  # where the last step ended, by both clocks

    def begin(self, step: int) -> None:
        """Start a step at the exact time the step before it ended, if there was one."""
        self._step, self._started_at = step, time.time()
        start, self._begun_ns = self._last or (self.clock.stamp(), time.monotonic_ns())
        self._stamps = [start]
        self._names, self._waits, self._exposed = [], [], {}

    @contextmanager
    def waiting(self, collective: str) -> Iterator[None]:
        """Time the body as a wait for a collective within the open interval. Never nested."""
        start = self.clock.stamp()
        yield
        self._waits.append((len(self._names), collective, start, self.clock.stamp()))

    def mark(self, segment: str) -> None:
        """End the interval that began at the last boundary, and call it `segment`.

        Raises ValueError for an unknown segment.
        """
        if segment not in SEGMENTS:
            raise ValueError(f"segment is {segment!r}, expected one of {SEGMENTS}")
        self._stamps.append(self.clock.stamp())
        self._names.append(segment)

    def read_waits(self) -> None:
        """Read the waits so far, which must be over: here it costs nothing if the GPU is busy."""
        for index, collective, *ends in self._waits:
            waits = self._exposed.setdefault(self._names[index], {})
            (seconds,) = self.clock.intervals(ends)
            waits[collective] = waits.get(collective, 0.0) + seconds
        self._waits = []

    def end(self) -> dict[str, Any]:
        """End the step at the last mark; write and return its record."""
        self.clock.wait(self._stamps[-1])
        ended = time.monotonic_ns()  # read first, before other work makes it late
        intervals = self.clock.intervals(self._stamps)
        segments = dict.fromkeys(SEGMENTS, 0.0)
        for name, seconds in zip(self._names, intervals, strict=True):
            segments[name] += seconds
        self._last = self._stamps[-1], ended
        self.read_waits()
        record = {
            "step": self._step,
            "t": self._started_at,
            "rank": self.rank,
            "seconds": self.clock.total(self._stamps, intervals),
            "wall": (ended - self._begun_ns) / 1e9,
            "segments": segments,
            "clock": self.clock.name,
            "separable": self.separable,
            "exposed": self._exposed,
        }
        self.records.append(record)
        self._lines.append(record)
        return record

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


# FSDP2's calls of one group of parameters, and the collective that each waits for.  `unshard`
# starts one and waits only where nothing is asynchronous.
FSDP_CALLS = {
    "unshard": "all-gather",
    "wait_for_unshard": "all-gather",
    "post_backward": "reduce-scatter",
    "finalize_backward": "reduce-scatter",
}


def time_fsdp_waits(model: Any, timer: StepTimer) -> bool:
    """Time each wait of this sharded model with `timer`; return False if torch lacks the calls.

    The calls are torch's internals and have no public hooks, so they are found by name.
    """
    groups = [*_parameter_groups(model)]
    if not groups or not all(hasattr(group, name) for group in groups for name in FSDP_CALLS):
        return False
    for group in groups:
        for name, collective in FSDP_CALLS.items():
            setattr(group, name, _time_call(getattr(group, name), collective, timer))
    timer.separable = True
    return True


def _parameter_groups(model: Any) -> Iterator[Any]:
    """Yield the groups of parameters that FSDP2 gathers and reduces together."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            group = getattr(state, "_fsdp_param_group", None)  # torch 2.6 has one group each
            yield from getattr(state, "_fsdp_param_groups", [group] if group else [])


def _time_call(call: Callable[..., Any], collective: str, timer: StepTimer) -> Callable[..., Any]:
    @functools.wraps(call)
    def timed(*args: Any, **options: Any) -> Any:
        with timer.waiting(collective):
            return call(*args, **options)

    return timed
