"""Draws SVG: canvas, axes of time, and the frame of a figure."""

from __future__ import annotations

import io
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from itertools import groupby, zip_longest
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar
from xml.etree import ElementTree

from reports.numbers import number
from reports.sanitize import one_line

Number = float | None
Point = tuple[float, float]


@dataclass(frozen=True)
class Figure:
    """One chart. `svg` is empty if nothing could be drawn; `rows` are the table below `header`."""

    title: str
    sentence: str
    svg: str = ""
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


def read_number(value: Any) -> Number:
    """Return a finite number; None for None, NaN and infinity. Raises ValueError otherwise."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, found {type(value).__name__}")
    return float(value)


def read_numbers(values: Any) -> list[Number]:
    """Read a list of numbers, None where one is missing. Raises ValueError for anything else."""
    if not isinstance(values, list):
        raise ValueError(f"expected a list of numbers, found {type(values).__name__}")
    return [read_number(value) for value in values]


def read_columns(data: dict[str, Any], *keys: str) -> list[list[Number]]:
    """Read lists of numbers; a missing key gives an empty list."""
    return [read_numbers(data.get(key) or []) for key in keys]


def finite(values: Iterable[Number]) -> list[float]:
    """Return the numbers without the missing ones (None)."""
    return [value for value in values if value is not None]


def zip_xy(xs: list[Number], ys: list[Number]) -> list[Point]:
    """Return the (x, y) points for which both coordinates are known."""
    return [(x, y) for x, y in zip(xs, ys, strict=False) if x is not None and y is not None]


def binary_size(count: float) -> str:
    """Format a message size in bytes with a binary unit: `64 MiB`."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    power = min(len(units) - 1, int(math.log2(count) // 10)) if count >= 1 else 0
    return f"{number(count / 1024**power)} {units[power]}"


def percent(share: Number, digits: int = 1) -> str:
    """Format a share of 1 as `91.4 %`, or `-` for None."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def or_dash(value: Number) -> str:
    """Format a number with three significant digits, or `-` for None."""
    return "-" if value is None else number(value)


def name_value(name: str, value: Number) -> str:
    """Return `limit 340`, or nothing without a value."""
    return "" if value is None else f"{name} {number(value)}"


def brief_number(value: float) -> str:
    """Format a number with three significant digits, without trailing zeros: `0.4`."""
    return f"{float(number(value)):.10g}"


# Colours of the page's light theme, by the name of their variable (templates/style.css).
THEME = SimpleNamespace(
    ink="#1b1f24", soft="#57606a", rule="#d5dbe1", passed="#146c2e", fail="#b3170d",
    marginal="#855300", unproven="#5a3fc0", link="#0a58a8",
)  # fmt: skip
NAMES = {color: name.replace("passed", "pass") for name, color in vars(THEME).items()}
VARIABLES = {color: f"var(--{name},{color})" for color, name in NAMES.items()}
WIDTH = 448  # units; a chart is at most 560 px wide, so a unit is then 1.25 px
FONT_SIZE = 12  # units: 15 px at 560 px, 9.7 px on a phone
SMALL_SIZE = 9.5  # units, where names are dense: 11.9 px at 560 px
PLOT_HEIGHT = 180  # units, of the data area of a line chart
ROW = 18  # units between lines of text
LEFT, RIGHT = 50, WIDTH - 16  # ends of a plot: its labels need the margins
SHEET_HEIGHT = PLOT_HEIGHT + 58  # of a line chart: axes with titles above and below
DOT = 6  # diameter of a dot in units; all markers are dots
STYLE = {
    "svg.fonttype": "none", "text.parse_math": False, "font.size": FONT_SIZE,
    "figure.facecolor": "none", "axes.facecolor": "none", "text.color": THEME.ink,
    "axes.edgecolor": THEME.soft, "xtick.color": THEME.soft, "ytick.color": THEME.soft,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True, "grid.color": THEME.rule,
    "xtick.major.size": 0, "ytick.major.size": 0, "lines.markersize": DOT, "lines.linewidth": 2,
}  # fmt: skip
PAINT = re.compile("(fill|stroke)(-width|-dasharray|-opacity)?|opacity")  # attributes of paths
TICK_STEPS = [1, 2, 5, 10]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
Box = tuple[float, float, float, float]  # left x, top y, width, height


class Key(NamedTuple):
    """Entry of a legend, left out if its label is empty. `mark` is line, dashes, box or frame."""

    label: str
    color: str
    mark: str = "line"


class Chart:
    """Sheet of WIDTH x `height` units, y downwards, below a legend that ends at `top`."""

    def __init__(self, sheet: Any, top: float, height: float) -> None:
        self.sheet, self.top, self.height = sheet, top, height
        self.svg = ""

    def plot(
        self, y_title: str, x_title: str = "", top: float = ROW, height: float = PLOT_HEIGHT
    ) -> Any:
        """Add axes for data, `top` units below the legend, with their titles."""
        bottom = self.height - self.top - top - height
        box, sizes = (LEFT, bottom, RIGHT - LEFT, height), (WIDTH, self.height) * 2
        axes = self.sheet.figure.add_axes([a / b for a, b in zip(box, sizes, strict=True)])
        axes.yaxis.get_major_locator().set_params(nbins=4, steps=TICK_STEPS)
        axes.yaxis.set_major_formatter(lambda value, _: brief_number(value))
        self.text(4, top - 6, y_title, color=THEME.soft)
        self.text((LEFT + RIGHT) / 2, top + height + 34, x_title, "center", color=THEME.soft)
        return axes

    def text(self, x: float, y: float, text: str, anchor: str = "left", **style: Any) -> None:
        """Write one line of text; y is its baseline, below the legend."""
        place = {"rotation_mode": "anchor", "ha": anchor, "va": "baseline"}
        style = {"size": FONT_SIZE, "color": THEME.ink, **place, **style}
        self.sheet.text(x, self.top + y, one_line(text), **style)

    def box(self, box: Box, color: str, edge: str = "none") -> None:
        """Draw a rectangle; y is below the legend."""
        from matplotlib.patches import Rectangle

        x, y, width, height = box
        place = (x, self.top + y)
        self.sheet.add_patch(Rectangle(place, width, height, facecolor=color, edgecolor=edge))

    def line(self, x: Sequence[float], y: Sequence[float], color: str, **style: Any) -> None:
        """Draw a line through points; y is below the legend."""
        self.sheet.plot(x, [self.top + each for each in y], color=color, **style)


@contextmanager
def open_chart(
    title: str, sentence: str, keys: Sequence[Key] = (), height: float = SHEET_HEIGHT
) -> Iterator[Chart]:
    """Yield a chart with a legend and `height` units below it. At the end, its `svg` is written.

    Settings of the user's matplotlib change nothing.
    """
    # No news of matplotlib's font cache and folders among the lines of the report.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    keys = [key for key in keys if key.label]
    places, top = _place_keys(keys)
    with warnings.catch_warnings(), matplotlib.rc_context():
        # A name may have letters that matplotlib's font lacks: the reader's browser has others.
        warnings.simplefilter("ignore")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**STYLE, "svg.hashsalt": f"{title}: {sentence}"})
        figure = Figure(figsize=(WIDTH / 72, (top + height) / 72))
        sheet = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(top + height, 0))
        sheet.set_axis_off()
        chart = Chart(sheet, top, top + height)
        for (x, y), key in zip(places, keys, strict=True):
            _draw_key(chart, x, y - top, key)
        yield chart
        written = io.StringIO()
        FigureCanvasSVG(figure).print_svg(written, metadata={"Date": None})
        chart.svg = _to_inert_svg(written.getvalue(), title, sentence, chart.height)


def _place_keys(keys: Sequence[Key]) -> tuple[list[tuple[float, float]], float]:
    """Return the (x, y) of the legend's entries in as few rows as they need, and their end."""
    places, x, y = list[tuple[float, float]](), 0.0, 14.0
    for key in keys:
        width = 34 + text_width(key.label)
        if x and x + width - 10 > WIDTH:
            x, y = 0.0, y + ROW
        places.append((x, y))
        x += width
    return places, y + 4 if keys else 0


