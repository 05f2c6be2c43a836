"""Formats numbers for reports."""

from __future__ import annotations

import math

Value = bool | int | float | str | None
# unit: (from which value on it is used, factor, unit that is shown), largest first.  The last holds
# for all smaller values.
SHOWN_UNITS: dict[str, list[tuple[float, float, str]]] = {
    "ratio": [(0, 100, "%")],
    "GB/s": [(0.01, 1, "GB/s"), (1e-5, 1e3, "MB/s"), (0, 1e6, "kB/s")],
    "bytes/s": [(1e9, 1e-9, "GB/s"), (1e6, 1e-6, "MB/s"), (0, 1e-3, "kB/s")],
    "GB": [(0.1, 1, "GB"), (1e-4, 1e3, "MB"), (0, 1e6, "kB")],
    "us": [(1000, 1e-3, "ms"), (0, 1, "us")],
    "s": [(0.01, 1, "s"), (0, 1e3, "ms")],
}
ORDINALS = {"step"}  # units of a position: step 4, not 4 step
SINGULAR = {"addresses": "address", "losses": "loss", "processes": "process"}


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


def finite_number(value: object) -> float | None:
    """Return a number as float; None for a word, True, NaN, or what is beyond all floats."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def is_outside(value: float, low: float | None, high: float | None) -> bool:
    """Return whether a value is below or above the bounds that there are."""
    return (low is not None and value < low) or (high is not None and value > high)


def quantity(value: float, unit: str = "", digits: int = 3, spread: float | None = None) -> str:
    """Format a number with its unit as people say it: `82.7 %`, `2.3 MB/s`, `1 node`.

    A share (unit "ratio") becomes percents.  `spread` is its half-width: `0.118 +/- 0.004 GB/s`.
    """
    factor, shown = _shown_unit(value, unit)
    text = _scaled(value, factor, digits)
    if spread is not None:
        text += f" +/- {_scaled(spread, factor, 2)}"
    return f"{unit} {text}" if unit in ORDINALS else f"{text} {shown}".rstrip()


def size_text(size: int) -> str:
    """Write bytes as `64 MiB`, or `1000 bytes` where they are no whole KiB, MiB or GiB."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size and not size % (1 << shift):
            return f"{size >> shift} {unit}"
    return f"{size} bytes"


def percent(share: float) -> str:
    """Format a share of 1 as percents: `12.3 %`."""
    return quantity(share, "ratio")


def _shown_unit(value: float, unit: str) -> tuple[float, str]:
    """Return the factor and the unit that suit a value; 0 keeps its unit."""
    for least, factor, shown in SHOWN_UNITS.get(unit, []) if value or unit == "ratio" else []:
        if abs(value) >= least:
            return factor, shown
    if value in (1, -1) and len(unit) > len("us") and "/" not in unit:
        return 1, SINGULAR.get(unit, unit.removesuffix("s"))
    return 1, unit


def _scaled(value: float, factor: float, digits: int) -> str:
    """Multiply, without the rest that 0.55 * 100 leaves, and without zeros after the point."""
    text = number(value if factor == 1 else round(value * factor, 9), digits)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
