"""Charts of shares and areas: terms of a step, the pairs of nodes."""

from __future__ import annotations

from statistics import median
from typing import Any

from reports.charts.figure import Figure, Number, percent, read_number, read_numbers, shown, whole
from reports.charts.svg import ORANGE, PALETTE, SLOW_TO_FAST, WIDTH, Drawing, Scale, ink_on
from reports.record import number
from reports.sanitize import one_line

NAMED = 16  # up to so many nodes their names fit beside the map
VALUED = 8  # up to so many the values fit into it
SQUARE = 340  # side of the map


def terms(series: dict[str, Any]) -> Figure:
    """Where the time of a step went, on each rung: bars that sum to 100 %.

    Keys: nodes, terms {name: seconds per rung}; optional loss {name: share lost on the last
    rung, or one per rung}.
    """
    nodes = whole(read_numbers(series["nodes"]))
    named = {name: read_numbers(values) for name, values in series["terms"].items()}
    steps = [sum(whole(values[at] for values in named.values())) for at in range(len(nodes))]
    sentence = _terms_sentence(series, nodes, named, steps)
    drawing = Drawing(sentence, 44 + 34 * len(nodes) + 18 * ((len(named) + 2) // 3))
    scale = Scale(0, 1, 64, WIDTH - 54)
    for at, count in enumerate(nodes):
        y = 24 + 34 * at
        drawing.text(58, y + 16, f"{number(count)} node{'s' * (count != 1)}", "end", size=12)
        drawing.text(WIDTH - 48, y + 16, shown(steps[at], "s"), size=12)
        _stack(drawing, scale, y, [values[at] for values in named.values()], steps[at])
    drawing.text(64, 14, "share of the mean step", size=12)
    _keys(drawing, list(named), 34 + 34 * len(nodes))
    header = ["nodes", "step s", *(one_line(name) for name in named)]
    rows = [
        [number(n), number(steps[at]), *(_of(v[at], steps[at]) for v in named.values())]
        for at, n in enumerate(nodes)
    ]
    return Figure("Where the time of a step goes", sentence, drawing.svg(), header, rows)


def _stack(drawing: Drawing, scale: Scale, y: float, parts: list[Number], total: float) -> None:
    """One bar; a share is written on its part where it fits."""
    reached = 0.0
    for at, seconds in enumerate(parts):
        share = (seconds or 0.0) / (total or 1.0)
        left, right = scale(reached), scale(reached + share)
        color = PALETTE[at % len(PALETTE)]
        drawing.box(left, y, max(right - left, 0), 24, color)
        if right - left > 30:
            middle = (left + right) / 2
            drawing.text(middle, y + 16, percent(share, 0), "middle", ink_on(color), 12)
        reached += share


def _keys(drawing: Drawing, names: list[str], top: float) -> None:
    """The names of the colours, three to a line."""
    for at, name in enumerate(names):
        x, y = 64 + (at % 3) * 130, top + 18 * (at // 3)
        drawing.box(x, y, 11, 11, PALETTE[at % len(PALETTE)])
        drawing.text(x + 16, y + 10, one_line(name)[:18], size=12)


def _of(seconds: Number, total: float) -> str:
    return "-" if seconds is None else f"{number(seconds)} s ({percent(seconds / (total or 1))})"


def _terms_sentence(
    series: dict[str, Any], nodes: list[float], named: dict[str, list[Number]], steps: list[float]
) -> str:
    """`At 8 nodes 8.6 % is lost: 6.6 all-reduce, 1.4 data, 0.6 unattributed.`"""
    where = f"At {number(nodes[-1])} node{'s' * (nodes[-1] != 1)}"
    lost = {one_line(name): _last(share) for name, share in (series.get("loss") or {}).items()}
    if lost:
        total = sum(whole(lost.values()))
        parts = [f"{100 * (share or 0):.1f} {name}" for name, share in lost.items()]
        return f"{where} {percent(total)} is lost: {', '.join(parts)}."
    last = {one_line(name): values[-1] or 0.0 for name, values in named.items()}
    name = max(last, key=lambda one: last[one])
    share = percent(last[name] / (steps[-1] or 1), 0)
    return f"{where} a step takes {number(steps[-1])} s; the largest term is {name} with {share}."


def _last(share: Any) -> Number:
    return read_number(share[-1] if isinstance(share, list) else share)


def pairs(series: dict[str, Any]) -> Figure:
    """Bandwidth in GB/s of every pair of nodes; null between two nodes: not reachable.

    Keys: nodes (names), gbs (a square of rows).
    """
    names = [one_line(name) for name in series["nodes"]]
    table = [read_numbers(row) for row in series["gbs"]]
    ranked = _ranked(table)
    dead = [pair for pair in ranked if pair[0] is None]
    sentence = _pairs_sentence(names, ranked, len(dead))
    drawing = Drawing(sentence, _map_top(names) + SQUARE + 28)
    _map(drawing, names, table)
    rows = [
        [names[a], names[b], shown(v) if v is not None else "unreachable"] for v, a, b in ranked
    ]
    header = ["from", "to", "GB/s, slowest first"]
    return Figure("Bandwidth of every pair", sentence, drawing.svg(), header, rows[:20])


def _ranked(table: list[list[Number]]) -> list[tuple[Number, int, int]]:
    """Pairs of different nodes, unreachable ones first, then by bandwidth."""
    found = [(value, a, b) for a, row in enumerate(table) for b, value in enumerate(row) if a != b]
    return sorted(found, key=lambda pair: -1.0 if pair[0] is None else pair[0])


def _pairs_sentence(names: list[str], ranked: list[tuple[Number, int, int]], dead: int) -> str:
    alive = [pair for pair in ranked if pair[0] is not None]
    said = f"{dead} of {len(ranked)} directed pairs are unreachable" if dead else ""
    if not alive:
        return (said or "There is no pair to compare") + "."
    value, a, b = alive[0]
    middle = median(whole(pair[0] for pair in alive))
    slow = (
        f"the slowest of {len(alive)} is {names[a]} - {names[b]} at {number(value)} GB/s, "
        f"{percent((value or 0) / middle if middle else None, 0)} of the median {number(middle)}"
    )
    return (f"{said}; {slow}" if said else slow[0].upper() + slow[1:]) + "."


def _map_top(names: list[str]) -> float:
    return 20 if len(names) <= NAMED else 6


def _map(drawing: Drawing, names: list[str], table: list[list[Number]]) -> None:
    """The square: one path per colour, so that 64 x 64 cells stay small."""
    cell = SQUARE / max(len(table), 1)
    top, left = _map_top(names), 70.0
    values = whole(value for row in table for value in row)
    highest = max(values, default=1.0) or 1.0
    moves: dict[str, str] = {}
    for a, row in enumerate(table):
        for b, value in enumerate(row):
            if a == b:
                continue
            color = _shade(value, highest)
            moves[color] = moves.get(color, "") + _cell(left + b * cell, top + a * cell, cell)
            _written(drawing, left + b * cell, top + a * cell, cell, value, color, len(table))
    labels, drawing.parts = drawing.parts, []
    for color, path in moves.items():
        drawing.path(path, color)
    drawing.parts += labels
    _names(drawing, names, left, top, cell)
    _scale_key(drawing, left, top + SQUARE + 8, highest)


def _shade(value: Number, highest: float) -> str:
    if value is None:
        return ORANGE
    return SLOW_TO_FAST[min(len(SLOW_TO_FAST) - 1, int(value / highest * len(SLOW_TO_FAST)))]


def _cell(x: float, y: float, cell: float) -> str:
    inner = round(cell - (1 if cell > 12 else 0), 2)
    return f"M{x:.1f} {y:.1f}h{inner:g}v{inner:g}h-{inner:g}z"


def _written(
    drawing: Drawing, x: float, y: float, cell: float, value: Number, color: str, nodes: int
) -> None:
    """The value on its cell, where there is room."""
    if nodes > VALUED:
        return
    words = "none" if value is None else number(value)
    drawing.text(x + cell / 2, y + cell / 2 + 4, words, "middle", ink_on(color), 12)


def _names(drawing: Drawing, names: list[str], left: float, top: float, cell: float) -> None:
    if len(names) > NAMED:
        return
    for at, name in enumerate(names):
        middle = at * cell + cell / 2
        drawing.text(left - 6, top + middle + 4, name[:10], "end", size=12)
        short = name[-max(2, int(cell // 6)) :]
        drawing.text(left + middle, top - 6, short, "middle", size=10)


def _scale_key(drawing: Drawing, left: float, y: float, highest: float) -> None:
    """What the colours mean."""
    for at, color in enumerate(SLOW_TO_FAST):
        drawing.box(left + 50 + 14 * at, y, 14, 12, color)
    drawing.text(left + 44, y + 11, "0", "end", size=12)
    drawing.text(left + 182, y + 11, f"{number(highest)} GB/s", size=12)
    drawing.box(left + 264, y, 14, 12, ORANGE)
    drawing.text(left + 283, y + 11, "unreachable", size=12)
