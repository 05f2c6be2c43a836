"""Draws the loss of a run that was killed over the loss of a run that was not."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from reports.charts.canvas import PLOT_HEIGHT, THEME, Key, draw_level, open_chart
from reports.charts.figure import Figure, Number, Point, name_value, or_dash, read_number, zip_xy
from reports.numbers import number

TITLE = "Loss across the kill"
MAX_POINTS = 400  # of a curve: about one a unit; of more, the lowest and highest are kept
STRIP_TOP, STRIP_HEIGHT = PLOT_HEIGHT + 46, 48  # units, of the differences below the curves
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
    sentence = _make_sentence([delta for _, delta in deltas[-1]], killed, resumed)
    svg = _draw_curves(sentence, [reference, *attempts], deltas, (killed, resumed))
    return Figure(TITLE, sentence, svg, *_make_table(known, attempts[-1]))


def _draw_curves(
    sentence: str, curves: list[list[Point]], deltas: list[list[Point]], kill: tuple[Number, Number]
) -> str:
    killed, resumed = kill
    again = None not in (killed, resumed)
    keys = [
        Key("never killed", THEME.soft),
        Key("killed", THEME.link),
        Key(name_value("killed at step", killed), THEME.fail, "dashes"),
        Key(name_value("resumed from step", resumed), THEME.passed, "dashes"),
        Key("steps done again" if again else "", THEME.rule, "box"),
    ]
    with open_chart(TITLE, sentence, keys, STRIP_TOP + STRIP_HEIGHT + 40) as chart:
        upper = chart.plot("loss")
        lower = chart.plot("difference of the runs", "step", STRIP_TOP, STRIP_HEIGHT)
        steps = [x for curve in curves for x, _ in curve]
        for axes in (upper, lower):
            axes.set_xlim(min(steps), max(max(steps), min(steps) + 1))
            if again:
                axes.axvspan(resumed, killed, color=THEME.rule, linewidth=0)
            draw_level(axes.axvline, killed, THEME.fail)
            draw_level(axes.axvline, resumed, THEME.passed)
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


def _make_sentence(deltas: list[float], killed: Number, resumed: Number) -> str:
    start = f"Killed at step {or_dash(killed)}, resumed from step {or_dash(resumed)}: "
    if not deltas:
        return start + "no step of the resumed run can be compared."
    if worst := max(map(abs, deltas)):
        return start + f"the largest difference in {len(deltas)} steps is {number(worst)}."
    return start + (
        f"all {len(deltas)} steps of the resumed run equal those of the run that was never killed."
    )


def _make_table(known: dict[float, float], last: list[Point]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows for evenly spaced steps of the last attempt."""
    rows = []
    for step, value in last[:: max(1, len(last) // MAX_ROWS)]:
        other = known.get(step)
        compared = ["-", "-"] if other is None else [f"{other:.6g}", number(value - other)]
        rows.append([number(step), f"{value:.6g}", *compared])
    return ["step", "resumed", "never killed", "difference"], rows
