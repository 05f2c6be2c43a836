"""Defines a figure (title, finding, SVG, table), and reads and formats the numbers of a series.

Series come from a record file, so every value is checked. A missing value stays None. Any other
value that is not a number raises ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from reports.numbers import number

Number = float | None
Point = tuple[float, float]


@dataclass(frozen=True)
class Figure:
    """One chart. `svg` is empty if nothing could be drawn; `rows` are the table below `header`."""

    title: str
    sentence: str
    svg: str = ""
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


def read_number(value: Any) -> Number:
    """Return a finite number; None for None, NaN and infinity. Raises ValueError otherwise."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, found {type(value).__name__}")
    return float(value)


def read_numbers(values: Any) -> list[Number]:
    """Read a list of numbers, None where one is missing. Raises ValueError for anything else."""
    if not isinstance(values, list):
        raise ValueError(f"expected a list of numbers, found {type(values).__name__}")
    return [read_number(value) for value in values]


def read_columns(data: dict[str, Any], *keys: str) -> list[list[Number]]:
    """Read lists of numbers; a missing key gives an empty list."""
    return [read_numbers(data.get(key) or []) for key in keys]


def finite(values: Iterable[Number]) -> list[float]:
    """Return the numbers without the missing ones (None)."""
    return [value for value in values if value is not None]


def zip_xy(xs: list[Number], ys: list[Number]) -> list[Point]:
    """Return the (x, y) points for which both coordinates are known."""
    return [(x, y) for x, y in zip(xs, ys, strict=False) if x is not None and y is not None]


def or_nan(values: Iterable[Number]) -> list[float]:
    """Return the numbers with NaN for missing ones: a line through them has a gap there."""
    return [math.nan if value is None else value for value in values]


def binary_size(count: float) -> str:
    """Format a message size in bytes with a binary unit: `64 MiB`."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    power = min(len(units) - 1, int(math.log2(count) // 10)) if count >= 1 else 0
    return f"{number(count / 1024**power)} {units[power]}"


def percent(share: Number, digits: int = 1) -> str:
    """Format a share of 1 as `91.4 %`, or `-` for None."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def or_dash(value: Number) -> str:
    """Format a number with three significant digits, or `-` for None."""
    return "-" if value is None else number(value)


def count_nodes(count: float) -> str:
    """Return `1 node` or `8 nodes`."""
    return f"{number(count)} node{'s' * (count != 1)}"


def name_value(name: str, value: Number) -> str:
    """Return `limit 340`, or nothing without a value."""
    return "" if value is None else f"{name} {number(value)}"


def brief_number(value: float) -> str:
    """Format a number with three significant digits, without trailing zeros: `0.4`."""
    return f"{float(number(value)):.10g}"