def _draw_key(chart: Chart, x: float, y: float, key: Key) -> None:
    if key.mark in ("box", "frame"):
        paint = (key.color, "none") if key.mark == "box" else ("none", key.color)
        chart.box((x + 4, y - 10, 12, 11), *paint)
    else:
        style = "--" if key.mark == "dashes" else "-"
        chart.line([x, x + 18], [y - 4, y - 4], key.color, linestyle=style)
    chart.text(x + 22, y, key.label)


def _to_inert_svg(drawn: str, title: str, sentence: str, height: float) -> str:
    """Copy paths, dots and text of matplotlib's SVG. Paths that are painted alike become one."""
    # matplotlib wrote this text and escaped the names in it, so it declares no entity.
    marks = _read_marks(ElementTree.fromstring(drawn))  # noqa: S314 - our own text
    parts = []
    for (tag, attributes), group in groupby(marks, key=lambda mark: mark[:2]):
        contents = [content for _, _, content in group]
        if tag == "path":
            parts.append(f'<path d="{"".join(contents)}"{attributes}/>')
        else:
            parts += [f"<text{attributes}>{content}</text>" for content in contents]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img"'
        f' font-family="system-ui,sans-serif" font-size="{FONT_SIZE}" fill="{VARIABLES[THEME.ink]}"'
        f' stroke-linejoin="round"><title>{escape(one_line(title))}</title>'
        f"<desc>{escape(one_line(sentence))}</desc>{''.join(parts)}</svg>"
    )


