"""Planted delays: an ordinary debugging knob that makes one rank late in one segment."""

from __future__ import annotations

import time
from dataclasses import dataclass

# The consecutive intervals a step is cut into, in order.  See spans.py.
SEGMENTS = ("data", "forward", "backward", "clip", "optimizer", "checkpoint", "other")

# Moments of a save that may be in the background: a rank's data is about to be written; all data is
# written and nothing is committed yet; rank 0 has written the manifest, and renames next.
MOMENTS = ("upload", "commit", "rename")

FORM = "SEGMENT:rank=R:seconds=S[:from=FIRST_STEP][:to=LAST_STEP]"


@dataclass(frozen=True, kw_only=True)
class Stall:
    """Rank `rank` sleeps `seconds` in `segment` of every step from `first` to `last` (None: on)."""

    segment: str
    rank: int
    seconds: float
    first: int = 1
    last: int | None = None

    def hits(self, segment: str, rank: int, step: int) -> bool:
        """Whether this delay applies to that segment of that step on that rank."""
        return (self.segment, self.rank) == (segment, rank) and self.covers(step)

    def covers(self, step: int) -> bool:
        """Whether this step is among those that are delayed."""
        return self.first <= step and (self.last is None or step <= self.last)


class Stalls:
    """The delays of one rank; counts what fired, so that a planted delay can be proved."""

    def __init__(self, plan: tuple[Stall, ...], rank: int) -> None:
        self.plan = tuple(stall for stall in plan if stall.rank == rank)
        self.rank = rank
        self.fired = 0

    def wait(self, segment: str, step: int) -> None:
        """Sleep as planned for this segment of this step."""
        for stall in self.plan:
            if stall.hits(segment, self.rank, step):
                time.sleep(stall.seconds)
                self.fired += 1


def parse_stalls(text: str) -> tuple[Stall, ...]:
    """Read a plan such as "data:rank=2:seconds=0.2"; a comma separates several.

    Raises ValueError with the expected form when the text cannot be read.
    """
    return tuple(_parse_one(part.strip()) for part in text.split(",") if part.strip())


def _parse_one(text: str) -> Stall:
    segment, _, rest = text.partition(":")
    try:
        words = dict(pair.split("=", 1) for pair in rest.split(":"))
        rank, seconds = int(words.pop("rank")), float(words.pop("seconds"))
        first = int(words.pop("from", "1"))
        last = int(words.pop("to")) if "to" in words else None
    except (KeyError, ValueError):
        raise ValueError(f"stall is {text!r}, expected {FORM}") from None
    if words or segment not in SEGMENTS + MOMENTS or rank < 0 or not 0 <= seconds < float("inf"):
        raise ValueError(f"stall is {text!r}, expected {FORM}, SEGMENT one of {SEGMENTS + MOMENTS}")
    return Stall(segment=segment, rank=rank, seconds=seconds, first=first, last=last)
