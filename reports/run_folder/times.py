"""Times of a run: by the machine's clock, and by one that is never set."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Any

from reports.numbers import finite_number

STEP_S = 5.0  # a clock that NTP holds is stepped by less than a second
DRIFT = 0.001  # NTP slews a clock by 500 ppm at most
MAX_STEPS = 10  # sentences: a clock that is set again and again


def utc_time(now: datetime | None = None) -> str:
    """Return the ISO 8601 UTC time to the millisecond, for example 2026-11-20T22:17:03.120Z."""
    now = now or datetime.now(timezone.utc)
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str | None) -> datetime:
    """Parse a time in the format of `utc_time`. Raises ValueError if there is none."""
    return datetime.fromisoformat((text or "").replace("Z", "+00:00"))


def known_time(text: str | None) -> datetime | None:
    """Parse a time in the format of `utc_time`; None if there is none."""
    try:
        return parse_time(text)
    except (ValueError, TypeError, AttributeError):
        return None


def seconds_between(first: str | None, last: str | None) -> float | None:
    """Return the seconds from one time to another; None if one of them is none."""
    try:
        return (parse_time(last) - parse_time(first)).total_seconds()
    except (ValueError, TypeError, AttributeError):
        return None


def steady_s() -> float:
    """Read a clock (s) that is never set; on Linux it goes on while the machine sleeps."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class ClockSteps:
    """Finds where the machine's clock was set, by two events: each has the time since the start.

    `steps` has a sentence for each, up to MAX_STEPS.
    """

    def __init__(self) -> None:
        self.steps: list[str] = []
        self._last: tuple[datetime, float] | None = None

    def see(self, event: dict[str, Any]) -> None:
        """Compare the event with the one before it; an event without both times says nothing."""
        now, elapsed = known_time(event.get("t")), finite_number(event.get("elapsed"))
        if now is None or now.tzinfo is None or elapsed is None:
            return
        if self._last:
            before, since = self._last
            step = (now - before).total_seconds() - (elapsed - since)
            if abs(step) > STEP_S + DRIFT * abs(elapsed - since) and len(self.steps) < MAX_STEPS:
                self.steps.append(
                    f"clock of the host that runs seatrial at {utc_time(now)}: set "
                    f"{'forward' if step > 0 else 'back'} by {abs(step):.0f} s. Expected: at most "
                    f"{STEP_S:g} s (times of events are compared with logs of the cluster)"
                )
        self._last = now, elapsed
