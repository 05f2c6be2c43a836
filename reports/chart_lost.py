"""What each rung lost against one node, and to what: parts that sum to the loss.

A part below nothing (the others are larger than the loss) is in the table only; the tick on the bar
is the loss itself.
"""

from __future__ import annotations

from typing import Any

from reports.figure import Figure, percent, read_number, read_numbers, whole
from reports.record import number
from reports.svg import PALETTE, WIDTH, Drawing, Scale, ink_on
from reports.untrusted import one_line

SEEN = 0.002  # of a step: what is less is in the table only
LONGEST = 56  # letters of a name that fit beside its colour


def lost(series: dict[str, Any]) -> Figure:
    """Shares of a rung's step that one node's does not have; with what it kept they are 100 %.

    Keys: nodes, lost (1 - efficiency of each), parts (for each a list of {said, share}), and
    sentences (one for each).
    """
    nodes, losses = whole(read_numbers(series["nodes"])), read_numbers(series["lost"])
    parts = [[(one_line(one["said"]), read_number(one["share"]) or 0.0) for one in each]
             for each in series["parts"]]  # fmt: skip
    names = list(dict.fromkeys(said for each in parts for said, share in each if share > SEEN))
    sentence = one_line(series["sentences"][-1]).rstrip(".") + "."
    drawing = Drawing(sentence, 30 + 34 * len(nodes) + 18 * len(names))
    reach = max(sum(share for _, share in each if share > SEEN) for each in parts)
    scale = Scale(0, max(reach, 0.01), 64, WIDTH - 64)
    drawing.text(64, 14, "share of the mean step that is lost", size=12)
    for at, (count, each) in enumerate(zip(nodes, parts, strict=True)):
        y = 24 + 34 * at
        drawing.text(58, y + 16, f"{number(count)} nodes", "end", size=12)
        end = _bar(drawing, scale, y, each, names)
        whole_loss = scale(max(losses[at] or 0.0, 0.0))
        drawing.line([(whole_loss, y - 3), (whole_loss, y + 27)], "currentColor", 1)
        drawing.text(max(end, whole_loss) + 6, y + 16, percent(losses[at]), size=12, bold=True)
    for at, name in enumerate(names):
        y = 34 + 34 * len(nodes) + 18 * at
        drawing.box(64, y, 11, 11, PALETTE[at % len(PALETTE)])
        drawing.text(80, y + 10, name[:LONGEST], size=12)
    return Figure("What is lost, and to what", sentence, drawing.svg(), *_table(nodes, parts))


def _bar(
    drawing: Drawing, scale: Scale, y: float, parts: list[tuple[str, float]], names: list[str]
) -> float:
    """One rung's parts side by side; where they end.  A share is written where it fits."""
    reached = 0.0
    for said, share in parts:
        if share <= SEEN:
            continue
        left, right = scale(reached), scale(reached + share)
        color = PALETTE[names.index(said) % len(PALETTE)]
        drawing.box(left, y, right - left, 24, color)
        if right - left > 34:
            middle = (left + right) / 2
            drawing.text(middle, y + 16, percent(share), "middle", ink_on(color), 12)
        reached += share
    return scale(reached)


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
