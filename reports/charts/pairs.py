"""Draws the bandwidth of node pairs: a map of all pairs, or of many nodes the median of each."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from itertools import permutations
from statistics import median
from typing import Any

from reports.charts import canvas
from reports.charts.canvas import FONT_SIZE, THEME, Chart, Figure, Key, Number, open_chart, or_dash
from reports.groups import group_pairs
from reports.numbers import number
from reports.sanitize import capitalise, one_line

TITLE = "Bandwidth of every pair"
MAX_MAP_NODES = 32  # with more nodes, the names do not fit next to the map
MAX_VALUE_NODES = 8  # with more nodes, the values do not fit in the cells
MAX_ROWS = 20  # pairs in the table
MAP_SIZE, MAP_LEFT = 336, 92  # units: side of the map, and the room for names left of it
NAME_SIZE = 11  # characters of a name
LOWEST_SHARE = 0.5  # of the median: the darkest colour. So a node at 90 % has a colour of its own
# Dark is slow and pale is fast: slow pairs must be the most visible.
SLOW_TO_FAST = [
    "#08306b", "#08519c", "#2171b5", "#4292c6", "#6baed6", "#9ecae1", "#c6dbef", "#deebf7",
    "#eaf3fb",
]  # fmt: skip
Cells = dict[tuple[int, int], float]  # GB/s (0: unreachable) by indices of sender and receiver
Pair = tuple[float, int, int]  # GB/s (0: unreachable), index of the sender, of the receiver
DARK_COLORS = SLOW_TO_FAST[:3]  # white text is readable on these, black text on the others


def draw_pairs(series: dict[str, Any]) -> Figure:
    """Draw the bandwidth of every pair of nodes in GB/s.

    Keys: nodes (n names), cells (source, target and GB/s of each pair that was measured; both are
    places in nodes, and 0 means unreachable). Optional: typical, the GB/s of a sound link; without
    it the median stands for one.
    """
    names = [one_line(name) for name in series["nodes"]]
    cells = _read_cells(series["cells"], len(names))
    known = [*cells.values()]
    told = canvas.read_number(series.get("typical"))
    typical = told or _known_median(gbs for gbs in known if gbs > 0) or 0.0
    reference = f"{'a typical link' if told else 'the median'} ({number(typical)} GB/s)"
    worst = nsmallest(MAX_ROWS, ((gbs, a, b) for (a, b), gbs in cells.items()))
    sentence = _make_sentence(names, worst, known, typical, reference)
    header = ["from", "to", "GB/s, slowest first"]
    rows = [[names[a], names[b], number(gbs) if gbs > 0 else "unreachable"] for gbs, a, b in worst]
    if len(names) <= MAX_MAP_NODES:
        svg = _draw_map(sentence, names, cells, typical)
        return Figure(TITLE, sentence, svg, header, rows)
    sent, received = (_medians(cells, end, len(names)) for end in (0, 1))
    svg = _draw_medians(sentence, names, sent, received)
    header += ["median sent by `from`", "median received by `to`"]
    for row, (_, source, target) in zip(rows, worst, strict=True):
        row += [or_dash(sent[source]), or_dash(received[target])]
    for name, *medians in zip(names, sent, received, strict=True):
        rows.append([name, "all other nodes", "-", *map(or_dash, medians)])
    return Figure(TITLE, sentence, svg, header, rows)


def _read_cells(cells: Iterable[Any], count: int) -> Cells:
    """Return GB/s by (source, target).  Raises ValueError for a place that is none."""
    found: Cells = {}
    places = range(count)
    for source, target, gbs in cells:
        if source not in places or target not in places:
            raise ValueError(f"expected places below {count}, found {source!r} and {target!r}")
        value = canvas.read_number(gbs)
        if source != target and value is not None:
            found[source, target] = value
    return found


def _medians(cells: Cells, end: int, count: int) -> list[Number]:
    """Return the median of what each node sent (end 0) or received (end 1)."""
    of = group_pairs((pair[end], gbs) for pair, gbs in cells.items())
    return [_known_median(of.get(node, [])) for node in range(count)]


def _known_median(values: Iterable[Number]) -> Number:
    known = canvas.finite(values)
    return median(known) if known else None


def _make_sentence(
    names: list[str], worst: list[Pair], known: list[float], typical: float, reference: str
) -> str:
    parts, alive = [], sum(gbs > 0 for gbs in known)
    if dead := len(known) - alive:
        parts.append(f"unreachable: {dead} of {len(known)} directed pairs")
    for gbs, a, b in [pair for pair in worst if pair[0] > 0][:1]:
        parts.append(
            f"the slowest of {alive} pairs is {names[a]} -> {names[b]} at {number(gbs)} GB/s, "
            f"{canvas.percent(gbs / typical, 0)} of {reference}"
        )
    if missing := len(names) * (len(names) - 1) - len(known):
        pairs = "pair was" if missing == 1 else "pairs were"
        parts.append(f"{missing} directed {pairs} not measured")
    return f"{capitalise('; '.join(parts) or 'no pair was measured')}."


def _draw_map(sentence: str, names: list[str], cells: Cells, typical: float) -> str:
    """Draw a cell for each pair, by colour: a slow node is a dark row or a dark column."""
    cell = MAP_SIZE / max(len(names), 1)
    size = FONT_SIZE if cell > FONT_SIZE + 2 else canvas.SMALL_SIZE
    labels = [canvas.shorten(name, NAME_SIZE) for name in names]
    longest = max((canvas.text_width(label, size) for label in labels), default=0)
    turned = longest > cell - 4
    top = longest + 8 if turned else 18
    missing = len(cells) < len(names) * (len(names) - 1)
    keys = [
        Key("unreachable" if 0 in cells.values() else "", THEME.fail, "box"),
        Key("not measured" if missing else "", THEME.soft, "frame"),
    ]
    with open_chart(TITLE, sentence, keys, top + MAP_SIZE + 34) as chart:
        for i, label in enumerate(labels):
            middle = (i + 0.5) * cell + size / 3
            chart.text(MAP_LEFT - 6, top + middle, label, "right", size=size)
            x, anchor, angle = (middle, "left", 90) if turned else ((i + 0.5) * cell, "center", 0)
            chart.text(MAP_LEFT + x, top - 6, label, anchor, size=size, rotation=angle)
        _draw_cells(chart, len(names), cells, (cell, top), typical)
        if typical:
            _draw_scale(chart, top + MAP_SIZE + 10, typical)
    return chart.svg


def _draw_cells(
    chart: Chart, count: int, known: Cells, place: tuple[float, float], typical: float
) -> None:
    cell, top = place  # size of a cell, and where the first row begins
    pairs = permutations(range(count), 2)
    cells = [(_cell_color(known.get(pair), typical), *pair, known.get(pair)) for pair in pairs]
    for color, a, b, _ in sorted(cells, key=lambda item: item[:3]):  # so that paths can be joined
        edge = THEME.soft if color == "none" else "none"
        chart.box((MAP_LEFT + b * cell, top + a * cell, cell - 1, cell - 1), color, edge)
    for color, a, b, gbs in cells:
        if gbs and count <= MAX_VALUE_NODES:
            ink = "#ffffff" if color in DARK_COLORS else "#000000"
            x, y = MAP_LEFT + (b + 0.5) * cell, top + (a + 0.5) * cell + 4
            chart.text(x, y, number(gbs), "center", color=ink)


def _cell_color(gbs: Number, typical: float) -> str:
    if not gbs or gbs < 0:
        return "none" if gbs is None else THEME.fail
    share = (gbs / typical - LOWEST_SHARE) / (1 - LOWEST_SHARE)
    return SLOW_TO_FAST[min(len(SLOW_TO_FAST) - 1, max(0, int(share * len(SLOW_TO_FAST))))]


def _draw_scale(chart: Chart, y: float, typical: float) -> None:
    """Draw the colour scale, from half the median to the median."""
    left, lowest = MAP_LEFT + 110, f"<= {number(LOWEST_SHARE * typical)}"
    for i, color in enumerate(SLOW_TO_FAST):
        chart.box((left + 14 * i, y, 14, 12), color)
    chart.text(left - 6, y + 11, lowest, "right", color=THEME.soft)
    end = left + 14 * len(SLOW_TO_FAST) + 6
    chart.text(end, y + 11, f">= {number(typical)} GB/s", color=THEME.soft)


def _draw_medians(sentence: str, names: list[str], sent: list[Number], got: list[Number]) -> str:
    """Draw the medians of each node as two dots, in the order of the nodes; name the slowest."""
    keys = [Key("median sent by a node", THEME.link), Key("median received", THEME.marginal)]
    known = [(gbs, name) for gbs, name in zip([*sent, *got], names * 2, strict=True) if gbs]
    slowest = f"; slowest: {canvas.shorten(min(known)[1], 24)}" if known else ""
    with open_chart(TITLE, sentence, keys) as chart:
        axes = chart.plot("GB/s", f"{len(names)} nodes in order{slowest}")
        for values, key in zip((sent, got), keys, strict=True):
            axes.plot(values, "o", color=key.color)
        axes.set_ylim(0, 1.08 * max([gbs for gbs, _ in known], default=1))
        axes.set_xticks([])
    return chart.svg
