"""Draws a value against its limit as a small bar: inline SVG without any foreign text."""

from __future__ import annotations

from reports.measurement import Measurement

WIDTH, HEIGHT = 180, 18  # px: a column of the table on page 1
ROOM = 1.15  # the longer of value and limit leaves room beyond it, so that both are seen


def draw_limit_bar(m: Measurement) -> str:
    """Draw a bar as long as the value, and a line at its limit.

    "" where that says nothing: without a number, and where the limit is 0, exact or two-sided.
    """
    if m.limit is None or isinstance(m.value, str | bool | None) or m.value < 0:
        return ""
    bounds = [bound for bound in (m.limit.low, m.limit.high) if bound is not None]
    if len(bounds) != 1 or bounds[0] <= 0:
        return ""
    scale = WIDTH / (ROOM * max(m.value, bounds[0]))
    verdict = m.verdict.value if m.verdict else ""
    return (
        f'<svg class="bar" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'aria-hidden="true"><rect class="all" y="6" width="{WIDTH}" height="6"/>'
        f'<rect class="{verdict}" y="6" width="{m.value * scale:.1f}" height="6"/>'
        f'<path d="M{bounds[0] * scale:.1f} 1v16"/></svg>'
    )
