"""Draws line charts: bus bandwidth by message size, efficiency by nodes, loss by step."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from reports.charts.figure import (
    Figure,
    Number,
    binary_size,
    finite,
    or_dash,
    percent,
    read_number,
    read_numbers,
    zip_xy,
)
from reports.charts.svg import BLUE, GREEN, GREY, ORANGE, RED, Plot, Point
from reports.numbers import number
from reports.sanitize import one_line

STRONG_CURVE = ("the same work on more nodes (strong scaling)", GREEN, 2, "5 4")
WRONG_NETWORK = "busbw on the wrong network"
# Nodes, efficiency, low and high end of its interval, tokens per GPU and step, tokens per second.
Rung = tuple[float, float, Number, Number, Number, Number]


def _read_columns(data: dict[str, Any], *keys: str) -> list[list[Number]]:
    """Read optional lists of numbers; a missing key gives an empty list."""
    return [read_numbers(data.get(key) or []) for key in keys]


def draw_busbw(series: dict[str, Any]) -> Figure:
    """Draw bus bandwidth in GB/s against message size in bytes.

    Keys: sizes, busbw; optional low, high (edges of the ribbon), limit, line_rate (all in GB/s),
    and control {sizes, busbw}: the same sweep, forced onto the management network.
    """
    sizes, speeds = read_numbers(series["sizes"]), read_numbers(series["busbw"])
    measured = zip_xy(sizes, speeds)
    control = series.get("control") or {}
    wrong = zip_xy(read_numbers(control.get("sizes", [])), read_numbers(control.get("busbw", [])))
    limit, rate = read_number(series.get("limit")), read_number(series.get("line_rate"))
    low, high = _read_columns(series, "low", "high")
    sentence = _busbw_sentence(measured, wrong, limit, rate)
    all_sizes = [x for x, _ in measured + wrong]
    top = max([y for _, y in measured + wrong] + finite([*high, limit, rate]))
    plot = Plot(sentence, (min(all_sizes), max(all_sizes)), (0, top * 1.12), log=True)
    ticks = [(value, binary_size(value)) for value in plot.x.ticks()]
    plot.axes(ticks, "message size", "busbw, GB/s")
    _draw_limit_band(plot, limit, rate)
    ribbon = [*zip_xy(sizes, low), *reversed(zip_xy(sizes, high))]
    plot.area([(plot.x(x), plot.y(y)) for x, y in ribbon], BLUE)
    plot.curve(measured, BLUE, 2.5)
    plot.curve(wrong, RED, 2, "2 3")
    _label_ends(plot, measured[-1], wrong[-1] if wrong else None, finite([limit, rate]))
    rows = _busbw_rows(sizes, [speeds, low, high], dict(wrong))
    header = ["size", "busbw GB/s", "low", "high", WRONG_NETWORK]
    return Figure("Bus bandwidth by message size", sentence, plot.svg(), header, rows)


def _busbw_sentence(measured: list[Point], wrong: list[Point], limit: Number, rate: Number) -> str:
    """Return a sentence: peak, its share of the line rate, relation to the limit, control peak."""
    peak_size, peak = max(measured, key=lambda point: point[1])
    parts = [f"Bus bandwidth peaks at {number(peak)} GB/s with {binary_size(peak_size)} messages"]
    if rate:
        parts.append(f"{percent(peak / rate, 0)} of the line rate of {number(rate)}")
    if limit is not None:
        parts.append(f"{'at or above' if peak >= limit else 'BELOW'} the limit of {number(limit)}")
    if wrong:
        best = max(y for _, y in wrong)
        parts.append(f"the wrong network reaches {number(best)}")
    return ", ".join(parts) + "."


def _busbw_rows(
    sizes: list[Number], columns: list[list[Number]], wrong: dict[float, float]
) -> list[list[str]]:
    return [
        [binary_size(count), *map(or_dash, cells), or_dash(wrong.get(count))]
        for count, *cells in zip_longest(sizes, *columns)
        if count is not None
    ]


def _draw_limit_band(plot: Plot, limit: Number, rate: Number) -> None:
    """Draw lines at the limit and the line rate. The curve should end in the band between them."""
    if limit is not None and rate is not None:
        left, right = plot.x.start, plot.x.end
        corners = [(left, limit), (right, limit), (right, rate), (left, rate)]
        plot.area([(x, plot.y(y)) for x, y in corners], GREEN, 0.12)
    if rate is not None:
        plot.level(rate, f"line rate {number(rate)}", GREY)
    if limit is not None:
        plot.level(limit, f"limit {number(limit)}", ORANGE)


def _free_height(y: float, lines: list[float]) -> float:
    """Return the first baseline below `y` where no line crosses the text, else y + 18."""
    places = [y + 18, y + 30, y + 42]
    return next((pos for pos in places if all(abs(pos - 4 - line) > 9 for line in lines)), y + 18)


def _label_ends(plot: Plot, measured: Point, wrong: Point | None, levels: list[float]) -> None:
    """Label the right ends of both curves.

    The label of the measured curve is below its end, or above it in the lower half of the plot.
    """
    x, y = plot.x(measured[0]), plot.y(measured[1])
    low = y > (plot.y.start + plot.y.end) / 2
    plot.dot(x, y, BLUE, 3)
    text_y = y - 8 if low else _free_height(y, [plot.y(level) for level in levels])
    plot.text(x, text_y, f"measured {number(measured[1])}", "end", size=13, bold=True)
    if wrong:
        end = plot.y(wrong[1])
        apart = end - y > 24 or y - end > 24
        plot.dot(plot.x(wrong[0]), end, RED, 3)
        text_y = end - 7 if apart else min(y, end) - 23
        plot.text(plot.x(wrong[0]), text_y, f"{WRONG_NETWORK}: {number(wrong[1])}", "end")


def draw_efficiency(series: dict[str, Any]) -> Figure:
    """Draw efficiency against node count; 1 is the speed per node of one node alone.

    Keys: nodes, efficiency; optional low and high (error bars), over (text: which noise the error
    bars cover), limit, tokens_per_second, tokens_per_gpu_step (one number for all rungs, or a list
    with one per rung), and strong {nodes, efficiency, tokens_per_gpu_step}: the same work on more
    nodes (strong scaling).
    """
    nodes, shares = read_numbers(series["nodes"]), read_numbers(series["efficiency"])
    limit = read_number(series.get("limit"))
    low, high, rates = _read_columns(series, "low", "high", "tokens_per_second")
    load = series.get("tokens_per_gpu_step")
    loads = read_numbers(load) if isinstance(load, list) else [read_number(load)] * len(nodes)
    rungs: list[Rung] = [
        (n, share, lo, hi, load, rate)
        for n, share, lo, hi, load, rate in zip_longest(nodes, shares, low, high, loads, rates)
        if n is not None and share is not None
    ]
    points = [(n, share) for n, share, *_ in rungs]
    strong, tokens = _strong_scaling_points(series, {n for n, _ in points})
    sentence = _efficiency_sentence(points, limit)
    known = [share for _, share in points + strong]
    bottom = max(0.0, int((min(known + finite([limit, *low])) - 0.04) * 10) / 10)
    top = max([1.0, *known, *finite(high)])
    plot = Plot(sentence, (points[0][0], points[-1][0]), (bottom, 1.04 * top), log=True)
    _draw_rungs(plot, rungs, strong, limit)
    basis = one_line(series.get("over") or "")
    table = _efficiency_table(rungs, strong, tokens, basis)
    sentence += _load_sentence(loads) + _strong_sentence(strong, tokens)
    sentence += f" Error bars are of the noise {basis}." if basis else ""
    return Figure("Scaling efficiency", sentence, plot.svg(), *table)


def _draw_rungs(plot: Plot, rungs: list[Rung], strong: list[Point], limit: Number) -> None:
    """Draw the efficiency curve with error bars, and the strong scaling curve if there is one."""
    points = [(n, share) for n, share, *_ in rungs]
    plot.axes([(n, number(n)) for n, _ in points], "nodes", "efficiency", "%")
    plot.level(1.0, "ideal: as fast per node as one node", GREY)
    if limit is not None:
        plot.level(limit, f"limit {percent(limit, 0)}", ORANGE)
    if strong:
        plot.curve(strong, *STRONG_CURVE[1:])
        _draw_legend(
            plot, [("the same work per GPU (weak scaling)", BLUE, 2.5, ""), STRONG_CURVE], limit
        )
    plot.curve(points, BLUE, 2.5)
    for n, share, lo, hi, *_ in rungs[1:]:
        plot.whisker(n, lo, hi, BLUE)
        plot.dot(plot.x(n), plot.y(share), BLUE)
        below = plot.y(share) + 18
        crossed = limit is not None and abs(below - 4 - plot.y(limit)) < 12
        text_y = below - 27 if crossed else below
        plot.text(plot.x(n) + 20, text_y, percent(share), "end", bold=True)


def _efficiency_table(
    rungs: list[Rung], strong: list[Point], tokens: dict[float, float], basis: str
) -> tuple[list[str], list[list[str]]]:
    interval = f"95 % interval, {basis}" if basis else "95 % interval"
    header = ["nodes", "efficiency", interval, "tokens per GPU and step", "tokens per second"]
    rows = [
        [number(n), percent(share), _interval_text(lo, hi), _token_text(load), or_dash(rate)]
        for n, share, lo, hi, load, rate in rungs
    ]
    if strong:
        header += ["the same work on more nodes", "its tokens per GPU and step"]
        by_nodes = dict(strong)
        for row, (n, *_) in zip(rows, rungs, strict=True):
            row += [percent(by_nodes.get(n)), _token_text(tokens.get(n))]
    return header, rows


def _strong_scaling_points(
    series: dict[str, Any], rungs: set[float]
) -> tuple[list[Point], dict[float, float]]:
    """Return (points, tokens per GPU and step by node count) of the strong scaling runs.

    Points are (nodes, efficiency) of node counts in `rungs`. Fewer than two give no points.
    """
    data = series.get("strong") or {}
    nodes, shares, loads = _read_columns(data, "nodes", "efficiency", "tokens_per_gpu_step")
    points = [(n, share) for n, share in zip_xy(nodes, shares) if n in rungs]
    return points if len(points) > 1 else [], dict(zip_xy(nodes, loads))


def _strong_sentence(strong: list[Point], loads: dict[float, float]) -> str:
    if not strong:
        return ""
    (first, _), (nodes, share) = strong[0], strong[-1]
    noun = "node" if first == 1 else "nodes"
    return (
        f" {number(nodes)} nodes do the same work {percent(share)} as efficiently as "
        f"{number(first)} {noun}, with {_token_text(loads.get(nodes))} tokens per GPU."
    )


def _token_text(load: Number) -> str:
    return "-" if load is None else f"{load:.0f}"


def _interval_text(lo: Number, hi: Number) -> str:
    return "-" if lo is None or hi is None else f"{percent(lo)} to {percent(hi)}"


def _efficiency_sentence(points: list[Point], limit: Number) -> str:
    nodes, share = points[-1]
    message = (
        f"At {number(nodes)} nodes the job runs at {percent(share)} of {number(nodes)} x one node"
    )
    if limit is None:
        return message + "."
    relation = "at or above" if share >= limit else "BELOW"
    return f"{message}, {relation} the limit of {percent(limit, 0)}."


def _load_sentence(loads: list[Number]) -> str:
    """Return the load per GPU of the last rung as text; an efficiency needs it to be meaningful."""
    return f" {_token_text(loads[-1])} tokens per GPU and step." if loads and loads[-1] else ""


def draw_loss(series: dict[str, Any]) -> Figure:
    """Draw the loss of a run that was killed over the loss of a run that was not.

    Keys: reference and resumed ([step, loss] pairs), killed_at and resumed_from (steps). The
    resumed pairs contain all attempts in order: the steps up to a kill, then the steps from the
    checkpoint on.
    """
    reference, attempts = _read_xy(series["reference"]), _attempts(_read_xy(series["resumed"]))
    killed, resumed = read_number(series.get("killed_at")), read_number(series.get("resumed_from"))
    sentence = _loss_sentence(reference, attempts[-1], killed, resumed)
    points = [*reference, *(point for attempt in attempts for point in attempt)]
    low, high = min(y for _, y in points), max(y for _, y in points)
    pad = (high - low) * 0.08 or 1.0
    ends = (min(x for x, _ in points), max(x for x, _ in points))
    plot = Plot(sentence, ends, (low - pad, high + pad))
    plot.axes([(x, number(x)) for x in plot.x.ticks()], "step", "loss")
    plot.curve(reference, GREY, 5)
    for attempt in attempts:
        plot.curve(attempt, BLUE, 1.8)
    if resumed is not None:
        plot.mark(resumed, f"resumed from {number(resumed)}", GREEN, left=True, row=1)
    if killed is not None:
        plot.mark(killed, f"killed at {number(killed)}", RED)
    _draw_legend(plot, [("never killed", GREY, 5, ""), ("killed", BLUE, 1.8, "")])
    return Figure(
        "Loss across the kill", sentence, plot.svg(), *_training_loss_table(reference, attempts)
    )


def _draw_legend(
    plot: Plot, curves: list[tuple[str, str, float, str]], level: float | None = None
) -> None:
    """Draw a legend at the bottom left: curves that overlap or cross leave no room for labels.

    Curves are (label, colour, width, dash). The legend moves up if the label of `level` is there.
    """
    top = plot.y.start - 26
    if level is not None and plot.y(level) > top - 12:
        top = plot.y(level) - 24 - 14 * (len(curves) - 1)
    for i, (label, color, width, dash) in enumerate(curves):
        y = top + 14 * i
        plot.line([(plot.x.start + 8, y), (plot.x.start + 28, y)], color, width, dash)
        plot.text(plot.x.start + 34, y + 4, label)


def _read_xy(pairs: Any) -> list[Point]:
    points = [(read_number(step), read_number(value)) for step, value in pairs]
    return zip_xy([step for step, _ in points], [value for _, value in points])


def _attempts(points: list[Point]) -> list[list[Point]]:
    """Split the points into attempts: the run restarted where the step does not increase."""
    attempts: list[list[Point]] = [[]]
    for point in points:
        if attempts[-1] and point[0] <= attempts[-1][-1][0]:
            attempts.append([])
        attempts[-1].append(point)
    return attempts


def _loss_sentence(
    reference: list[Point], last: list[Point], killed: Number, resumed: Number
) -> str:
    known = dict(reference)
    gaps = [abs(value - known[step]) for step, value in last if step in known]
    start = f"Killed at step {or_dash(killed)}, resumed from step {or_dash(resumed)}: "
    if not gaps:
        return start + "no step of the resumed run can be compared."
    worst = max(gaps)
    if worst == 0:
        return start + (
            f"all {len(gaps)} steps of the resumed run equal those of the run that was never "
            "killed."
        )
    return start + f"the largest difference in {len(gaps)} steps is {number(worst)}."


def _training_loss_table(
    reference: list[Point], attempts: list[list[Point]]
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows for evenly spaced steps of the last attempt, at most 79."""
    known = dict(reference)
    stride = max(1, len(attempts[-1]) // 40)
    rows = [
        [number(step), f"{value:.6g}", *_difference_cells(known.get(step), value)]
        for step, value in attempts[-1][::stride]
    ]
    return ["step", "resumed", "never killed", "difference"], rows


def _difference_cells(known: Number, value: float) -> list[str]:
    return ["-", "-"] if known is None else [f"{known:.6g}", number(value - known)]
