"""Reads limits of a contract, and derives those that follow from what the cluster reports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from probes.check.declarations import REACH, Check
from probes.check.registry import CRITERIA
from probes.contract.validation import ContractError, check_text, has_words
from probes.toml_tables import show, spelling_hint
from reference_trainer.model.devices import find_device, read_devices
from reference_trainer.model.size import peak_flops
from reports.measurement import Limit, about
from reports.numbers import percent, quantity
from scaling.collectives.line_rate import limit_reason

# Shares of line rate: the least of a healthy ring all-reduce, and the marginal bound.  Measured on
# 8 x 400 Gbit/s, where the ring inside a node is slower than the network: 331 (Voltage Park) to
# 387 GB/s (CoreWeave).
MIN_SHARE, MARGINAL_SHARE = 0.80, 0.86
MIN_REASON_CHARS = 3  # as in Limit.because
NEVER_ZERO = ("s", "ratio", "1/min")  # what a probe times takes time; a count may be 0


class LimitTerms(BaseModel):
    """One limit as written in a contract; `marginal` is the inner bound on the same side."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    at_least: float | None = about(None, "Minimum, for a measure whose higher values are better.")
    at_most: float | None = about(None, "Maximum, for a measure whose lower values are better.")
    exactly: float | None = about(None, "The only correct value.")
    one_of: list[str] | None = about(None, "Correct words, for a measure whose values are words.")
    marginal: float | None = about(
        None,
        "Bound of a warning band inside the limit. A value between this bound and the limit is "
        "MARGINAL: the report lists the measure, and a run with it can be accepted.",
    )
    unit: str = about("", "Unit of the measure, if it has one. A different unit is refused.")
    because: str = Field(description="Reason of this limit, in words. The report prints it.")

    @field_validator("because")
    @classmethod
    def _check_reason(cls, value: str) -> str:
        if len(value.strip()) < MIN_REASON_CHARS or not has_words(value):
            raise ValueError(f"expected the reason of this limit in words, found {value!r}")
        return value

    def to_limit(self, measure: Check, source: str) -> Limit:
        """Convert to the limit of the record.  Raises ValueError with one sentence."""
        if self.unit != measure.unit:
            expected = f"unit {measure.unit!r}" if measure.unit else "no unit"
            raise ValueError(f"expected {expected}, found {self.unit!r}")
        if measure.better == "word":
            return self._words(source)
        if self.one_of is not None:
            raise ValueError("expected bounds of a number (at_least, at_most), found one_of")
        bounds = self._bounds()
        if not bounds:
            raise ValueError("has no bound: give at_least or at_most")
        self._check_side(measure, bounds)
        self._check_pairs(bounds)
        for key, bound in [*bounds.items(), ("marginal", self.marginal)]:
            if bound is not None:
                _check_reach(key, bound, measure)
        low, high = bounds.get("at_least", self.exactly), bounds.get("at_most", self.exactly)
        return Limit(
            low=low,
            high=high,
            marginal_low=self.marginal if high is None else None,
            marginal_high=self.marginal if low is None else None,
            unit=self.unit,
            because=self.because,
            source=source,
        )

    def _bounds(self) -> dict[str, float]:
        given = {name: getattr(self, name) for name in ("at_least", "at_most", "exactly")}
        return {name: bound for name, bound in given.items() if bound is not None}

    def _words(self, source: str) -> Limit:
        """Build a limit that allows some words."""
        if key := next(iter([*self._bounds(), *["marginal"] * (self.marginal is not None)]), ""):
            raise ValueError(f"expected words (one_of), found {key}: this measure is not a number")
        if not self.one_of:
            raise ValueError("has no bound: give one_of, a list of the correct words")
        words = [check_text(word, "a word in one_of") for word in self.one_of]
        return Limit(one_of=words, unit=self.unit, because=self.because, source=source)

    @staticmethod
    def _check_side(measure: Check, bounds: dict[str, float]) -> None:
        """Refuse a bound that would pass worse values and fail better ones."""
        right = {"higher": "at_least", "lower": "at_most"}.get(measure.better)
        wrong = [key for key in bounds if right and key != right]
        if wrong:
            advice = f"write {right} = {bounds[wrong[0]]:g}"
            if right in bounds:
                advice = f"drop {wrong[0]}"
            raise ValueError(
                f"expected {right}, found {wrong[0]} = {bounds[wrong[0]]:g}: {measure.better} "
                f"values of this measure are better. {advice.capitalize()}"
            )

    def _check_pairs(self, bounds: dict[str, float]) -> None:
        """Refuse bounds that contradict each other."""
        if self.exactly is not None and len(bounds) > 1:
            raise ValueError("expected only `exactly`, found a second bound: drop one of the two")
        low, high, marginal = self.at_least, self.at_most, self.marginal
        if low is not None and high is not None and low > high:
            raise ValueError(f"expected at_least <= at_most, found {low:g} and {high:g}")
        if marginal is None:
            return
        if (low is None) == (high is None):
            raise ValueError("marginal needs exactly one of at_least and at_most")
        if low is not None and marginal < low:
            raise ValueError(f"expected marginal of {low:g} (at_least) or more, found {marginal:g}")
        if high is not None and marginal > high:
            raise ValueError(f"expected marginal of {high:g} (at_most) or less, found {marginal:g}")


