"""Values that a probe observed, and the limits that judge them.

Several verdicts combine to the worst. All models are frozen and convert to JSON and back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from reports.numbers import Value, is_outside, number, quantity


class Verdict(str, Enum):
    """Verdict, ordered PASS < MARGINAL < UNPROVEN < FAIL."""

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
        """Return the worst of `verdicts`; UNPROVEN if there are none, for nothing was proven."""
        return max(verdicts, key=lambda verdict: verdict.rank, default=Verdict.UNPROVEN)


RANKS = {verdict: rank for rank, verdict in enumerate(Verdict)}
# Words of a measure's name that are written otherwise.
COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter")  # written with a hyphen
WRITTEN = {"alltoall": "all-to-all", "d2h": "device-to-host", "h2d": "host-to-device"}
WRITTEN |= {"disagreements": "disagreements between ranks"}
WRITTEN |= dict.fromkeys(("gbs", "tflops"), "rate")
WRITTEN |= {word.lower(): word for word in (
    "CPUs", "CV", "ECC", "ETTR", "FP8", "GEMM", "GPU", "GPUs", "HBM", "MFU", "MTU", "NCCL",
    "NVLink", "NVLinks", "NVML", "PCIe", "RAM", "RDMA", "Ray", "Xids",
)}  # fmt: skip


class RecordModel(BaseModel):
    """Base class of all parts of a record: immutable, rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def about(default: Any, description: str, **bounds: Any) -> Any:
    """Make a field that may be left out; its description is in the schema of record.json."""
    return Field(default=default, description=description, **bounds)


class Limit(RecordModel):
    """Limit for a measured value, with its reason.

    Between a bound and its marginal bound the verdict is MARGINAL.
    """

    low: float | None = about(None, "Minimum value that passes.")
    high: float | None = about(None, "Maximum value that passes.")
    marginal_low: float | None = about(None, "Minimum for PASS; MARGINAL from `low` to this.")
    marginal_high: float | None = about(None, "Maximum for PASS; MARGINAL from this to `high`.")
    one_of: list[str] | None = about(None, "Words that pass, for a value that is a word.")
    unit: str = about("", "Unit of the bounds.")
    because: str = Field(min_length=3, description="Reason for the limit.")
    source: str = about("", "Origin of the limit; `derived` means from facts of the cluster.")

    @property
    def derived(self) -> bool:
        """True if the limit was not agreed, but derived from the cluster's own facts."""
        return self.source == "derived"

    @model_validator(mode="after")
    def _check_bounds(self) -> Limit:
        """Reject bounds that are not finite, and bounds together with `one_of`.

        A NaN bound would pass every value. A bound would be ignored if `one_of` is given.
        """
        bounds = [self.low, self.high, self.marginal_low, self.marginal_high]
        given = [bound for bound in bounds if bound is not None]
        if not all(math.isfinite(bound) for bound in given):
            raise ValueError("a limit must be a finite number")
        if given and self.one_of is not None:
            raise ValueError("a limit must have either `one_of` or bounds, not both")
        return self

    def judge(self, value: Value) -> Verdict:
        """Judge one value. None is UNPROVEN; with bounds, so are NaN, infinity and a string.

        Without `one_of`, `low` and `high`, every value is UNPROVEN.
        """
        if value is None:
            return Verdict.UNPROVEN
        if self.one_of is not None:
            return Verdict.PASS if str(value) in self.one_of else Verdict.FAIL
        if isinstance(value, str) or not math.isfinite(value):
            return Verdict.UNPROVEN
        if self.low is None and self.high is None:
            return Verdict.UNPROVEN
        if is_outside(value, self.low, self.high):
            return Verdict.FAIL
        if is_outside(value, self.marginal_low, self.marginal_high):
            return Verdict.MARGINAL
        return Verdict.PASS

    def __str__(self) -> str:
        """Text of the limit in all outputs: `>= 340 GB/s`, `2 to 4 s`, `one of fab0, ib0`."""
        if self.one_of is not None:
            return self.one_of[0] if len(self.one_of) == 1 else "one of " + ", ".join(self.one_of)
        if self.low is not None and self.high is not None:
            low, high = quantity(self.low, self.unit), quantity(self.high, self.unit)
            unit = high.partition(" ")[2]
            return high if low == high else f"{low.removesuffix(unit).rstrip()} to {high}"
        if self.low is not None:
            return f">= {quantity(self.low, self.unit)}"
        if self.high is not None:
            text = quantity(self.high, self.unit)
            return f"<= {text}" if self.high else text
        return "no bound"


