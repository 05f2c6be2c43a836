"""Formats numbers for reports."""

from __future__ import annotations

import math

Value = bool | int | float | str | None


def number(value: Value, digits: int = 3) -> str:
    """Format a value with `digits` significant digits: 0.1184 is `0.118`.

    Absolute values from 1e-4 to below 1e6 have no exponent and keep all digits before the point.
    Ints, and integral floats below 1e15, keep all digits.
    """
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return str(int(value))
    if 1e-4 <= abs(value) < 1e6:
        places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        return f"{value:.{places}f}"
    return f"{value:.{digits}g}"