def _check_reach(key: str, bound: float, measure: Check) -> None:
    """Refuse a bound that every value meets, or no value."""
    if bound < 0 and not measure.signed:
        raise ValueError(
            f"expected {key} to be 0 or more, found {bound:g}: the measure is never negative"
        )
    if not measure.better:
        return
    is_lower = measure.better == "lower"
    if bound == 0 and not (is_lower and measure.unit not in NEVER_ZERO):
        result = "no value meets this limit" if is_lower else "every value meets this limit"
        raise ValueError(f"expected {key} to be more than 0, found 0: {result}")
    reach, why = REACH.get(measure.unit, (bound, ""))
    if bound > reach:
        raise ValueError(f"expected {key} to be {reach:g} or less, found {bound:g}: {why}")


def ring_limit(gbytes_per_s: float, rate_text: str, source: str, prefix: str = "") -> Limit:
    """Build the busbw limit of a ring all-reduce from a node's line rate, with its reason."""
    return Limit(
        low=MIN_SHARE * gbytes_per_s,
        marginal_low=MARGINAL_SHARE * gbytes_per_s,
        unit="GB/s",
        because=prefix + limit_reason(MIN_SHARE, rate_text),
        source=source,
    )


# Shares below which a GPU fails, and below which it is MARGINAL.  Of what sound ones reach:
# NVIDIA's own diagnostics take 75 % too (DCGM, nvvs/diag-skus.yaml), and an H100 whose clocks are
# locked to half computes at 74 %.
OF_REACHED = (0.75, 0.85)
# Of the data sheet, where nothing comparable was measured: half the speed of any GPU is below it.
OF_SHEET = {
    "gemm": ((0.45, 0.50), "of its data sheet; sound GPUs reach 60 to 87 % of theirs"),
    "hbm": ((0.55, 0.65), "of its data sheet; copies of sound GPUs reach 75 to 92 % of theirs"),
}
# Of what a PCIe link carries: sound GPUs reach 81 to 87 %, one generation less 41 to 44 %.
OF_LINK = (0.60, 0.70)
LANE_GBS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}  # in each direction


def derived_limit(model: str, operation: str = "mfu", unit: str = "ratio") -> Limit | None:
    """Derive a GPU's least rate, or MFU, from its model; None if no figure of it is known."""
    device = find_device(model)
    if device is None:
        return None
    if operation in device.reached:
        return _share_limit(OF_REACHED, *device.reached[operation], unit)
    if operation in ("h2d", "d2h") and device.pcie:
        generation, lanes = device.pcie
        source = f"that its link carries (PCIe {generation} x{lanes}); sound GPUs reach 81 to 87 %"
        return _share_limit(OF_LINK, LANE_GBS[generation] * lanes, source, unit)
    sheet = {"gemm": device.tflops, "hbm": device.memory_gbs}.get(operation)
    return (
        _share_limit(OF_SHEET[operation][0], sheet, OF_SHEET[operation][1], unit) if sheet else None
    )


