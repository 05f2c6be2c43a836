"""Draws bandwidth, bytes by network, and the training loss."""

from __future__ import annotations

from itertools import zip_longest
from operator import itemgetter
from typing import Any

from reports.charts import canvas
from reports.charts.bars import Row, draw_groups
from reports.charts.canvas import THEME, Figure, Key, Number, Point, percent, read_number, zip_xy
from reports.numbers import number
from reports.sanitize import capitalise, one_line

TITLE = "Bus bandwidth by message size"
# Other sweeps of a series, by key: name, colour.
MORE = {"control": ("planted wrong network", THEME.fail), "baseline": ("baseline", THEME.unproven)}
Curve = tuple[str, str, list[Point]]  # name, colour, (bytes, GB/s)


def draw_busbw(series: dict[str, Any]) -> Figure:
    """Draw bus bandwidth in GB/s against message size in bytes.

    Keys: sizes, busbw; optional low, high (edges of the ribbon), limit, line_rate (all in GB/s),
    judged {sizes, busbw}: which sizes are judged, and the judged value, control {sizes, busbw}: the
    same sweep, forced onto the management network, and baseline {sizes, busbw}: an earlier sweep.
    """
    sizes, speeds, low, high = canvas.read_columns(series, "sizes", "busbw", "low", "high")
    others: list[Curve] = [
        (name, color, points)
        for key, (name, color) in MORE.items()
        if (points := zip_xy(*canvas.read_columns(series.get(key) or {}, "sizes", "busbw")))
    ]
    limit, rate = read_number(series.get("limit")), read_number(series.get("line_rate"))
    judged, value, where = _read_judged(series.get("judged") or {}, zip_xy(sizes, speeds))
    sentence = _make_sentence(value, where, limit, rate, others)
    keys = [
        Key(f"measured: {number(value)} GB/s {where}", THEME.link),
        Key(canvas.name_value("limit", limit), THEME.marginal, "dashes"),
        Key(canvas.name_value("line rate", rate), THEME.soft, "dashes"),
        *(Key(name, color) for name, color, _ in others),
    ]
    with canvas.open_chart(TITLE, sentence, keys) as chart:
        axes = chart.plot("busbw, GB/s", "message size")
        ticks = sorted({*canvas.finite(sizes), *(x for _, _, points in others for x, _ in points)})
        canvas.set_log_ticks(axes, ticks, [canvas.binary_size(size) for size in ticks])
        axes.set_ylim(0, 1.08 * max(canvas.finite([value, limit, rate, *speeds, *high])) or 1)
        canvas.draw_level(axes.axhline, limit, THEME.marginal)
        canvas.draw_level(axes.axhline, rate, THEME.soft)
        for _, color, points in others:
            # The control runs at one size only: a line of one point would not show.
            axes.plot(*zip(*points, strict=True), "-" if len(points) > 1 else "o", color=color)
        ribbon = [*zip_xy(sizes, low), *reversed(zip_xy(sizes, high))]
        if ribbon:
            axes.fill(*zip(*ribbon, strict=True), color=THEME.link, alpha=0.2, linewidth=0)
        axes.plot(sizes, speeds, color=THEME.link)
        axes.plot(*zip(*judged, strict=True), "o", color=THEME.link)
    header = ["size", "busbw GB/s", "low", "high", *(name for name, *_ in others)]
    columns = [speeds, low, high, *([dict(xy).get(x or 0) for x in sizes] for *_, xy in others)]
    rows = [
        [canvas.binary_size(size), *map(canvas.or_dash, cells)]
        for size, *cells in zip_longest(sizes, *columns)
        if size is not None
    ]
    return Figure(TITLE, sentence, chart.svg, header, rows)


def _read_judged(judged: dict[str, Any], measured: list[Point]) -> tuple[list[Point], float, str]:
    """Return the judged points and value, and where it holds; without them, those of the peak."""
    known, value = dict(measured), read_number(judged.get("busbw"))
    sizes = canvas.finite(canvas.read_columns(judged, "sizes")[0])
    points = [(x, known[x]) for x in sizes if x in known]
    if not points or value is None:
        size, peak = max(measured, key=lambda point: point[1])
        return [(size, peak)], peak, f"for messages of {canvas.binary_size(size)}"
    first, last = canvas.binary_size(points[0][0]), canvas.binary_size(points[-1][0])
    return points, value, f"for messages of {first} to {last}"


