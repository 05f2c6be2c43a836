"""Draws the figures of a result: inline SVG, the numbers as a table, and the finding in a sentence.

A figure is drawn only if its series is in the result. A series that cannot be read loses its
figure; the report is still written. The docstring of each drawing function gives the shape of
its series.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from reports.charts.bandwidth import draw_busbw, draw_bytes, draw_loss
from reports.charts.bars import draw_efficiency, draw_lost_time, draw_terms
from reports.charts.canvas import Figure
from reports.charts.gang_series import draw_gang
from reports.charts.pairs import draw_pairs

__all__ = ["FIGURES", "Figure", "draw_figures"]

FIGURES: dict[str, Callable[[Any], Figure]] = {
    "busbw": draw_busbw,
    "bytes": draw_bytes,
    "pairs": draw_pairs,
    "efficiency": draw_efficiency,
    "lost": draw_lost_time,
    "terms": draw_terms,
    "gang": draw_gang,
    "loss": draw_loss,
}


def draw_figures(series: Mapping[str, Any]) -> list[Figure]:
    """Draw all figures of one result, in the order of FIGURES."""
    return [_draw_or_explain(name, series[name]) for name in FIGURES if name in series]


def _draw_or_explain(name: str, values: Any) -> Figure:
    """Draw the figure; on an error return a figure without SVG that gives the reason."""
    try:
        return FIGURES[name](values)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        reason = f"{type(error).__name__}: {error}"
        return Figure(name, f"This figure of record.json could not be drawn ({reason}).")
