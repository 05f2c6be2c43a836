"""Each figure returns inline SVG, its numbers as a table, and a sentence that states the finding.

A figure is drawn when its series is in the result, and only then.  A series that cannot be
read costs its figure, never the report.  The shape of each series is in the docstring of the
function that draws it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from reports.charts.bars import draw_pairs, draw_terms
from reports.charts.curves import draw_busbw, draw_efficiency, draw_loss
from reports.charts.figure import Figure
from reports.charts.gang_timeline import draw_gang
from reports.charts.lost_time import draw_lost_time

__all__ = ["FIGURES", "Figure", "draw_figures"]

FIGURES: dict[str, Callable[[Any], Figure]] = {
    "busbw": draw_busbw,
    "pairs": draw_pairs,
    "efficiency": draw_efficiency,
    "lost": draw_lost_time,
    "terms": draw_terms,
    "gang": draw_gang,
    "loss": draw_loss,
}


def draw_figures(series: Mapping[str, Any]) -> list[Figure]:
    """All figures of one result, in the order of FIGURES."""
    return [_draw_or_explain(name, series[name]) for name in FIGURES if name in series]


def _draw_or_explain(name: str, values: Any) -> Figure:
    """The figure, or in its place a sentence that says why it could not be drawn."""
    try:
        return FIGURES[name](values)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        reason = f"{type(error).__name__}: {error}"
        return Figure(name, f"The series {name!r} could not be drawn ({reason}).")