def _make_sentence(value: float, where: str, limit: Number, rate: Number, more: list[Curve]) -> str:
    """Return a sentence: the value, its share of the line rate, the limit, the other sweeps."""
    parts = [f"Bus bandwidth is {number(value)} GB/s {where}"]
    if rate:
        parts.append(f"{percent(value / rate, 0)} of the line rate of {number(rate)} GB/s")
    if limit is not None:
        place = "at or above" if value >= limit else "BELOW"
        parts.append(f"{place} the limit of {number(limit)} GB/s")
    ends = [f"{capitalise(n)}: at most {number(max(y for _, y in xy))} GB/s" for n, _, xy in more]
    return ". ".join([", ".join(parts), *ends]) + "."


BYTES_TITLE = "Where the bytes of each node went"
MAX_NODES = 8  # drawn, and in the table: the worst; the evidence has all of them
Sent = tuple[str, Number, Number]  # node, share on the fabric, share elsewhere


def draw_bytes(series: dict[str, Any]) -> Figure:
    """Draw the bytes that each node sent, as shares of those that it had to send.

    Keys: fabric (its name), nodes (names), on_fabric, elsewhere (one share per node, 1 is all that
    it had to send; null: not counted).
    """
    fabric = one_line(series["fabric"])
    on_fabric, elsewhere = canvas.read_columns(series, "on_fabric", "elsewhere")
    names = [one_line(name) for name in series["nodes"]]
    nodes = sorted(zip(names, on_fabric, elsewhere, strict=True), key=_by_need)
    shown, sentence = nodes[:MAX_NODES], _describe_bytes(nodes, fabric)
    groups = [
        (name, [_row(f"on {fabric}", here), _row("on other networks", there)])
        for name, here, there in shown
    ]
    header = ["node", f"on {fabric}, share of its bytes", "on other networks"]
    rows = [[name, percent(here), percent(there, 2)] for name, here, there in shown]
    return Figure(BYTES_TITLE, sentence, draw_groups(BYTES_TITLE, sentence, groups), header, rows)


def _by_need(sent: Sent) -> tuple[bool, float, float]:
    """Order nodes: those that were not counted first, then those with least on the fabric."""
    _, here, there = sent
    return here is not None, here or 0.0, -(there or 0.0)


def _row(name: str, share: Number) -> Row:
    return Row(name, 0.0, share, "not counted" if share is None else percent(share, 2))


def _describe_bytes(nodes: list[Sent], fabric: str) -> str:
    parts, others = [], [(there, name) for name, _, there in nodes if there is not None]
    if missing := sum(here is None for _, here, _ in nodes):
        parts.append(f"the bytes of {missing} of {len(nodes)} nodes were not counted")
    if counted := [(here, name) for name, here, _ in nodes if here is not None]:
        least, name = min(counted)
        share = f"{percent(least)} of what it had to send"
        parts.append(f"the least on {fabric} was sent by {name}: {share}")
    if others:
        most, name = max(others, key=lambda sent: sent[0])
        parts.append(f"the most on other networks by {name}: {percent(most, 2)}")
    return f"{capitalise('; '.join(parts) or 'the bytes of no node were counted')}."


LOSS_TITLE = "Loss before and after the kill"
MAX_POINTS = 400  # of a curve: about one a unit; of more, the lowest and highest are kept
STRIP_TOP, STRIP_HEIGHT = canvas.PLOT_HEIGHT + 46, 48  # units, of the differences below the curves
MAX_ROWS = 40  # about so many steps are in the table


