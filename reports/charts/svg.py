"""Builds small SVG drawings without a library: axes, lines, bars, hatching.

Drawings scale with their box and use the text colour of the page (`currentColor`). Colours are
presentation attributes. So drawings work in dark mode, in print, and under a content security
policy that forbids inline styles. No element has an id, so one page can contain many drawings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import product
from typing import NamedTuple, TypeVar

from reports.numbers import number
from reports.sanitize import one_line

# Palette of Okabe and Ito, which colour-blind readers can distinguish.
BLUE, SKY, GREEN, ORANGE, RED, PINK, YELLOW, GREY = (
    "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#f0e442", "#8a8a8a",
)  # fmt: skip
PALETTE = [BLUE, SKY, GREEN, ORANGE, PINK, YELLOW, RED]
JOB_COLORS = [BLUE, GREEN, SKY, PINK, YELLOW]  # without orange and red, which mark problems
# Dark is slow and pale is fast: slow pairs must be the most visible.
SLOW_TO_FAST = [
    "#08306b", "#08519c", "#2171b5", "#4292c6", "#6baed6", "#9ecae1", "#c6dbef", "#deebf7",
    "#eaf3fb",
]  # fmt: skip
DARK_COLORS = {BLUE, GREEN, *SLOW_TO_FAST[:3]}

WIDTH, HEIGHT = 480, 260
FONT_SIZE = 12  # units of WIDTH; marks and legends are laid out for text of this size
Point = tuple[float, float]
T = TypeVar("T")


@dataclass(frozen=True)
class Scale:
    """Linear or log2 map from values (low to high) to drawing units (start to end)."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self._transform(self.low), self._transform(self.high)
        share = (self._transform(value) - low) / ((high - low) or 1.0)
        return round(self.start + share * (self.end - self.start), 1)

    def _transform(self, value: float) -> float:
        return math.log2(max(value, 1e-12)) if self.log else value

    def ticks(self, count: int = 5) -> list[float]:
        """Return round values inside the scale, about `count` of them.

        Values are powers of two on a log scale, else multiples of 1, 2 or 5 times a power of ten.
        """
        if self.log:
            first, last = math.ceil(math.log2(self.low)), math.floor(math.log2(self.high))
            stride = max(1, math.ceil((last - first) / count))
            return [2.0**power for power in range(first, last + 1, stride)]
        step = round_step((self.high - self.low) / count)
        lowest = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(lowest, math.floor(self.high / step + 1e-9) + 1)]


def round_step(rough: float) -> float:
    """Return the smallest of 1, 2, 5, 10 times a power of ten that is at least `rough`."""
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)


class Drawing:
    """Canvas of `WIDTH` units. All text on it is sanitized and escaped."""

    def __init__(self, title: str, height: float = HEIGHT) -> None:
        self.title = title
        self.height = height
        self.parts: list[str] = []

    def line(
        self, points: list[Point], color: str, width: float = 2, dash: str = "", opacity: float = 1
    ) -> None:
        """Draw a polyline through the points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        extra = f' stroke-dasharray="{dash}"' if dash else ""
        extra += f' stroke-opacity="{opacity:g}"' if opacity < 1 else ""
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width:g}"'
            f' stroke-linejoin="round"{extra}/>'
        )

    def area(self, points: Sequence[Point], color: str, opacity: float = 0.2) -> None:
        """Draw a filled polygon."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(f'<polygon points="{path}" fill="{color}" fill-opacity="{opacity:g}"/>')

    def box(
        self, x: float, y: float, width: float, height: float, color: str, opacity: float = 1.0
    ) -> None:
        """Draw a filled rectangle; (x, y) is its top left corner."""
        extra = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
            f' fill="{color}"{extra}/>'
        )

    def path(self, moves: str, color: str) -> None:
        """Draw a filled path; `moves` is its `d` attribute."""
        self.parts.append(f'<path d="{moves}" fill="{color}"/>')

    def hatch(
        self, frames: Sequence[Point], y: float, height: float, clear: Sequence[Point] = ()
    ) -> None:
        """Draw frames (left x, right x) at `y`, hatched except in the intervals of `clear`."""
        moves = [rect_path(left, y, right - left, height) for left, right in frames]
        gaps = sorted(clear)
        for left, right in frames:
            for end, start in gaps:
                if left < start and end < right:
                    moves.append(_hatch_path(left, min(end, right), y + height, height))
                    left = start
            moves.append(_hatch_path(left, right, y + height, height))
        self.parts.append(f'<path d="{"".join(moves)}" fill="none" stroke="{GREY}"/>')

    def dot(self, x: float, y: float, color: str, radius: float = 3.5) -> None:
        """Draw a filled circle."""
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{color}"/>')

    def text(
        self,
        x: float,
        y: float,
        label: object,
        anchor: str = "start",
        color: str = "currentColor",
        size: float = FONT_SIZE,
        bold: bool = False,
    ) -> None:
        """Write one line of text; `anchor` is start, middle or end."""
        extra = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{color}"'
            f' font-size="{size:g}"{extra}>{escape(one_line(label))}</text>'
        )

    def svg(self) -> str:
        """Return the complete SVG element, with a title for screen readers."""
        title = escape(one_line(self.title))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:g}"'
            f' role="img" aria-label="{title}" font-family="system-ui, sans-serif">'
            f"<title>{title}</title>{''.join(self.parts)}</svg>"
        )


