"""What each rung lost against one node, and to what: parts that, with what was kept, are the step.

A part below nothing (others are larger than the loss) is drawn left of zero; the tick on the bar is
the loss itself.
"""

from __future__ import annotations

from typing import Any

from reports.charts.figure import Figure, percent, read_number, read_numbers, whole
from reports.charts.svg import GREY, PALETTE, WIDTH, Drawing, Scale, ink_on
from reports.record import number
from reports.sanitize import one_line

SEEN = 0.002  # of a step: parts that are less are drawn as one
SMALLER, KEPT = "smaller parts", "kept"
LONGEST = 56  # letters of a name that fit beside its colour
Parts = list[tuple[str, float]]


def lost(series: dict[str, Any]) -> Figure:
    """Shares of a rung's step that one node's does not have; with what it kept they are 100 %.

    Keys: nodes, lost (1 - efficiency of each), parts (for each a list of {said, share}), and
    sentences (one for each).
    """
    nodes, losses = whole(read_numbers(series["nodes"])), read_numbers(series["lost"])
    parts = [[(one_line(one["said"]), read_number(one["share"]) or 0.0) for one in each]
             for each in series["parts"]]  # fmt: skip
    bars = [_drawn(each) for each in parts]
    names = list(dict.fromkeys(said for each in bars for said, _ in each))
    names = [*(name for name in names if name not in (SMALLER, KEPT)),
             *(name for name in (SMALLER, KEPT) if name in names)]  # fmt: skip
    sentence = one_line(series["sentences"][-1]).rstrip(".") + "."
    drawing = Drawing(sentence, 30 + 34 * len(nodes) + 18 * len(names))
    low = min(sum(share for _, share in each if share < 0) for each in bars)
    high = max(sum(share for _, share in each if share > 0) for each in bars)
    scale = Scale(low, max(high, 1.0), 64, WIDTH - 64)
    drawing.text(64, 14, "share of the mean step: what is lost, and what is kept", size=12)
    for at, (count, each) in enumerate(zip(nodes, bars, strict=True)):
        y = 24 + 34 * at
        drawing.text(58, y + 16, f"{number(count)} nodes", "end", size=12)
        end = _bar(drawing, scale, y, each, names)
        tick = scale(losses[at] or 0.0)
        drawing.line([(tick, y - 3), (tick, y + 27)], "currentColor", 1)
        drawing.text(end + 6, y + 16, percent(losses[at]), size=12, bold=True)
    for at, name in enumerate(names):
        y = 34 + 34 * len(nodes) + 18 * at
        drawing.box(64, y, 11, 11, *_paint(name, names))
        drawing.text(80, y + 10, name[:LONGEST], size=12)
    return Figure("What is lost, and to what", sentence, drawing.svg(), *_table(nodes, parts))


def _drawn(parts: Parts) -> Parts:
    """The parts that are drawn, what is too little in one; then what was kept: their sum is 1."""
    large = [(said, share) for said, share in parts if abs(share) > SEEN]
    rest = sum(share for _, share in parts) - sum(share for _, share in large)
    kept = 1 - sum(share for _, share in parts)
    return [*large, *([(SMALLER, rest)] if rest else []), (KEPT, kept)]


def _paint(name: str, names: list[str]) -> tuple[str, float]:
    """Colour and opacity: where the colours are used up they come again, paler."""
    at = names.index(name)
    return (
        (GREY, 0.3) if name == KEPT else (PALETTE[at % len(PALETTE)], 0.5 ** (at // len(PALETTE)))
    )


def _bar(drawing: Drawing, scale: Scale, y: float, parts: Parts, names: list[str]) -> float:
    """One rung's parts side by side, from zero on to either side; where they end on the right.

    A share is written where it fits.
    """
    reached = {True: 0.0, False: 0.0}
    for said, share in parts:
        start = reached[share > 0]
        reached[share > 0] += share
        left, right = sorted((scale(start), scale(start + share)))
        color, opacity = _paint(said, names)
        drawing.box(left, y, right - left, 24, color, opacity)
        if right - left > 34:
            ink = ink_on(color) if opacity == 1 else "currentColor"
            drawing.text((left + right) / 2, y + 16, percent(share), "middle", ink, 12)
    return scale(reached[True])


def _table(
    nodes: list[float], parts: list[list[tuple[str, float]]]
) -> tuple[list[str], list[list[str]]]:
    """Every part of every rung, also the least and those below nothing; and what was kept."""
    rows = []
    for count, each in zip(nodes, parts, strict=True):
        kept = 1 - sum(share for _, share in each)
        rows.append([number(count), "kept", percent(kept)])
        rows += [[number(count), said, percent(share, 2)] for said, share in each]
    return ["nodes", "part", "share of the step"], rows
