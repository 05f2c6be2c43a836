"""Draws bars: rows with limits, and efficiency by rung."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from reports.charts import canvas
from reports.charts.canvas import THEME, Figure, Key, Number, percent, read_number, read_numbers
from reports.numbers import number, quantity
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
    nodes, losses = canvas.finite(read_numbers(series["nodes"])), read_numbers(series["lost"])
    parts: list[Parts] = [
        [(one_line(part["said"]), read_number(part["share"]) or 0.0) for part in rung]
        for rung in series["parts"]
    ]
    sentence = one_line(series["sentences"][-1]).rstrip(".") + "."
    groups, rows = [], []
    for count, loss, rung in zip(nodes, losses, parts, strict=True):
        groups.append((f"{quantity(count, 'nodes')}: {percent(loss)} of a step", _waterfall(rung)))
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
    nodes = canvas.finite(read_numbers(series["nodes"]))
    terms = {one_line(name): read_numbers(values) for name, values in series["terms"].items()}
    if {len(nodes)} != {*map(len, terms.values())}:
        raise ValueError("a term does not have one time for each node count")
    steps = [sum(canvas.finite(values[i] for values in terms.values())) for i in range(len(nodes))]
    sentence = _terms_sentence(nodes, terms, steps)
    counts = [quantity(count, "nodes") for count in nodes]
    groups = [
        (name, [Row(n, 0.0, s, _ms_text(s)) for n, s in zip(counts, values, strict=True)])
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
    text = f"At {quantity(nodes[-1], 'nodes')} a step takes {_ms_text(steps[-1])}"
    ends = {name: (values[0], values[-1]) for name, values in terms.items()}
    grown = {name: b - a for name, (a, b) in ends.items() if a is not None and b is not None}
    name = max(grown, key=lambda key: grown[key], default="")
    if not name or grown[name] <= 0:
        return f"{text}. No part of a step grows with the number of nodes."
    start = f"{text}, and {_ms_text(steps[0])} at {quantity(nodes[0], 'nodes')}"
    return f"{start}. The part that grows most is {name}: by {_ms_text(grown[name])}."


def draw_groups(title: str, sentence: str, groups: Sequence[Group]) -> str:
    """Draw all groups on one scale, which begins at the smallest value, at most at zero."""
    rows = [row for _, members in groups for row in members]
    ends = [0.0, *canvas.finite(end for row in rows for end in (row.start, row.end))]
    low, high = min(ends), max(ends)
    names = [canvas.shorten(row.name, NAME_CHARS) for row in rows]
    left = max(map(canvas.text_width, names), default=0) + 8
    right = canvas.WIDTH - max((canvas.text_width(row.text) for row in rows), default=0) - 8
    unit = (right - left) / ((high - low) or 1)
    height = HEADING_HEIGHT * len(groups) + ROW_HEIGHT * len(rows) + 4
    with canvas.open_chart(title, sentence, height=height) as chart:
        y, zero = 0.0, left - low * unit
        for heading, members in groups:
            y += HEADING_HEIGHT
            chart.text(0, y - 5, canvas.shorten(heading, 60), weight="bold")
            chart.line([zero, zero], [y, y + ROW_HEIGHT * len(members)], THEME.soft, linewidth=1)
            for name, start, end, text in members:
                base = y + ROW_HEIGHT - 5
                chart.text(left - 6, base, canvas.shorten(name, NAME_CHARS), "right")
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


TITLE = "Scaling efficiency"


class LadderPoint(NamedTuple):
    """One rung: nodes, efficiency, ends of its interval, tokens per GPU and step, per second."""

    nodes: float
    efficiency: float
    low: Number
    high: Number
    load: Number
    rate: Number


FURTHEST = 8  # times the nodes that were measured: `seatrial scaling predict` goes further


def draw_efficiency(series: dict[str, Any]) -> Figure:
    """Draw efficiency against node count; 1 is the speed per node of one node alone.

    Keys: nodes, efficiency; optional low and high (error bars), over (text: which noise the error
    bars cover), limit, tokens_per_second, tokens_per_gpu_step (one number for all rungs, or a list
    with one per rung), strong {nodes, efficiency, tokens_per_gpu_step}: the same work on more
    nodes (strong scaling), and predicted {nodes, efficiency, low, high}: what was not measured,
    with the ends of the band that should contain nine of ten outcomes.
    """
    rungs, limit = _read_rungs(series), read_number(series.get("limit"))
    most = rungs[-1].nodes
    told = _read_rungs(series.get("predicted") or {})
    predicted = [one for one in told if most < one.nodes <= FURTHEST * most]
    strong, tokens = _strong_scaling_points(series, {rung.nodes for rung in rungs})
    basis = one_line(series.get("over") or "")
    sentence = _make_sentence(rungs, limit, basis) + _prediction_text(predicted)
    svg = _draw_curves(sentence, rungs, strong, predicted, limit)
    header, rows = _make_table(rungs, strong, tokens, basis)
    for n, share, low, high, *_ in predicted:
        row = [f"{number(n)}, predicted", percent(share), f"band {_range_text(low, high)}"]
        rows.append(row + ["-"] * (len(header) - len(row)))
    return Figure(TITLE, sentence, svg, header, rows)


def _read_rungs(series: dict[str, Any]) -> list[LadderPoint]:
    """Read the rungs whose efficiency is known, in the order of their nodes."""
    keys = ("nodes", "efficiency", "low", "high", "tokens_per_second")
    nodes, shares, low, high, rates = canvas.read_columns(series, *keys)
    load = series.get("tokens_per_gpu_step")
    loads = read_numbers(load) if isinstance(load, list) else [read_number(load)] * len(nodes)
    return sorted(
        LadderPoint(n, share, *rest)
        for n, share, *rest in zip_longest(nodes, shares, low, high, loads, rates)
        if n is not None and share is not None
    )


def _draw_curves(
    sentence: str,
    rungs: list[LadderPoint],
    strong: list[canvas.Point],
    predicted: list[LadderPoint],
    limit: Number,
) -> str:
    keys = [
        Key("the same work per GPU (weak scaling)", THEME.link),
        Key("the same total work (strong scaling)" if strong else "", THEME.unproven),
        Key("predicted, with its 90 % band" if predicted else "", THEME.link, "dashes"),
        Key("ideal: as fast per node as one node", THEME.soft, "dashes"),
        Key("" if limit is None else f"limit {percent(limit, 0)}", THEME.marginal, "dashes"),
    ]
    shown = [*rungs, *predicted]
    nodes, shares = [rung.nodes for rung in shown], [rung.efficiency for rung in shown]
    known = [*shares, *(share for _, share in strong), *canvas.finite([limit])]
    known += canvas.finite(end for rung in shown for end in (rung.low, rung.high))
    with canvas.open_chart(TITLE, sentence, keys) as chart:
        axes = chart.plot("efficiency")
        labels = [*map(number, nodes[:-1]), quantity(nodes[-1], "nodes")]
        # With what is predicted there are more labels, and less room for each.
        below = [percent(share, 0 if predicted else 1) for share in shares]
        canvas.set_log_ticks(axes, nodes, labels, below)
        bottom = max(0.0, int((min(known) - 0.04) * 10) / 10)
        axes.set_ylim(bottom, 1.04 * max([1.0, *known]))
        axes.yaxis.set_major_formatter(lambda value, _: f"{round(100 * value, 6):g} %")
        canvas.draw_level(axes.axhline, 1.0, THEME.soft)
        canvas.draw_level(axes.axhline, limit, THEME.marginal)
        if strong:
            axes.plot(*zip(*strong, strict=True), color=THEME.unproven)
        for rung in rungs:
            if rung.low is not None and rung.high is not None:
                ends = [rung.low, rung.high]
                axes.plot([rung.nodes] * 2, ends, color=THEME.link, linewidth=5, alpha=0.4)
        # The band opens at the last rung that was measured.
        band = [rungs[-1]._replace(low=shares[len(rungs) - 1], high=shares[len(rungs) - 1])]
        band += [one for one in predicted if None not in (one.low, one.high)]
        if len(band) > 1:
            edges = [(one.nodes, one.low) for one in band]
            edges += [(one.nodes, one.high) for one in reversed(band)]
            axes.fill(*zip(*edges, strict=True), color=THEME.link, alpha=0.2, linewidth=0)
        axes.plot(nodes[len(rungs) - 1 :], shares[len(rungs) - 1 :], "--", color=THEME.link)
        axes.plot(nodes[: len(rungs)], shares[: len(rungs)], "o-", color=THEME.link)
    return chart.svg


def _make_table(
    rungs: list[LadderPoint], strong: list[canvas.Point], tokens: dict[float, float], basis: str
) -> tuple[list[str], list[list[str]]]:
    interval = f"95 % interval, {basis}" if basis else "95 % interval"
    header = ["nodes", "efficiency", interval, "tokens per GPU and step", "tokens per second"]
    rows = [
        [number(n), percent(share), _range_text(low, high), *map(canvas.or_dash, (load, rate))]
        for n, share, low, high, load, rate in rungs
    ]
    if strong:
        header += ["strong scaling efficiency", "strong scaling tokens per GPU and step"]
        by_nodes = dict(strong)
        for row, (n, *_) in zip(rows, rungs, strict=True):
            row += [percent(by_nodes.get(n)), canvas.or_dash(tokens.get(n))]
    return header, rows


def _strong_scaling_points(
    series: dict[str, Any], rungs: set[float]
) -> tuple[list[canvas.Point], dict[float, float]]:
    """Return (points, tokens per GPU and step by node count) of the strong scaling runs.

    Points are (nodes, efficiency) of node counts in `rungs`. Fewer than two give no points.
    """
    data = series.get("strong") or {}
    nodes, shares, loads = canvas.read_columns(data, "nodes", "efficiency", "tokens_per_gpu_step")
    points = [(n, share) for n, share in canvas.zip_xy(nodes, shares) if n in rungs]
    return points if len(points) > 1 else [], dict(canvas.zip_xy(nodes, loads))


def _make_sentence(rungs: list[LadderPoint], limit: Number, basis: str) -> str:
    """Return the last efficiency, its relation to the limit, and the load that it needs."""
    nodes, share, load = rungs[-1].nodes, rungs[-1].efficiency, rungs[-1].load
    count, where = number(nodes), quantity(nodes, "nodes")
    text = f"At {where} the job runs at {percent(share)} of {count} x the speed of one node"
    if limit is not None:
        relation = "at or above" if share >= limit else "BELOW"
        text += f", {relation} the limit of {percent(limit, 0)}"
    text += "." + (f" The load is {canvas.or_dash(load)} tokens per GPU and step." if load else "")
    return text + (f" Error bars show the noise {basis}." if basis else "")


def _prediction_text(predicted: list[LadderPoint]) -> str:
    if not predicted:
        return ""
    last = predicted[-1]
    share = f"{percent(last.efficiency)} ({_range_text(last.low, last.high)})"
    return f" Predicted, not measured: {share} on {quantity(last.nodes, 'nodes')}."


def _range_text(low: Number, high: Number) -> str:
    return "-" if low is None or high is None else f"{percent(low)} to {percent(high)}"