def _share_limit(shares: tuple[float, float], figure: float, source: str, unit: str) -> Limit:
    """Build the limit that is a share of a figure."""
    low, marginal = (round(share * figure, 3) for share in shares)
    because = f"{percent(shares[0])} of the {quantity(figure, unit)} {source}"
    return Limit(low=low, marginal_low=marginal, unit=unit, source="derived", because=because)


def lacks_speed_limit(named: Sequence[str], *, is_agreed: bool = False) -> str:
    """Say that no model gives MFU a limit, or, where a limit `is_agreed`, a value; "" if one does.

    Of several models the nodes may have one alone, and another may only draw a screen.
    """
    if is_agreed:
        peakless = [model for model in named if peak_flops(model, "bf16") is None]
        text = f"no peak is known for {', '.join(peakless)}, so SCALING.mfu is not measured"
        do = "Replace [SCALING.mfu] by [SCALING.tokens_per_s]"
        return f"{text}. {do}" if named and peakless == [*named] else ""
    unknown = [model for model in named if derived_limit(model) is None]
    if named and unknown != [*named]:
        return ""
    rows = read_devices().items()
    known = [name for name, one in rows if "mfu" in one.reached and " " not in name]
    of = ", ".join(unknown) or f"GPUs other than {', '.join(known)} (write `gpu_model`)"
    text = f"no limit for the speed of one node: none is published for {of}"
    return f"{text}. Add [SCALING.mfu] or [SCALING.tokens_per_s]"


PERCENT = re.compile(r"(\d{1,2}(?:\.\d+)?) ?%", re.ASCII)  # below 100: more would pass anything


def read_tolerances(table: Any, file: str) -> dict[str, float]:
    """Read [baseline]: percent by measure, as `FABRIC.busbw`.  Raises ContractError.

    A measure that only one criterion has needs no criterion before it.
    """
    where = f"{file}: [baseline]"
    if not isinstance(table, dict):
        raise ContractError(f"{where}: expected a table, found {show(table)}")
    found: dict[str, float] = {}
    for key, value in _flat(table):
        name = _find_measure(key, where)
        if name in found:
            raise ContractError(f"{where}: found {name} twice: keep one")
        percent = PERCENT.fullmatch(value) if isinstance(value, str) else None
        if percent is None:
            raise ContractError(f'{where} {key}: expected a share like "2 %", found {show(value)}')
        found[name] = float(percent[1])
    return found


def _flat(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and key in CRITERIA:
            yield from ((f"{key}.{name}", one) for name, one in value.items())
        else:
            yield key, value


def _find_measure(key: str, where: str) -> str:
    """Return the measure with its criterion; refuse one that has no better side."""
    criterion, _, measure = key.rpartition(".")
    homes = [id for id in CRITERIA if measure in CRITERIA[id].measures and criterion in ("", id)]
    if not homes:
        names = [f"{id}.{name}" for id in CRITERIA for name in CRITERIA[id].measures]
        hint = spelling_hint(key, [*names, *(name.partition(".")[2] for name in names)])
        raise ContractError(f"{where}: unknown measure {show(key)}{hint}")
    sided = [id for id in homes if CRITERIA[id].measures[measure].better in ("higher", "lower")]
    if not sided:
        raise ContractError(f"{where} {key}: expected a measure where higher or lower is better")
    if len(sided) > 1:
        which = " or ".join(f"{id}.{measure}" for id in sided)
        raise ContractError(f"{where}: {key} belongs to several criteria: write {which}")
    return f"{sided[0]}.{measure}"