def draw_loss(series: dict[str, Any]) -> Figure:
    """Draw both curves, the kill, the steps that were done again, and the difference of the runs.

    Keys: reference and resumed ([step, loss] pairs), killed_at and resumed_from (steps). The
    resumed pairs contain all attempts in order: the steps up to a kill, then the steps from the
    checkpoint on.
    """
    reference, attempts = _read_xy(series["reference"]), _attempts(_read_xy(series["resumed"]))
    killed, resumed = read_number(series.get("killed_at")), read_number(series.get("resumed_from"))
    known = dict(reference)
    deltas = [[(x, y - known[x]) for x, y in attempt if x in known] for attempt in attempts]
    sentence = _describe_loss([delta for _, delta in deltas[-1]], killed, resumed)
    svg = _draw_curves(sentence, [reference, *attempts], deltas, (killed, resumed))
    return Figure(LOSS_TITLE, sentence, svg, *_make_table(known, attempts[-1]))


def _draw_curves(
    sentence: str, curves: list[list[Point]], deltas: list[list[Point]], kill: tuple[Number, Number]
) -> str:
    killed, resumed = kill
    again = None not in (killed, resumed)
    keys = [
        Key("never killed", THEME.soft),
        Key("killed", THEME.link),
        Key(canvas.name_value("killed at step", killed), THEME.fail, "dashes"),
        Key(canvas.name_value("resumed from step", resumed), THEME.passed, "dashes"),
        Key("repeated steps" if again else "", THEME.rule, "box"),
    ]
    with canvas.open_chart(LOSS_TITLE, sentence, keys, STRIP_TOP + STRIP_HEIGHT + 40) as chart:
        upper = chart.plot("loss")
        lower = chart.plot("loss difference", "step", STRIP_TOP, STRIP_HEIGHT)
        steps = [x for curve in curves for x, _ in curve]
        for axes in (upper, lower):
            axes.set_xlim(min(steps), max(max(steps), min(steps) + 1))
            if again:
                axes.axvspan(resumed, killed, color=THEME.rule, linewidth=0)
            canvas.draw_level(axes.axvline, killed, THEME.fail)
            canvas.draw_level(axes.axvline, resumed, THEME.passed)
        _plot_thinned(upper, curves[0], THEME.soft, 5)
        for curve in curves[1:]:
            _plot_thinned(upper, curve, THEME.link, 1.8)
        for delta in deltas:
            _plot_thinned(lower, delta, THEME.link, 1.8)
        largest = max((abs(y) for delta in deltas for _, y in delta), default=0.0)
        lower.set_ylim(-1.2 * (largest or 1), 1.2 * (largest or 1))
        lower.set_yticks([-largest, 0, largest] if largest else [0])
        upper.set_xticklabels([])
    return chart.svg


def _plot_thinned(axes: Any, points: list[Point], color: str, width: float) -> None:
    """Plot at most about MAX_POINTS of the points: the lowest and highest of each stretch."""
    stretch = -(-2 * len(points) // MAX_POINTS) or 1
    parts = [points[i : i + stretch] for i in range(0, len(points), stretch)]
    ends = [(min(part, key=itemgetter(1)), max(part, key=itemgetter(1))) for part in parts]
    kept = sorted({point for pair in ends for point in pair})
    axes.plot([x for x, _ in kept], [y for _, y in kept], color=color, linewidth=width)


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


def _describe_loss(deltas: list[float], killed: Number, resumed: Number) -> str:
    text = f"Killed at step {canvas.or_dash(killed)}, resumed from step {canvas.or_dash(resumed)}: "
    if not deltas:
        return text + "no step of the resumed run can be compared."
    if worst := max(map(abs, deltas)):
        return text + f"the loss differs by at most {number(worst)} in {len(deltas)} steps."
    equal = "equal those of the run that was never killed."
    return f"{text}all {len(deltas)} steps of the resumed run {equal}"


def _make_table(known: dict[float, float], last: list[Point]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows for evenly spaced steps of the last attempt."""
    rows = []
    for step, value in last[:: max(1, len(last) // MAX_ROWS)]:
        other = known.get(step)
        compared = ["-", "-"] if other is None else [f"{other:.6g}", number(value - other)]
        rows.append([number(step), f"{value:.6g}", *compared])
    return ["step", "resumed", "never killed", "difference"], rows