class Plot(Drawing):
    """Drawing with two axes. `x` and `y` are the (low, high) values; `log` makes x a log2 scale."""

    def __init__(
        self, title: str, x: tuple[float, float], y: tuple[float, float], log: bool = False
    ) -> None:
        super().__init__(title)
        self.x = Scale(*x, 48, WIDTH - 26, log)
        self.y = Scale(*y, HEIGHT - 40, 20)

    def axes(self, xs: list[tuple[float, str]], xlabel: str, ylabel: str, unit: str = "") -> None:
        """Draw axes, horizontal grid lines and labels. `xs` are the (value, label) ticks of x."""
        for value in self.y.ticks():
            y = self.y(value)
            self.line([(self.x.start, y), (self.x.end, y)], "currentColor", 1, opacity=0.15)
            label = f"{number(round(value * 100, 6))} %" if unit == "%" else f"{round(value, 9):g}"
            self.text(self.x.start - 6, y + 4, label, "end")
        for value, label in xs:
            self.text(self.x(value), self.y.start + 16, label, "middle")
        self.line([(self.x.start, self.y.start), (self.x.end, self.y.start)], "currentColor", 1)
        self.text((self.x.start + self.x.end) / 2, HEIGHT - 6, xlabel, "middle")
        self.text(4, 11, ylabel)

    def level(self, value: float, label: str, color: str) -> None:
        """Draw a horizontal line with its label at the left end."""
        y = self.y(value)
        self.line([(self.x.start, y), (self.x.end, y)], color, 1.5, "6 4")
        self.text(self.x.start + 6, y - 4, label)

    def mark(self, value: float, label: str, color: str, left: bool = False, row: int = 0) -> None:
        """Draw a vertical line with its label at the top, on the side that has room.

        `left` prefers the left side. `row` counts label lines down from the top.
        """
        x = self.x(value)
        self.line([(x, self.y.end), (x, self.y.start)], color, 1.5, "4 3")
        share = (x - self.x.start) / (self.x.end - self.x.start)
        left = share > 0.75 or (left and share > 0.25)
        anchor, shift = ("end", -5) if left else ("start", 5)
        self.text(x + shift, self.y.end + 10 + 14 * row, label, anchor)

    def whisker(self, x: float, low: float | None, high: float | None, color: str) -> None:
        """Draw an error bar from low to high, with caps; draw nothing if an end is unknown."""
        if low is None or high is None:
            return
        center, ends = self.x(x), (self.y(low), self.y(high))
        self.line([(center, ends[0]), (center, ends[1])], color, 1.5)
        for y in ends:
            self.line([(center - 4, y), (center + 4, y)], color, 1.5)

    def curve(self, points: Sequence[Point], color: str, width: float = 2, dash: str = "") -> None:
        """Draw a line through points given as values of the axes."""
        self.line([(self.x(x), self.y(y)) for x, y in points], color, width, dash)


