"""Draws groups of bars, one row each: what a step lost, and the terms of a step.

A row has its name at the left, a bar from one value to another, and its value as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from reports.charts.canvas import THEME, WIDTH, open_chart, shorten, text_width
from reports.charts.figure import (
    Figure,
    Number,
    count_nodes,
    finite,
    percent,
    read_number,
    read_numbers,
)
from reports.numbers import number
from reports.sanitize import one_line

LOST_TITLE, TERMS_TITLE = "Lost time and its causes", "Where the time of a step goes"
MAX_PARTS = 6  # rows of a rung: the largest parts, the last row merges the others
MAX_TERMS = 12  # groups; the table has all of them
MIN_SHARE = 0.0005  # of a step: smaller parts are merged
ROW_HEIGHT, BAR_HEIGHT, HEADING_HEIGHT = 17, 11, 22  # units
NAME_CHARS = 36  # characters of a row's name, which then fits left of the bars
MIN_BAR = 1.5  # units: a value that is not zero can be seen
Parts = list[tuple[str, float]]  # name, share of a step


class Row(NamedTuple):
    """One bar. `end` is None if the value is missing: then only the text is drawn."""

    name: str
    start: float
    end: Number
    text: str


Group = tuple[str, list[Row]]  # heading, rows below it


def draw_lost_time(series: dict[str, Any]) -> Figure:
    """Draw which shares of its mean step each rung lost against one node.

    The parts of a rung follow each other, and end at the loss. A negative part goes back to the
    left: the other parts are larger than the loss.

    Keys, with one entry per rung: nodes, lost (1 - efficiency), parts (a list of {`said`: name
    of the part, share}), and sentences. The last sentence is the finding.
    """
    nodes, losses = finite(read_numbers(series["nodes"])), read_numbers(series["lost"])
    parts: list[Parts] = [
        [(one_line(part["said"]), read_number(part["share"]) or 0.0) for part in rung]
        for rung in series["parts"]
    ]
    sentence = one_line(series["sentences"][-1]).rstrip(".") + "."
    groups, rows = [], []
    for count, loss, rung in zip(nodes, losses, parts, strict=True):
        groups.append((f"{count_nodes(count)}: {percent(loss)} of a step", _waterfall(rung)))
        rows.append([number(count), "lost", percent(loss)])
        rows += [[number(count), name, percent(share, 2)] for name, share in rung]
    svg = draw_groups(LOST_TITLE, sentence, groups)
    return Figure(LOST_TITLE, sentence, svg, ["nodes", "part", "share of the step"], rows)


def _waterfall(parts: Parts) -> list[Row]:
    """Return a row for each large part, in order; each starts where the one above it ends."""
    by_size = sorted(parts, key=lambda part: -abs(part[1]))
    large = {part for part in by_size[: MAX_PARTS - 1] if abs(part[1]) >= MIN_SHARE}
    shown = [part for part in parts if part in large]
    rest = sum(share for _, share in parts) - sum(share for _, share in shown)
    rows, end = [], 0.0
    for name, share in [*shown, *([("smaller parts", rest)] if len(shown) < len(parts) else [])]:
        rows.append(Row(name, end, end + share, percent(share)))
        end += share
    return rows


def draw_terms(series: dict[str, Any]) -> Figure:
    """Draw the time of each term of a step on each rung, in ms: so growth with nodes is seen.

    Keys: nodes (one per rung), terms {name: [seconds on each rung]}.
    """
    nodes = finite(read_numbers(series["nodes"]))
    terms = {one_line(name): read_numbers(values) for name, values in series["terms"].items()}
    if {len(nodes)} != {*map(len, terms.values())}:
        raise ValueError("a term does not have one time for each rung")
    steps = [sum(finite(values[i] for values in terms.values())) for i in range(len(nodes))]
    sentence = _terms_sentence(nodes, terms, steps)
    groups = [
        (
            name,
            [Row(count_nodes(n), 0.0, s, _ms_text(s)) for n, s in zip(nodes, values, strict=True)],
        )
        for name, values in list(terms.items())[:MAX_TERMS]
    ]
    svg = draw_groups(TERMS_TITLE, sentence, groups)
    rows = [
        [number(count), _ms_text(steps[i]), *(_ms_text(values[i]) for values in terms.values())]
        for i, count in enumerate(nodes)
    ]
    return Figure(TERMS_TITLE, sentence, svg, ["nodes", "step", *terms], rows)


def _ms_text(seconds: Number) -> str:
    return "not measured" if seconds is None else f"{number(1000 * seconds)} ms"


def _terms_sentence(nodes: list[float], terms: dict[str, list[Number]], steps: list[float]) -> str:
    """Return how long a step takes on the last rung, and which term grew most since the first."""
    text = f"At {count_nodes(nodes[-1])} a step takes {_ms_text(steps[-1])}"
    ends = {name: (values[0], values[-1]) for name, values in terms.items()}
    grown = {name: b - a for name, (a, b) in ends.items() if a is not None and b is not None}
    name = max(grown, key=lambda key: grown[key], default="")
    if not name or grown[name] <= 0:
        return f"{text}; no term grows with the nodes."
    start = f"{text}, at {count_nodes(nodes[0])} {_ms_text(steps[0])}"
    return f"{start}; {name} grows most, by {_ms_text(grown[name])}."


def draw_groups(title: str, sentence: str, groups: Sequence[Group]) -> str:
    """Draw all groups on one scale, which begins at the smallest value, at most at zero."""
    rows = [row for _, members in groups for row in members]
    ends = [0.0, *finite(end for row in rows for end in (row.start, row.end))]
    low, high = min(ends), max(ends)
    left = max((text_width(shorten(row.name, NAME_CHARS)) for row in rows), default=0) + 8
    right = WIDTH - max((text_width(row.text) for row in rows), default=0) - 8
    unit = (right - left) / ((high - low) or 1)
    height = HEADING_HEIGHT * len(groups) + ROW_HEIGHT * len(rows) + 4
    with open_chart(title, sentence, height=height) as chart:
        y, zero = 0.0, left - low * unit
        for heading, members in groups:
            y += HEADING_HEIGHT
            chart.text(0, y - 5, shorten(heading, 60), weight="bold")
            chart.line([zero, zero], [y, y + ROW_HEIGHT * len(members)], THEME.soft, linewidth=1)
            for name, start, end, text in members:
                base = y + ROW_HEIGHT - 5
                chart.text(left - 6, base, shorten(name, NAME_CHARS), "right")
                place = zero
                if end is not None:
                    x, width = zero + min(start, end) * unit, abs(end - start) * unit
                    color = THEME.link if end >= start else THEME.passed
                    drawn = max(width, MIN_BAR) if width else 0
                    chart.box((x, base - BAR_HEIGHT + 1, drawn, BAR_HEIGHT), color)
                    place = x + drawn
                chart.text(max(place, zero) + 5, base, text, color=THEME.ink if end else THEME.soft)
                y += ROW_HEIGHT
    return chart.svg
