"""Places times on the axis of the gang chart, and widens short periods to bars that can be seen."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from reports.charts.canvas import RIGHT

START = 92  # units: x of the first second; names are left of it
MIN_BAR = 4  # units: 5 px where a chart is 560 px wide, 3 px on a phone
T = TypeVar("T")


class TimeAxis(NamedTuple):
    """Times in seconds, from `first` to `last`, on a grid of `step` units."""

    first: float
    last: float
    step: float

    def __call__(self, time_s: float) -> float:
        """Return the x of a time; a time outside the axis is at its end."""
        share = (time_s - self.first) / ((self.last - self.first) or 1)
        return START + min(max(share, 0), 1) * (RIGHT - START)

    def to_bars(self, runs: Iterable[tuple[float, float, T]]) -> list[tuple[float, float, T]]:
        """Merge the runs (start, end, tag) of one lane on the grid, and return their x.

        A short run is widened to MIN_BAR. Equal neighbours are joined. A run is dropped only if
        earlier runs already cover its place.
        """
        kept: list[tuple[int, int, T]] = []
        last = math.ceil((RIGHT - START) / self.step)
        min_steps = math.ceil(MIN_BAR / self.step)
        for start, end, tag in runs:
            begin, stop = (round((self(time_s) - START) / self.step) for time_s in (start, end))
            first = max(0, min(begin, last - min_steps))
            left = max(first, kept[-1][1]) if kept else first
            right = max(min(stop, last), first + min_steps)
            if right <= left:
                continue
            if kept and kept[-1][1:] == (left, tag):
                left = kept.pop()[0]
            kept.append((left, right, tag))
        return [
            (START + left * self.step, min(START + right * self.step, RIGHT), tag)
            for left, right, tag in kept
        ]
