"""Draws the efficiency of the job by the number of nodes."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, NamedTuple

from reports.charts.canvas import THEME, Key, draw_level, open_chart, set_log_ticks
from reports.charts.figure import (
    Figure,
    Number,
    Point,
    count_nodes,
    finite,
    or_dash,
    percent,
    read_columns,
    read_number,
    read_numbers,
    zip_xy,
)
from reports.numbers import number
from reports.sanitize import one_line

TITLE = "Scaling efficiency"


class LadderPoint(NamedTuple):
    """One rung: nodes, efficiency, ends of its interval, tokens per GPU and step, per second."""

    nodes: float
    efficiency: float
    low: Number
    high: Number
    load: Number
    rate: Number


def draw_efficiency(series: dict[str, Any]) -> Figure:
    """Draw efficiency against node count; 1 is the speed per node of one node alone.

    Keys: nodes, efficiency; optional low and high (error bars), over (text: which noise the error
    bars cover), limit, tokens_per_second, tokens_per_gpu_step (one number for all rungs, or a list
    with one per rung), strong {nodes, efficiency, tokens_per_gpu_step}: the same work on more
    nodes (strong scaling), and predicted {nodes, efficiency, low, high}: what was not measured,
    with the ends of the band that should contain nine of ten outcomes.
    """
    rungs, limit = _read_rungs(series), read_number(series.get("limit"))
    predicted = [
        one for one in _read_rungs(series.get("predicted") or {}) if one.nodes > rungs[-1].nodes
    ]
    strong, tokens = _strong_scaling_points(series, {rung.nodes for rung in rungs})
    basis = one_line(series.get("over") or "")
    sentence = _make_sentence(rungs, limit, basis) + _prediction_text(predicted)
    svg = _draw_curves(sentence, rungs, strong, predicted, limit)
    header, rows = _make_table(rungs, strong, tokens, basis)
    rows += [
        [f"{number(n)}, predicted", percent(share), f"band {_range_text(low, high)}"]
        + ["-"] * (len(header) - 3)
        for n, share, low, high, *_ in predicted
    ]
    return Figure(TITLE, sentence, svg, header, rows)


def _read_rungs(series: dict[str, Any]) -> list[LadderPoint]:
    """Read the rungs whose efficiency is known, in the order of their nodes."""
    keys = ("nodes", "efficiency", "low", "high", "tokens_per_second")
    nodes, shares, low, high, rates = read_columns(series, *keys)
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
    strong: list[Point],
    predicted: list[LadderPoint],
    limit: Number,
) -> str:
    keys = [
        Key("the same work per GPU (weak scaling)", THEME.link),
        Key("the same work on more nodes (strong scaling)" if strong else "", THEME.unproven),
        Key("predicted, with its band" if predicted else "", THEME.link, "dashes"),
        Key("ideal: as fast per node as one node", THEME.soft, "dashes"),
        Key("" if limit is None else f"limit {percent(limit, 0)}", THEME.marginal, "dashes"),
    ]
    shown = [*rungs, *predicted]
    nodes, shares = [rung.nodes for rung in shown], [rung.efficiency for rung in shown]
    known = [*shares, *(share for _, share in strong), *finite([limit])]
    known += finite(end for rung in shown for end in (rung.low, rung.high))
    with open_chart(TITLE, sentence, keys) as chart:
        axes = chart.plot("efficiency")
        labels = [*map(number, nodes[:-1]), count_nodes(nodes[-1])]
        # With what is predicted there are more labels, and less room for each.
        below = [percent(share, 0 if predicted else 1) for share in shares]
        set_log_ticks(axes, nodes, labels, below)
        bottom = max(0.0, int((min(known) - 0.04) * 10) / 10)
        axes.set_ylim(bottom, 1.04 * max([1.0, *known]))
        axes.yaxis.set_major_formatter(lambda value, _: f"{round(100 * value, 6):g} %")
        draw_level(axes.axhline, 1.0, THEME.soft)
        draw_level(axes.axhline, limit, THEME.marginal)
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
    rungs: list[LadderPoint], strong: list[Point], tokens: dict[float, float], basis: str
) -> tuple[list[str], list[list[str]]]:
    interval = f"95 % interval, {basis}" if basis else "95 % interval"
    header = ["nodes", "efficiency", interval, "tokens per GPU and step", "tokens per second"]
    rows = [
        [number(n), percent(share), _range_text(low, high), or_dash(load), or_dash(rate)]
        for n, share, low, high, load, rate in rungs
    ]
    if strong:
        header += ["the same work on more nodes", "its tokens per GPU and step"]
        by_nodes = dict(strong)
        for row, (n, *_) in zip(rows, rungs, strict=True):
            row += [percent(by_nodes.get(n)), or_dash(tokens.get(n))]
    return header, rows


def _strong_scaling_points(
    series: dict[str, Any], rungs: set[float]
) -> tuple[list[Point], dict[float, float]]:
    """Return (points, tokens per GPU and step by node count) of the strong scaling runs.

    Points are (nodes, efficiency) of node counts in `rungs`. Fewer than two give no points.
    """
    data = series.get("strong") or {}
    nodes, shares, loads = read_columns(data, "nodes", "efficiency", "tokens_per_gpu_step")
    points = [(n, share) for n, share in zip_xy(nodes, shares) if n in rungs]
    return points if len(points) > 1 else [], dict(zip_xy(nodes, loads))


def _make_sentence(rungs: list[LadderPoint], limit: Number, basis: str) -> str:
    """Return the last efficiency, its relation to the limit, and the load that it needs."""
    nodes, share, load = rungs[-1].nodes, rungs[-1].efficiency, rungs[-1].load
    count = number(nodes)
    text = f"At {count} nodes the job runs at {percent(share)} of {count} x one node"
    if limit is not None:
        relation = "at or above" if share >= limit else "BELOW"
        text += f", {relation} the limit of {percent(limit, 0)}"
    text += "." + (f" {or_dash(load)} tokens per GPU and step." if load else "")
    return text + (f" Error bars are of the noise {basis}." if basis else "")


def _prediction_text(predicted: list[LadderPoint]) -> str:
    if not predicted:
        return ""
    last = predicted[-1]
    share = f"{percent(last.efficiency)} ({_range_text(last.low, last.high)})"
    return f" Predicted, not measured: {share} on {count_nodes(last.nodes)}."


def _range_text(low: Number, high: Number) -> str:
    return "-" if low is None or high is None else f"{percent(low)} to {percent(high)}"
