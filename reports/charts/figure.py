"""What a chart is to its reader: a title, a sentence that states the finding, numbers, SVG.

Series come from a record, so they are read with care: a hole stays a hole (None), and what is
not a number is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from reports.numbers import number

Number = float | None


@dataclass(frozen=True)
class Figure:
    """One chart.  `svg` is empty when there was nothing that could be drawn."""

    title: str
    sentence: str
    svg: str = ""
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


def read_number(value: Any) -> Number:
    """A finite number, or None for a hole.  Raises ValueError for anything else."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, found {type(value).__name__}")
    return float(value)


def read_numbers(values: Any) -> list[Number]:
    """A list of numbers and holes."""
    if not isinstance(values, list):
        raise ValueError(f"expected a list of numbers, found {type(values).__name__}")
    return [read_number(value) for value in values]


def finite(values: Iterable[Number]) -> list[float]:
    """The numbers, without the holes."""
    return [value for value in values if value is not None]


def zip_xy(xs: list[Number], ys: list[Number]) -> list[tuple[float, float]]:
    """Points that have both coordinates."""
    return [(x, y) for x, y in zip(xs, ys, strict=False) if x is not None and y is not None]


def binary_size(count: float) -> str:
    """A message size in binary units: `64 MiB`."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    power = min(len(units) - 1, int(math.log2(count) // 10)) if count >= 1 else 0
    return f"{number(count / 1024**power)} {units[power]}"


def percent(share: Number, digits: int = 1) -> str:
    """`91.4 %`, or a dash for a hole."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def or_dash(value: Number, unit: str = "") -> str:
    """Three digits and the unit, or a dash for a hole."""
    return "-" if value is None else number(value) + (f" {unit}" if unit else "")
