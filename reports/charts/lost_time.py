"""Draws how much of a step each rung lost against one node, and to which causes.

The lost parts and the kept share sum to the complete step. A negative part is drawn left of zero:
the other parts are then larger than the loss. The tick on the bar marks the loss itself.
"""

from __future__ import annotations

from typing import Any

from reports.charts.figure import Figure, finite, percent, read_number, read_numbers
from reports.charts.svg import GREY, PALETTE, WIDTH, Drawing, Scale, ink_on
from reports.numbers import number
from reports.sanitize import one_line

MIN_SHARE = 0.002  # of a step, less than 1 unit wide: smaller parts are merged into one
SMALLER, KEPT = "smaller parts", "kept"
MAX_NAME_CHARS = 56  # characters of a name that fit next to its colour box
Parts = list[tuple[str, float]]


def draw_lost_time(series: dict[str, Any]) -> Figure:
    """Draw which shares of its mean step each rung lost against one node, and which it kept.

    All shares of a rung sum to 100 %.

    Keys, with one entry per rung: nodes, lost (1 - efficiency), parts (a list of {`said`: name
    of the part, share}), and sentences. The last sentence is the finding.
    """
    nodes, losses = finite(read_numbers(series["nodes"])), read_numbers(series["lost"])
    parts = [[(one_line(part["said"]), read_number(part["share"]) or 0.0) for part in rung]
             for rung in series["parts"]]  # fmt: skip
    bars = [_parts_to_draw(rung) for rung in parts]
    labels = dict.fromkeys(label for rung in bars for label, _ in rung)
    names = sorted(labels, key=lambda name: (name == KEPT, name == SMALLER))
    sentence = one_line(series["sentences"][-1]).rstrip(".") + "."
    drawing = Drawing(sentence, 30 + 34 * len(nodes) + 18 * len(names))
    low = min(sum(share for _, share in rung if share < 0) for rung in bars)
    high = max(sum(share for _, share in rung if share > 0) for rung in bars)
    scale = Scale(low, max(high, 1.0), 64, WIDTH - 64)
    drawing.text(64, 14, "share of the mean step that is lost, and that is kept")
    for i, (count, rung) in enumerate(zip(nodes, bars, strict=True)):
        y = 24 + 34 * i
        drawing.text(58, y + 16, f"{number(count)} nodes", "end")
        end = _draw_bar(drawing, scale, y, rung, names)
        tick = scale(losses[i] or 0.0)
        drawing.line([(tick, y - 3), (tick, y + 27)], "currentColor", 1)
        drawing.text(end + 6, y + 16, percent(losses[i]), bold=True)
    for i, name in enumerate(names):
        y = 34 + 34 * len(nodes) + 18 * i
        drawing.box(64, y, 11, 11, *_part_color(name, names))
        drawing.text(80, y + 10, name[:MAX_NAME_CHARS])
    return Figure("Lost time and its causes", sentence, drawing.svg(), *_table_rows(nodes, parts))


def _parts_to_draw(parts: Parts) -> Parts:
    """Merge parts of at most MIN_SHARE into one, and append the kept share: the sum is 1."""
    large = [(name, share) for name, share in parts if abs(share) > MIN_SHARE]
    small = sum(share for _, share in parts) - sum(share for _, share in large)
    kept = 1 - sum(share for _, share in parts)
    return [*large, *([(SMALLER, small)] if small else []), (KEPT, kept)]


def _part_color(name: str, names: list[str]) -> tuple[str, float]:
    """Return colour and opacity; when the palette is used up, it repeats at half the opacity."""
    i = names.index(name)
    return (GREY, 0.3) if name == KEPT else (PALETTE[i % len(PALETTE)], 0.5 ** (i // len(PALETTE)))


def _draw_bar(drawing: Drawing, scale: Scale, y: float, parts: Parts, names: list[str]) -> float:
    """Draw the parts of one rung: positive ones right of zero, negative ones left.

    A part wider than 34 units shows its share. Returns the x of the right end.
    """
    ends = {True: 0.0, False: 0.0}
    for name, share in parts:
        start = ends[share > 0]
        ends[share > 0] += share
        left, right = sorted((scale(start), scale(start + share)))
        color, opacity = _part_color(name, names)
        drawing.box(left, y, right - left, 24, color, opacity)
        if right - left > 34:
            ink = ink_on(color) if opacity == 1 else "currentColor"
            drawing.text((left + right) / 2, y + 16, percent(share), "middle", ink)
    return scale(ends[True])


def _table_rows(nodes: list[float], parts: list[Parts]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: the kept share and all parts of each rung, none merged."""
    rows = []
    for count, rung in zip(nodes, parts, strict=True):
        kept = 1 - sum(share for _, share in rung)
        rows.append([number(count), "kept", percent(kept)])
        rows += [[number(count), name, percent(share, 2)] for name, share in rung]
    return ["nodes", "part", "share of the step"], rows