def title_of(name: str) -> str:
    """Write the name of a measure as people do: `gpus_to_reset` is "GPUs to reset"."""
    for collective in COLLECTIVES:
        name = name.replace(collective, collective.replace("_", "-"))
    return " ".join(WRITTEN.get(word, word) for word in name.split("_"))


class Measurement(RecordModel):
    """A value with unit, subject and limit."""

    name: str = Field(description="Name of the measure.")
    value: Value = about(None, "Measured value; null if there is none.")
    unit: str = about("", "Unit of the value, the spread and the limit.")
    subject: str = about("cluster", "What was measured: the cluster, a node, a GPU or a link.")
    limit: Limit | None = about(None, "Limit that judges the value.")
    judged: bool = about(True, "Whether the value is judged; UNPROVEN without a value or a limit.")
    spread: float | None = about(None, "Spread of the values (+/-), in the same unit.")
    samples: int | None = about(None, "Number of samples.")
    note: str = about("", "Why there is no value or no limit.")

    @model_validator(mode="before")
    @classmethod
    def _drop_not_finite(cls, data: Any) -> Any:
        """Drop NaN and infinity, which JSON cannot hold; `note` records a dropped value."""
        if not isinstance(data, dict):
            return data
        finite = {k: v for k, v in data.items() if not isinstance(v, float) or math.isfinite(v)}
        if "value" in data and "value" not in finite:
            finite["note"] = data.get("note") or f"the value was {data['value']}"
        return finite

    @property
    def verdict(self) -> Verdict | None:
        """Verdict against the limit; UNPROVEN without a limit, None if it is not judged."""
        if not self.judged:
            return None
        return self.limit.judge(self.value) if self.limit else Verdict.UNPROVEN

    @property
    def severity(self) -> int:
        """Distance from PASS, 0 to 3; also 0 if the measurement is not judged."""
        return (self.verdict or Verdict.PASS).rank

    @property
    def title(self) -> str:
        """Name as people write it."""
        return title_of(self.name)

    @property
    def value_text(self) -> str:
        """Value with unit, spread and sample count, or the reason why there is none."""
        if self.value is None:
            return f"not measured ({self.note})" if self.note else "not measured"
        return self._text(self._digits(), self.spread) + self._count_text

    @property
    def _count_text(self) -> str:
        return f" (n={self.samples})" if self.samples else ""

    @property
    def short_text(self) -> str:
        """Value with unit; "not measured" if there is none."""
        return "not measured" if self.value is None else self._text(self._digits())

    def _text(self, digits: int, spread: float | None = None) -> str:
        if isinstance(self.value, (bool, str)):
            return f"{self.value} {self.unit}".rstrip()
        assert self.value is not None
        return quantity(self.value, self.unit, digits, spread)

    def _digits(self) -> int:
        """Choose 3 to 9 digits so that a missed bound does not look met: 0.8996, not 0.900."""
        bounds = [self.limit.low, self.limit.high] if self.limit else []
        others = [one for one in bounds if one is not None and one != self.value]
        if not others or isinstance(self.value, (str, type(None))):
            return 3
        for digits in range(3, 9):  # as numbers: value and bound may be shown in different units
            if _rounded(self.value, digits) not in [_rounded(one, digits) for one in others]:
                return digits
        return 9

    def observed(self, template: str, value: str, **words: str) -> str:
        """Fill in a criterion's sentence: `value` as text, {subject}, {on} and further words.

        Without a template, or a value, it is `<measure> on <subject>: <value>`.  What a template
        of a record names otherwise stays text.
        """
        on = f" on {self.subject}" if self.subject not in ("cluster", "") else ""
        words |= {"value": value, "subject": self.subject, "on": on}
        if not template or self.value is None:
            return f"{self.title}{on}: {self.value_text}"
        return re.sub(r"\{(\w+)\}", lambda part: words.get(part[1], part[0]), template)

    def sentence(self, template: str = "") -> str:
        """Format `<what> on <where>: <observed>. Expected: <limit> (<because>)`.

        `template` is the criterion's sentence for this measure, if it has one.  One with {work}
        is not used: it needs the facts of the cluster.
        """
        if not template or self.value is None or "{work}" in template:
            start = self.observed("", "")
        else:
            names_where = "{on}" in template or "{subject}" in template
            value = self._text(self._digits(), self.spread)
            start = self.observed(template + "{on}" * (not names_where), value) + self._count_text
        if not self.judged:
            return start
        if self.limit is None:
            if self.value is None:
                return f"{start}. Expected: a value"
            why = self.note or "none was agreed"
            return f"{start}. It is UNPROVEN without a limit ({why})"
        derived = ", derived" if self.limit.derived else ""
        return f"{start}. Expected: {self.limit}{derived} ({self.limit.because})"


def _rounded(value: float, digits: int) -> float:
    return float(number(float(value), digits))
