"""Bounds of measured values. They are checked when a ladder.json is read, not while measuring."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

# No step is shorter than a tick of its clock (1 ns) or longer than 30 years.
SHORTEST, LONGEST = 1e-9, 1e9
MOST = 10**15  # upper bound of every count

Seconds = Annotated[float, Field(strict=True, ge=SHORTEST, le=LONGEST, allow_inf_nan=False)]
# Seconds of a part of a step, or a difference of two such values.
Part = Annotated[float, Field(strict=True, ge=-LONGEST, le=LONGEST, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1, le=MOST)]
CountOrZero = Annotated[int, Field(strict=True, ge=0, le=MOST)]
Amount = Annotated[float, Field(strict=True, ge=0, le=1e18, allow_inf_nan=False)]
# GB/s; infinity if no size was large enough to measure a bandwidth.
Bandwidth = Annotated[float, Field(strict=True, ge=1e-12, allow_inf_nan=True)]
