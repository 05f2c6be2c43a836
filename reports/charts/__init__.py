"""Each figure returns inline SVG, its numbers as a table, and a sentence that states the finding.

A figure is drawn when its series is in the result, and only then.  A series that cannot be
read costs its figure, never the report.  The shape of each series is in the docstring of the
function that draws it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from reports.charts.bars import pairs, terms
from reports.charts.curves import busbw, efficiency, loss
from reports.charts.figure import Figure
from reports.charts.gang_timeline import gang
from reports.charts.lost_time import lost

__all__ = ["FIGURES", "Figure", "figures"]

FIGURES: dict[str, Callable[[Any], Figure]] = {
    "busbw": busbw,
    "pairs": pairs,
    "efficiency": efficiency,
    "lost": lost,
    "terms": terms,
    "gang": gang,
    "loss": loss,
}


def figures(series: Mapping[str, Any]) -> list[Figure]:
    """All figures of one result, in the order of FIGURES."""
    return [_drawn(name, series[name]) for name in FIGURES if name in series]


def _drawn(name: str, values: Any) -> Figure:
    """The figure, or in its place a sentence that says why it could not be drawn."""
    try:
        return FIGURES[name](values)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        why = f"{type(error).__name__}: {error}"
        return Figure(name, f"The series {name!r} could not be drawn ({why}).")
