"""Numbers as people read them."""

from __future__ import annotations

import math

Value = bool | int | float | str | None


def number(value: Value, digits: int = 3) -> str:
    """Three significant digits, without exponents for everyday sizes: 0.1184 is `0.118`."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return str(int(value))
    if 1e-4 <= abs(value) < 1e6:
        places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        return f"{value:.{places}f}"
    return f"{value:.{digits}g}"
