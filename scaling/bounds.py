"""Bounds of what is measured: looked at where a ladder.json is read, never while measuring."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

# No step is shorter than a tick of its clock, or longer than a life.
SHORTEST, LONGEST = 1e-9, 1e9
MOST = 10**15  # of anything that is counted

Seconds = Annotated[float, Field(strict=True, ge=SHORTEST, le=LONGEST, allow_inf_nan=False)]
# A share of a step, or a difference of two.
Part = Annotated[float, Field(strict=True, ge=-LONGEST, le=LONGEST, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1, le=MOST)]
CountOrZero = Annotated[int, Field(strict=True, ge=0, le=MOST)]
Amount = Annotated[float, Field(strict=True, ge=0, le=1e18, allow_inf_nan=False)]
# GB/s; infinity where no size was large enough to see one.
Bandwidth = Annotated[float, Field(strict=True, ge=1e-12, allow_inf_nan=True)]
