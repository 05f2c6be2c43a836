"""Line charts: bandwidth against size, efficiency against nodes, loss against step."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from reports.charts.figure import (
    Figure,
    Number,
    joined,
    percent,
    read_number,
    read_numbers,
    shown,
    size,
    whole,
)
from reports.charts.svg import BLUE, GREEN, GREY, ORANGE, RED, Plot, Point
from reports.record import number
from reports.sanitize import one_line

STRONG = ("the same work on more nodes (strong scaling)", GREEN, 2, "5 4")
WRONG_ROAD = "what the wrong road gives"


def busbw(series: dict[str, Any]) -> Figure:
    """Bus bandwidth in GB/s against message size in bytes.

    Keys: sizes, busbw; optional low, high (the ribbon), limit, line_rate, and control
    {sizes, busbw}: the same sweep, forced onto the management network.
    """
    sizes, speeds = read_numbers(series["sizes"]), read_numbers(series["busbw"])
    measured = joined(sizes, speeds)
    control = series.get("control") or {}
    wrong = joined(read_numbers(control.get("sizes", [])), read_numbers(control.get("busbw", [])))
    limit, rate = read_number(series.get("limit")), read_number(series.get("line_rate"))
    low, high = read_numbers(series.get("low") or []), read_numbers(series.get("high") or [])
    sentence = _busbw_sentence(measured, wrong, limit, rate)
    every = [x for x, _ in measured + wrong]
    top = max([y for _, y in measured + wrong] + whole([*high, limit, rate]))
    plot = Plot(sentence, (min(every), max(every)), (0, top * 1.12), log=True)
    ticks = [(value, size(value)) for value in plot.x.ticks()]
    plot.axes(ticks, "message size", "busbw, GB/s")
    _road(plot, limit, rate)
    plot.area(_ribbon(plot, joined(sizes, low), joined(sizes, high)), BLUE)
    plot.curve(measured, BLUE, 2.5)
    plot.curve(wrong, RED, 2, "2 3")
    _ends(plot, measured[-1], wrong[-1] if wrong else None, whole([limit, rate]))
    rows = _busbw_rows(sizes, [speeds, low, high], dict(wrong))
    header = ["size", "busbw GB/s", "low", "high", WRONG_ROAD]
    return Figure("Bus bandwidth by message size", sentence, plot.svg(), header, rows)


def _busbw_sentence(measured: list[Point], wrong: list[Point], limit: Number, rate: Number) -> str:
    """`376 GB/s at 8 GiB: 94 % of the line rate, above the limit of 340.`"""
    at, peak = max(measured, key=lambda point: point[1])
    parts = [f"Bus bandwidth peaks at {number(peak)} GB/s with {size(at)} messages"]
    if rate:
        parts.append(f"{percent(peak / rate, 0)} of the line rate of {number(rate)}")
    if limit is not None:
        parts.append(f"{'at or above' if peak >= limit else 'BELOW'} the limit of {number(limit)}")
    if wrong:
        best = max(y for _, y in wrong)
        parts.append(f"the wrong road gives {number(best)}")
    return ", ".join(parts) + "."


def _busbw_rows(
    sizes: list[Number], columns: list[list[Number]], wrong: dict[float, float]
) -> list[list[str]]:
    rows = []
    for at, count in enumerate(sizes):
        if count is not None:
            cells = [shown(column[at]) if at < len(column) else "-" for column in columns]
            rows.append([size(count), *cells, shown(wrong.get(count))])
    return rows


def _road(plot: Plot, limit: Number, rate: Number) -> None:
    """The band between the limit and the line rate: where the curve should end."""
    if limit is not None and rate is not None:
        left, right = plot.x.start, plot.x.end
        corners = [(left, limit), (right, limit), (right, rate), (left, rate)]
        plot.area([(x, plot.y(y)) for x, y in corners], GREEN, 0.12)
    if rate is not None:
        plot.level(rate, f"line rate {number(rate)}", GREY)
    if limit is not None:
        plot.level(limit, f"limit {number(limit)}", ORANGE)


def _ribbon(plot: Plot, low: list[Point], high: list[Point]) -> list[Point]:
    return [(plot.x(x), plot.y(y)) for x, y in [*low, *reversed(high)]]


def _clear(y: float, lines: list[float]) -> float:
    """The first place under a line where the middle of a word meets no other line."""
    places = [y + 18, y + 30, y + 42]
    return next((at for at in places if all(abs(at - 4 - line) > 9 for line in lines)), y + 18)


def _ends(plot: Plot, measured: Point, wrong: Point | None, levels: list[float]) -> None:
    """Names at the right ends: measured under its line, or over it where the line runs low."""
    x, y = plot.x(measured[0]), plot.y(measured[1])
    low = y > (plot.y.start + plot.y.end) / 2
    plot.dot(x, y, BLUE, 3)
    at = y - 8 if low else _clear(y, [plot.y(level) for level in levels])
    plot.text(x, at, f"measured {number(measured[1])}", "end", bold=True)
    if wrong:
        end = plot.y(wrong[1])
        clear = end - y > 24 or y - end > 24
        plot.dot(plot.x(wrong[0]), end, RED, 3)
        at = end - 7 if clear else min(y, end) - 23
        plot.text(plot.x(wrong[0]), at, f"{WRONG_ROAD}: {number(wrong[1])}", "end", size=12)


def efficiency(series: dict[str, Any]) -> Figure:
    """Efficiency against node count, 1 being as fast per node as one node alone.

    Keys: nodes, efficiency; optional low and high (the error bars), over (which runs they know of,
    in words), limit, tokens_per_second, tokens_per_gpu_step (one for all, or each rung's), and
    strong {nodes, efficiency, tokens_per_gpu_step}: the same work on more nodes (strong scaling).
    """
    nodes, shares = read_numbers(series["nodes"]), read_numbers(series["efficiency"])
    limit = read_number(series.get("limit"))
    low, high, rates = (
        read_numbers(series.get(key) or []) for key in ("low", "high", "tokens_per_second")
    )
    loads = _loads(series, len(nodes))
    rungs = [
        (n, share, least, most, load, rate)
        for n, share, least, most, load, rate in zip_longest(nodes, shares, low, high, loads, rates)
        if n is not None and share is not None
    ]
    points = [(n, share) for n, share, *_ in rungs]
    strong, dealt = _strong(series, {n for n, _ in points})
    sentence = _efficiency_sentence(points, limit)
    floor = min([y for _, y in points + strong] + whole([limit, *low]))
    bottom = max(0.0, int((floor - 0.04) * 10) / 10)
    top = max([1.0, *(y for _, y in points + strong), *whole(high)])
    plot = Plot(sentence, (points[0][0], points[-1][0]), (bottom, 1.04 * top), True, 26)
    plot.axes([(n, number(n)) for n, _ in points], "nodes", "efficiency", "%")
    plot.level(1.0, "ideal: as fast per node as one node", GREY)
    if limit is not None:
        plot.level(limit, f"limit {percent(limit, 0)}", ORANGE)
    if strong:
        plot.curve(strong, *STRONG[1:])
        _legend(plot, [("as much work for each GPU", BLUE, 2.5, ""), STRONG], limit)
    plot.curve(points, BLUE, 2.5)
    for n, share, least, most, *_ in rungs[1:]:
        plot.whisker(n, least, most, BLUE)
        plot.dot(plot.x(n), plot.y(share), BLUE)
        under = plot.y(share) + 18
        crossed = limit is not None and abs(under - 4 - plot.y(limit)) < 12
        at = under - 27 if crossed else under
        plot.text(plot.x(n) + 20, at, percent(share), "end", size=12, bold=True)
    rows = [
        [number(n), percent(share), _between(least, most), _tokens(load), shown(rate)]
        for n, share, least, most, load, rate in rungs
    ]
    over = one_line(series.get("over") or "")
    bars = f"95 % interval, {over}" if over else "95 % interval"
    header = ["nodes", "efficiency", bars, "tokens per GPU and step", "tokens per second"]
    if strong:
        header += ["the same work on more nodes", "its tokens per GPU and step"]
        again = dict(strong)
        rows = [
            [*row, percent(again[n]) if n in again else "-", _tokens(dealt.get(n))]
            for row, (n, *_) in zip(rows, rungs, strict=True)
        ]
    sentence += _workload(loads) + _strong_sentence(strong, dealt)
    sentence += f" Error bars are of the noise {over}." if over else ""
    return Figure("Scaling efficiency", sentence, plot.svg(), header, rows)


def _strong(series: dict[str, Any], rungs: set[float]) -> tuple[list[Point], dict[float, float]]:
    """The same work on more nodes: (efficiency by nodes, tokens of each GPU by nodes).

    Of these rungs alone; nothing where there are not two of them to compare.
    """
    same = series.get("strong") or {}
    nodes, shares, loads = (
        read_numbers(same.get(key) or []) for key in ("nodes", "efficiency", "tokens_per_gpu_step")
    )
    points = [(n, share) for n, share in joined(nodes, shares) if n in rungs]
    return points if len(points) > 1 else [], dict(joined(nodes, loads))


def _strong_sentence(strong: list[Point], dealt: dict[float, float]) -> str:
    if not strong:
        return ""
    (first, _), (nodes, share) = strong[0], strong[-1]
    word = "node" if first == 1 else "nodes"
    return (
        f" {number(nodes)} nodes do the same work {percent(share)} as efficiently as"
        f" {number(first)} {word}, with {_tokens(dealt.get(nodes))} tokens of each GPU."
    )


def _loads(series: dict[str, Any], rungs: int) -> list[Number]:
    """Tokens of each GPU in a step, on each rung."""
    tokens = series.get("tokens_per_gpu_step")
    return read_numbers(tokens) if isinstance(tokens, list) else [read_number(tokens)] * rungs


def _tokens(load: Number) -> str:
    return "-" if load is None else f"{load:.0f}"


def _between(least: Number, most: Number) -> str:
    return "-" if least is None or most is None else f"{percent(least)} to {percent(most)}"


def _efficiency_sentence(points: list[Point], limit: Number) -> str:
    nodes, share = points[-1]
    said = (
        f"At {number(nodes)} nodes the job runs at {percent(share)} of {number(nodes)} x one node"
    )
    if limit is None:
        return said + "."
    word = "at or above" if share >= limit else "BELOW"
    return f"{said}, {word} the limit of {percent(limit, 0)}."


def _workload(loads: list[Number]) -> str:
    """The load per GPU must be told, or the efficiency means nothing."""
    return f" Each GPU took {_tokens(loads[-1])} tokens a step." if loads and loads[-1] else ""


def loss(series: dict[str, Any]) -> Figure:
    """Loss of a run that was killed over that of one that never was.

    Keys: reference and resumed as [step, loss] pairs, killed_at, resumed_from.  The resumed
    pairs hold both lives: the steps up to the kill, then those from the checkpoint on.
    """
    reference, lives = _curve(series["reference"]), _lives(_curve(series["resumed"]))
    killed, resumed = read_number(series.get("killed_at")), read_number(series.get("resumed_from"))
    sentence = _loss_sentence(reference, lives[-1], killed, resumed)
    every = [*reference, *(point for life in lives for point in life)]
    low, high = min(y for _, y in every), max(y for _, y in every)
    pad = (high - low) * 0.08 or 1.0
    ends = (min(x for x, _ in every), max(x for x, _ in every))
    plot = Plot(sentence, ends, (low - pad, high + pad))
    plot.axes([(x, number(x)) for x in plot.x.ticks()], "step", "loss")
    plot.curve(reference, GREY, 5)
    for life in lives:
        plot.curve(life, BLUE, 1.8)
    if resumed is not None:
        plot.mark(resumed, f"resumed from {number(resumed)}", GREEN, left=True, row=1)
    if killed is not None:
        plot.mark(killed, f"killed at {number(killed)}", RED)
    _legend(plot, [("never killed", GREY, 5, ""), ("killed", BLUE, 1.8, "")])
    return Figure("Loss across the kill", sentence, plot.svg(), *_loss_table(reference, lives))


def _legend(
    plot: Plot, curves: list[tuple[str, str, float, str]], level: float | None = None
) -> None:
    """Curves that lie on each other, or cross, have their names apart from them, at the bottom.

    (words, colour, width, dash) of each.  Above the name of a `level` that is there.
    """
    top = plot.y.start - 26
    if level is not None and plot.y(level) > top - 12:
        top = plot.y(level) - 24 - 14 * (len(curves) - 1)
    for at, (words, color, width, dash) in enumerate(curves):
        y = top + 14 * at
        plot.line([(plot.x.start + 8, y), (plot.x.start + 28, y)], color, width, dash)
        plot.text(plot.x.start + 34, y + 4, words, size=12)


def _curve(pairs: Any) -> list[Point]:
    points = [(read_number(step), read_number(value)) for step, value in pairs]
    return joined([step for step, _ in points], [value for _, value in points])


def _lives(points: list[Point]) -> list[list[Point]]:
    """Cut where the step does not rise: there the run began again."""
    lives: list[list[Point]] = [[]]
    for point in points:
        if lives[-1] and point[0] <= lives[-1][-1][0]:
            lives.append([])
        lives[-1].append(point)
    return lives


def _loss_sentence(
    reference: list[Point], last: list[Point], killed: Number, resumed: Number
) -> str:
    known = dict(reference)
    gaps = [abs(value - known[step]) for step, value in last if step in known]
    start = f"Killed at step {shown(killed)}, resumed from step {shown(resumed)}: "
    if not gaps:
        return start + "no step of the resumed run can be compared."
    worst = max(gaps)
    if worst == 0:
        return start + f"all {len(gaps)} steps of the resumed run equal the run never killed."
    return start + f"the largest difference in {len(gaps)} steps is {number(worst)}."


def _loss_table(
    reference: list[Point], lives: list[list[Point]]
) -> tuple[list[str], list[list[str]]]:
    """Every step of the last life, at most 40 of them evenly spread."""
    known = dict(reference)
    every = max(1, len(lives[-1]) // 40)
    rows = [
        [number(step), f"{value:.6g}", *_difference(known.get(step), value)]
        for step, value in lives[-1][::every]
    ]
    return ["step", "resumed", "never killed", "difference"], rows


def _difference(known: Number, value: float) -> list[str]:
    return ["-", "-"] if known is None else [f"{known:.6g}", number(value - known)]
