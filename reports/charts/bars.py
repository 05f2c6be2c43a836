"""Draws the terms of a step as stacked bars, and the bandwidth of node pairs as a heat map."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import Any

from reports.charts.figure import Figure, Number, finite, percent, read_number, read_numbers
from reports.charts.svg import ORANGE, PALETTE, SLOW_TO_FAST, WIDTH, Drawing, Scale, ink_on
from reports.numbers import number
from reports.sanitize import one_line

MAX_NAMED_NODES = 16  # with more nodes, the names do not fit next to the map
MAX_VALUE_NODES = 8  # with more nodes, the values do not fit in the cells
MAP_SIZE = 340  # side of the map, in units of WIDTH


def draw_terms(series: dict[str, Any]) -> Figure:
    """Draw how the time of a step divides into terms. The bar of each rung sums to 100 %.

    Keys: nodes (one per rung), terms {name: [seconds on each rung]}; optional loss {name: share
    lost on the last rung, or a list with one share per rung}.
    """
    nodes = finite(read_numbers(series["nodes"]))
    times = {name: read_numbers(values) for name, values in series["terms"].items()}
    steps = [sum(finite(values[i] for values in times.values())) for i in range(len(nodes))]
    sentence = _terms_sentence(series, nodes, times, steps)
    drawing = Drawing(sentence, 44 + 34 * len(nodes) + 18 * ((len(times) + 2) // 3))
    scale = Scale(0, 1, 64, WIDTH - 54)
    for i, count in enumerate(nodes):
        y = 24 + 34 * i
        drawing.text(58, y + 16, f"{number(count)} node{'s' * (count != 1)}", "end")
        drawing.text(WIDTH - 48, y + 16, f"{number(steps[i])} s")
        _draw_bar(drawing, scale, y, [values[i] for values in times.values()], steps[i])
    drawing.text(64, 14, "share of the mean step")
    _draw_legend(drawing, list(times), 34 + 34 * len(nodes))
    header = ["nodes", "step s", *(one_line(name) for name in times)]
    rows = [
        [number(n), number(steps[i]), *(_share_text(v[i], steps[i]) for v in times.values())]
        for i, n in enumerate(nodes)
    ]
    return Figure("Where the time of a step goes", sentence, drawing.svg(), header, rows)


def _draw_bar(drawing: Drawing, scale: Scale, y: float, parts: list[Number], total: float) -> None:
    """Draw one bar. A part wider than 30 units shows its share of `total`, in percent."""
    end = 0.0
    for i, seconds in enumerate(parts):
        share = (seconds or 0.0) / (total or 1.0)
        left, right = scale(end), scale(end + share)
        color = PALETTE[i % len(PALETTE)]
        drawing.box(left, y, max(right - left, 0), 24, color)
        if right - left > 30:
            middle = (left + right) / 2
            drawing.text(middle, y + 16, percent(share, 0), "middle", ink_on(color))
        end += share


def _draw_legend(drawing: Drawing, names: list[str], top: float) -> None:
    """Draw the legend: the name of each colour, three names per line."""
    for i, name in enumerate(names):
        x, y = 64 + (i % 3) * 130, top + 18 * (i // 3)
        drawing.box(x, y, 11, 11, PALETTE[i % len(PALETTE)])
        drawing.text(x + 16, y + 10, one_line(name)[:18])


def _share_text(seconds: Number, total: float) -> str:
    return "-" if seconds is None else f"{number(seconds)} s ({percent(seconds / (total or 1))})"


def _terms_sentence(
    series: dict[str, Any], nodes: list[float], times: dict[str, list[Number]], steps: list[float]
) -> str:
    """Return `At 8 nodes 8.6 % is lost: 6.6 all-reduce, 1.4 data, 0.6 unattributed.`

    Without a loss in the series, the sentence names the largest term of the last rung instead.
    """
    start = f"At {number(nodes[-1])} node{'s' * (nodes[-1] != 1)}"
    lost = {one_line(name): _last(share) for name, share in (series.get("loss") or {}).items()}
    if lost:
        total = sum(finite(lost.values()))
        parts = [f"{100 * (share or 0):.1f} {name}" for name, share in lost.items()]
        return f"{start} {percent(total)} is lost: {', '.join(parts)}."
    last = {one_line(name): values[-1] or 0.0 for name, values in times.items()}
    name = max(last, key=lambda key: last[key])
    share = percent(last[name] / (steps[-1] or 1), 0)
    return f"{start} a step takes {number(steps[-1])} s; the largest term is {name} with {share}."


def _last(share: Any) -> Number:
    return read_number(share[-1] if isinstance(share, list) else share)


def draw_pairs(series: dict[str, Any]) -> Figure:
    """Draw the bandwidth of every pair of nodes in GB/s.

    Keys: nodes (n names), gbs (n rows of n values, row = source). A null between two different
    nodes means unreachable.
    """
    names = [one_line(name) for name in series["nodes"]]
    table = [read_numbers(row) for row in series["gbs"]]
    ranked = _rank_pairs(table)
    dead = [pair for pair in ranked if pair[0] is None]
    sentence = _pairs_sentence(names, ranked, len(dead))
    top = 20 if len(names) <= MAX_NAMED_NODES else 6
    drawing = Drawing(sentence, top + MAP_SIZE + 28)
    _draw_map(drawing, names, table, top)
    rows = [[names[a], names[b], "unreachable" if v is None else number(v)] for v, a, b in ranked]
    header = ["from", "to", "GB/s, slowest first"]
    return Figure("Bandwidth of every pair", sentence, drawing.svg(), header, rows[:20])


def _rank_pairs(table: list[list[Number]]) -> list[tuple[Number, int, int]]:
    """Return (GB/s, from, to) of all pairs, unreachable ones first, then from slow to fast."""
    links = [(value, a, b) for a, row in enumerate(table) for b, value in enumerate(row) if a != b]
    return sorted(links, key=lambda pair: -1.0 if pair[0] is None else pair[0])


def _pairs_sentence(names: list[str], ranked: list[tuple[Number, int, int]], dead: int) -> str:
    alive = [pair for pair in ranked if pair[0] is not None]
    unreachable = f"{dead} of {len(ranked)} directed pairs are unreachable" if dead else ""
    if not alive:
        return (unreachable or "There is no pair to compare") + "."
    value, a, b = alive[0]
    middle = median(finite(pair[0] for pair in alive))
    slowest = (
        f"the slowest of {len(alive)} is {names[a]} - {names[b]} at {number(value)} GB/s, "
        f"{percent((value or 0) / middle if middle else None, 0)} of the median {number(middle)}"
    )
    return (f"{unreachable}; {slowest}" if unreachable else slowest[0].upper() + slowest[1:]) + "."


def _draw_map(drawing: Drawing, names: list[str], table: list[list[Number]], top: float) -> None:
    """Draw the map with one SVG path per colour, to keep the SVG of 64 x 64 cells small."""
    cell = MAP_SIZE / max(len(table), 1)
    left = 70.0
    values = finite(value for row in table for value in row)
    highest = max(values, default=1.0) or 1.0
    moves = defaultdict[str, str](str)
    labels = []
    for a, row in enumerate(table):
        for b, value in enumerate(row):
            if a == b:
                continue
            color, x, y = _cell_color(value, highest), left + b * cell, top + a * cell
            moves[color] += _cell_path(x, y, cell)
            text = "none" if value is None else number(value)
            labels.append((x + cell / 2, y + cell / 2 + 4, text, "middle", ink_on(color)))
    for color, path in moves.items():
        drawing.path(path, color)
    for label in labels if len(table) <= MAX_VALUE_NODES else []:
        drawing.text(*label)
    _draw_names(drawing, names, left, top, cell)
    _draw_scale_key(drawing, left, top + MAP_SIZE + 8, highest)


def _cell_color(value: Number, highest: float) -> str:
    if value is None:
        return ORANGE
    return SLOW_TO_FAST[min(len(SLOW_TO_FAST) - 1, int(value / highest * len(SLOW_TO_FAST)))]


def _cell_path(x: float, y: float, cell: float) -> str:
    inner = round(cell - (1 if cell > 12 else 0), 2)
    return f"M{x:.1f} {y:.1f}h{inner:g}v{inner:g}h-{inner:g}z"


def _draw_names(drawing: Drawing, names: list[str], left: float, top: float, cell: float) -> None:
    if len(names) > MAX_NAMED_NODES:
        return
    for i, name in enumerate(names):
        middle = i * cell + cell / 2
        drawing.text(left - 6, top + middle + 4, name[:10], "end")
        short = name[-max(2, int(cell // 6)) :]
        drawing.text(left + middle, top - 6, short, "middle", size=10)


def _draw_scale_key(drawing: Drawing, left: float, y: float, highest: float) -> None:
    """Draw the colour scale, from 0 to `highest` GB/s, and the colour of unreachable pairs."""
    for i, color in enumerate(SLOW_TO_FAST):
        drawing.box(left + 50 + 14 * i, y, 14, 12, color)
    drawing.text(left + 44, y + 11, "0", "end")
    drawing.text(left + 182, y + 11, f"{number(highest)} GB/s")
    drawing.box(left + 264, y, 14, 12, ORANGE)
    drawing.text(left + 283, y + 11, "unreachable")
