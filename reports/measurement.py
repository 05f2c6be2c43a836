"""A value that a probe observed, and the limit that judges it.

A verdict folds to the worst.  Everything here is frozen, and turns into JSON and back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from reports.numbers import Value, number


class Verdict(str, Enum):
    """PASS < MARGINAL < UNPROVEN < FAIL; `worst` folds."""

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    MARGINAL = "MARGINAL"
    UNPROVEN = "UNPROVEN"
    FAIL = "FAIL"

    @property
    def rank(self) -> int:
        """Position in the order above, 0 (PASS) to 3 (FAIL)."""
        return RANKS[self]

    @property
    def accepted(self) -> bool:
        """True for PASS and MARGINAL."""
        return self.rank <= Verdict.MARGINAL.rank

    @staticmethod
    def worst(verdicts: Iterable[Verdict]) -> Verdict:
        """Return the worst of `verdicts`; UNPROVEN of none, for no parts is no proof."""
        return max(verdicts, key=lambda verdict: verdict.rank, default=Verdict.UNPROVEN)


RANKS = {verdict: rank for rank, verdict in enumerate(Verdict)}


class RecordModel(BaseModel):
    """Base of everything in a record: immutable, and strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Limit(RecordModel):
    """What a measured value is held to, and why.

    `low`/`high` are the hard bounds; between a bound and its marginal twin the verdict is
    MARGINAL.  `one_of` is for words.  `because` is required: no limit without provenance.
    """

    low: float | None = None
    high: float | None = None
    marginal_low: float | None = None
    marginal_high: float | None = None
    one_of: list[str] | None = None
    unit: str = ""
    because: str = Field(min_length=3)
    source: str = ""

    @property
    def derived(self) -> bool:
        """Whether nobody agreed on it: it follows from what the cluster says of itself."""
        return self.source == "derived"

    @model_validator(mode="after")
    def _check_bounds(self) -> Limit:
        """A NaN bound would pass every value, and a bound beside `one_of` would be ignored."""
        bounds = [self.low, self.high, self.marginal_low, self.marginal_high]
        given = [bound for bound in bounds if bound is not None]
        if not all(math.isfinite(bound) for bound in given):
            raise ValueError("a limit is a finite number")
        if given and self.one_of is not None:
            raise ValueError("a limit is one_of words or has bounds, not both")
        return self

    def judge(self, value: Value) -> Verdict:
        """Verdict of one value.  None, NaN and a value of the wrong kind are UNPROVEN."""
        if value is None:
            return Verdict.UNPROVEN
        if self.one_of is not None:
            return Verdict.PASS if str(value) in self.one_of else Verdict.FAIL
        if isinstance(value, str) or not math.isfinite(value):
            return Verdict.UNPROVEN
        if self.low is None and self.high is None:
            return Verdict.UNPROVEN
        if self._outside(value, self.low, self.high):
            return Verdict.FAIL
        if self._outside(value, self.marginal_low, self.marginal_high):
            return Verdict.MARGINAL
        return Verdict.PASS

    @staticmethod
    def _outside(value: float, low: float | None, high: float | None) -> bool:
        return (low is not None and value < low) or (high is not None and value > high)

    def __str__(self) -> str:
        """`>= 340 GB/s`, `<= 0`, `2 to 4 s`, `one of fab0, ib0`: shown wherever a limit is."""
        unit = f" {self.unit}" if self.unit else ""
        if self.one_of is not None:
            return self.one_of[0] if len(self.one_of) == 1 else "one of " + ", ".join(self.one_of)
        if self.low is not None and self.high is not None:
            if self.low == self.high:
                return f"exactly {number(self.low)}{unit}"
            return f"{number(self.low)} to {number(self.high)}{unit}"
        if self.low is not None:
            return f">= {number(self.low)}{unit}"
        if self.high is not None:
            return f"<= {number(self.high)}{unit}"
        return "no bound"


class Measurement(RecordModel):
    """A value with unit, subject (cluster, node, GPU, link) and limit.

    `judged` says whether a limit is owed: a judged measurement without a limit, or without a
    value, is UNPROVEN.  `spread` is a half-width in the same unit, `samples` its count, `note`
    says why there is no value.
    """

    name: str
    value: Value = None
    unit: str = ""
    subject: str = "cluster"
    limit: Limit | None = None
    judged: bool = True
    spread: float | None = None
    samples: int | None = None
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _drop_not_finite(cls, data: Any) -> Any:
        """NaN and infinity are no values; JSON has no word for them, so the note says it."""
        if not isinstance(data, dict):
            return data
        finite = {k: v for k, v in data.items() if not isinstance(v, float) or math.isfinite(v)}
        if "value" in data and "value" not in finite:
            finite["note"] = data.get("note") or f"the value was {data['value']}"
        return finite

    @property
    def verdict(self) -> Verdict | None:
        """Verdict against the limit; None when the measurement only informs."""
        if not self.judged:
            return None
        return self.limit.judge(self.value) if self.limit else Verdict.UNPROVEN

    @property
    def severity(self) -> int:
        """How far from PASS, 0 to 3; 0 also where the measurement only informs."""
        return (self.verdict or Verdict.PASS).rank

    @property
    def title(self) -> str:
        """The name as people read it: `slowest_pair` is "slowest pair"."""
        return self.name.replace("_", " ")

    @property
    def value_text(self) -> str:
        """The value with unit and spread, or why there is none."""
        if self.value is None:
            return f"not measured ({self.note})" if self.note else "not measured"
        text = number(self.value, self._digits()) + (f" {self.unit}" if self.unit else "")
        if self.spread is not None:
            text += f" +/- {number(self.spread, 2)}"
        return text + (f" (n={self.samples})" if self.samples else "")

    def _digits(self) -> int:
        """Enough digits that a missed bound does not read as met: 0.8996, not 0.900."""
        bounds = [self.limit.low, self.limit.high] if self.limit else []
        other_bounds = [bound for bound in bounds if bound is not None and bound != self.value]
        for digits in range(3, 9):
            if number(self.value, digits) not in [number(bound, digits) for bound in other_bounds]:
                return digits
        return 9

    def sentence(self) -> str:
        """`<what> on <where>: <value unit>, expected <limit unit> (<because>)`."""
        start = f"{self.title} on {self.subject}: {self.value_text}"
        if not self.judged:
            return start
        if self.limit is None:
            if self.value is None:
                return f"{start}, expected a value"
            return f"{start}, expected a limit ({self.note or 'the contract has none for it'})"
        derived = ", derived" if self.limit.derived else ""
        return f"{start}, expected {self.limit}{derived} ({self.limit.because})"