def _read_marks(node: ElementTree.Element) -> Iterator[tuple[str, str, str]]:
    """Yield (tag, attributes, path or text) of what is visible below an element, in its order."""
    for child in node:
        items = [item.split(":", 1) for item in child.get("style", "").split(";") if ":" in item]
        style = {key.strip(): value.strip() for key, value in items}
        tag = child.tag.rpartition("}")[2]
        if tag == "path" and {style.get("fill"), style.get("stroke", "none")} != {"none"}:
            paint = {"fill": "none" if "stroke" in style else "#000000", **style}
            known = {k: VARIABLES.get(v, v) for k, v in paint.items() if PAINT.fullmatch(k)}
            path = re.sub(r"\s*([A-Za-z])\s*", r"\1", _round_numbers(child.attrib["d"].strip()))
            yield "path", _join_attributes(known), path
        elif tag == "use":
            color = style.get("fill", "#000000")
            paint = {"stroke": VARIABLES.get(color, color), "stroke-width": f"{DOT}"}
            place = _round_numbers(f"M{child.attrib['x']} {child.attrib['y']}")
            yield "path", _join_attributes({**paint, "stroke-linecap": "round"}), f"{place}h.01"
        elif tag == "text":
            yield "text", _text_attributes(child, style), escape(child.text or "")
        elif tag == "g":
            yield from _read_marks(child)


def _text_attributes(node: ElementTree.Element, style: dict[str, str]) -> str:
    """Return the attributes of a text, without those that the whole SVG has."""
    x, y = (_round_numbers(node.attrib[key]) for key in ("x", "y"))
    anchor, fill = style.get("text-anchor", "start"), style.get("fill", "#000000")
    # Before 3.9, matplotlib wrote weight and size into one property, `font`.
    font = " ".join(style.get(key, "") for key in ("font", "font-weight", "font-size"))
    size = re.search(r"([\d.]+)px", font)
    turn = re.match(r"rotate\((-?[\d.]+)", node.get("transform", ""))
    optional = {
        "text-anchor": "" if anchor == "start" else anchor,
        "fill": "" if fill == THEME.ink else VARIABLES.get(fill, fill),
        "font-size": size[1] if size and float(size[1]) != FONT_SIZE else "",
        "font-weight": "600" if re.search(r"\b(700|bold)\b", font) else "",
        "transform": f"rotate({turn[1]} {x} {y})" if turn and float(turn[1]) else "",
    }
    shown = {key: value for key, value in optional.items() if value}
    return _join_attributes({"x": x, "y": y, **shown})


def _join_attributes(values: dict[str, str]) -> str:
    return "".join(f' {key}="{escape(value)}"' for key, value in values.items())


def _round_numbers(text: str) -> str:
    return NUMBER.sub(lambda found: f"{round(float(found[0]), 1) + 0:g}", text)


def round_ticks(low: float, high: float) -> list[float]:
    """Return about six round values from low to high."""
    from matplotlib.ticker import MaxNLocator

    values = MaxNLocator(6, steps=TICK_STEPS).tick_values(low, high)
    return [float(value) for value in values if low <= value <= high]


def set_log_ticks(
    axes: Any, values: Sequence[float], labels: Sequence[str], below: Sequence[str] = ()
) -> None:
    """Make x a log2 axis over the rising values, with a label at each, and a second one below.

    Where they do not fit side by side, the last ones are kept.
    """
    low, high = values[0], values[-1]
    pad = (high / low) ** 0.06 if high > low else 2
    axes.set_xscale("log", base=2)
    axes.minorticks_off()
    axes.set_xlim(low / pad, high * pad)
    unit = (RIGHT - LEFT) / math.log2(pad**2 * high / low)
    longest = [max(pair, key=len) for pair in zip_longest(labels, below, fillvalue="")]
    kept = fit_ticks([math.log2(value / low) * unit for value in values], longest)
    axes.set_xticks([values[i] for i in kept], labels=[labels[i] for i in kept])
    place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    for i in kept if below else []:
        axes.annotate(below[i], (values[i], 0), (0, -32), ha="center", weight="bold", **place)


def draw_level(draw: Callable[..., Any], value: float | None, color: str) -> None:
    """Draw a dashed line by `axes.axhline` or `axes.axvline`; nothing without a value."""
    if value is not None:
        draw(value, color=color, linestyle="--", linewidth=1.5)


def text_width(text: str, size: float = FONT_SIZE) -> float:
    """Estimate the drawn width of text in units; the estimate is on the high side."""
    wide = {**dict.fromkeys("@%mMW", 0.9), **dict.fromkeys("wABCDEFGHKNOPQRSUVXYZ", 0.7)}
    return size * sum(1.0 if ord(char) > 0x2E7F else wide.get(char, 0.58) for char in text)


def fit_ticks(places: Sequence[float], labels: Sequence[str]) -> list[int]:
    """Select the labels, from the last, that fit side by side at their x; return their indexes."""
    kept, free = list[int](), float("inf")
    for i in reversed(range(len(labels))):
        half = text_width(labels[i]) / 2 + 3
        if places[i] + half <= free:
            kept.append(i)
            free = places[i] - half
    return kept[::-1]


def shorten(text: str, size: int) -> str:
    """Cut the middle out of a long name: hosts of a cluster differ at the start or at the end."""
    line, head, tail = one_line(text), size // 2 - 1, size - size // 2 - 1
    return line if len(line) <= size else f"{line[:head]}..{line[-tail:]}"


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
