"""Injects delays: an ordinary debugging option that makes one rank late in one segment."""

from __future__ import annotations

import time
from dataclasses import dataclass

# The consecutive intervals a step is cut into, in order.  See step_timer.py.
SEGMENTS = ("data", "forward", "backward", "clip", "optimizer", "checkpoint", "other")

# Moments of a save, which may be in the background. upload: before a rank's data is written.
# commit: all data is written and nothing is committed yet. rename: rank 0 has written the manifest,
# and renames next.
STAGES = ("upload", "commit", "rename")

USAGE = "SEGMENT:rank=R:seconds=S[:from=FIRST_STEP][:to=LAST_STEP]"


@dataclass(frozen=True, kw_only=True)
class InjectedDelay:
    """Sleep of `seconds` on `rank` in `segment` of each step from `first` to `last` (None: on)."""

    segment: str
    rank: int
    seconds: float
    first: int = 1
    last: int | None = None

    def covers_step(self, step: int) -> bool:
        """Return whether this step is among those that are delayed."""
        return self.first <= step and (self.last is None or step <= self.last)


class DelayInjector:
    """Delays of one rank. `fired` counts executed delays, to prove an injected delay."""

    def __init__(self, delays: tuple[InjectedDelay, ...], rank: int) -> None:
        self.delays = tuple(delay for delay in delays if delay.rank == rank)
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
        raise ValueError(f"stall is {text!r}, expected {USAGE}, SEGMENT one of {SEGMENTS + STAGES}")
    return InjectedDelay(segment=segment, rank=rank, seconds=seconds, first=first, last=last)