def to_grid(
    runs: Iterable[tuple[float, float, T]], ends: Point, step: float, min_width: float = 0
) -> list[tuple[float, float, T]]:
    """Merge the runs (left x, right x, tag) of one lane on a grid of `step`.

    A short run is widened to one step, or to `min_width`. Equal neighbours are joined. A run is
    dropped only if earlier runs already cover its place.
    """
    kept: list[tuple[int, int, T]] = []
    zero, width = ends[0], ends[1] - ends[0]
    last, min_steps = math.ceil(width / step), max(1, math.ceil(min_width / step))
    for start, end, tag in runs:
        first = max(0, min(round((start - zero) / step), last - min_steps))
        left = max(first, kept[-1][1]) if kept else first
        right = max(min(round((end - zero) / step), last), first + min_steps)
        if right <= left:
            continue
        if kept and kept[-1][1:] == (left, tag):
            left = kept.pop()[0]
        kept.append((left, right, tag))
    return [
        (zero + left * step, min(zero + right * step, ends[1]), tag) for left, right, tag in kept
    ]


def rect_path(x: float, y: float, width: float, height: float) -> str:
    """Return a rectangle as path moves; many in one path need a third of the bytes of boxes."""
    return f"M{x:g} {y:g}h{width:g}v{height:g}h{-width:g}z"


def _hatch_path(left: float, right: float, base: float, height: float, step: int = 7) -> str:
    """Return rising diagonals cut at left and right; adjacent frames share one grid of `step`."""
    moves = ""
    x = (left - height) // step * step
    while x < right:
        start, end = max(x, left), min(x + height, right)
        if end > start:
            rise = round(end - start, 2)
            moves += f"M{start:g} {round(base - start + x, 2):g}l{rise:g} {-rise:g}"
        x += step
    return moves


def text_width(text: str) -> float:
    """Estimate the drawn width of text, in units of WIDTH; the estimate is on the high side."""
    return FONT_SIZE * sum(1.0 if ord(char) > 0x2E7F else 0.58 for char in text)


class Marker(NamedTuple):
    """Vertical line with a label at the top. Level 0 is the lowest row of labels."""

    x: float
    label: str
    level: int = 0
    anchor: str = "start"

    @property
    def extent(self) -> Point:
        """Left and right x of the label."""
        size = text_width(self.label) + 6
        return (self.x, self.x + size) if self.anchor == "start" else (self.x - size, self.x)

    def is_clear_of(self, other: Marker) -> bool:
        """Return True if neither label overlaps the other label or is crossed by the other line."""
        (left, right), (start, end) = self.extent, other.extent
        if self.level == other.level:
            return right <= start or end <= left
        if self.level > other.level:
            return not start < self.x < end
        return not left < other.x < right


def place_marks(
    marks: Sequence[tuple[float, str]], max_count: int, levels: int, fixed: Sequence[Marker] = ()
) -> list[Marker]:
    """Place the marks whose labels fit; `marks` are (x, label) pairs from left to right.

    Of more than `max_count` marks, only every n-th is tried. `fixed` marks stay and come first in
    the returned list.

    Labels to the right of their line are placed first, from right to left, each on the lowest free
    level: then no line crosses a label. The remaining marks follow from left to right, for the same
    reason.
    """
    placed = list(fixed)
    chosen = list(marks[:: math.ceil(len(marks) / max_count) or 1]) if max_count > 0 else []
    unplaced = [mark for mark in reversed(chosen) if not _place(placed, *mark, levels, ["start"])]
    for x, label in reversed(unplaced):
        _place(placed, x, label, levels, ["end", "start"])
    return placed


def _place(placed: list[Marker], x: float, label: str, levels: int, anchors: Sequence[str]) -> bool:
    for level, anchor in product(range(levels), anchors):
        mark = Marker(x, label, level, anchor)
        left, right = mark.extent
        if left >= 0 and right <= WIDTH and all(map(mark.is_clear_of, placed)):
            placed.append(mark)
            return True
    return False


def ink_on(color: str) -> str:
    """Return black or white, whichever is readable on `color`."""
    return "#ffffff" if color in DARK_COLORS else "#000000"
