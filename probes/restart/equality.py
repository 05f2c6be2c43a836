"""Compares a resumed run with the run that was never killed, step by step and bit by bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from probes.faults.injection import FaultedRun

LOCAL_LOSS = "local_loss_hex"  # loss of a rank's own sequences; loss and norm are of all ranks
TOLD_KEYS = ("loss_hex", "norm_hex", "ids")  # without these a step cannot be compared
BITWISE_KEYS = ("loss_hex", LOCAL_LOSS, "norm_hex", "lr_hex", "ids", "data_crc32", "digest")
UNROUNDED_KEYS = ("lr_hex", "ids", "data_crc32")  # the order of a sum does not change these


@dataclass(frozen=True)
class UnequalStep:
    """One step of one rank that differs.  `keys` names the values that differ."""

    rank: int
    step: int
    keys: list[str]
    expected: dict[str, Any]
    actual: dict[str, Any]

    def __str__(self) -> str:
        parts = [
            f"{key} {_shorten_digest(self.actual.get(key))} instead of "
            f"{_shorten_digest(self.expected.get(key))}"
            for key in self.keys
        ]
        return f"rank {self.rank}, step {self.step}: {'; '.join(parts)}"


def _shorten_digest(value: Any) -> Any:
    """Cut a string of more than 32 characters to its first 12; keep other values."""
    return f"{value[:12]}..." if isinstance(value, str) and len(value) > 32 else value


def first_unequal_step(unequal: Sequence[UnequalStep]) -> tuple[UnequalStep, list[int]]:
    """Find the first step that differs, and the ranks that caused it (empty if unknown).

    One rank that computes wrongly makes every rank unequal.  Only the rank at fault also differs in
    its own loss in the first step.  A wrong gradient shows in no rank's own loss.  Raises
    ValueError when `unequal` is empty.
    """
    first = min(item.step for item in unequal)
    in_step = [item for item in unequal if item.step == first]
    local = [item for item in in_step if LOCAL_LOSS in item.keys]
    culprits = local if len(local) < len(in_step) else []
    return (culprits or in_step)[0], [item.rank for item in culprits]


@dataclass(frozen=True)
class StepComparison:
    """Result of a comparison of two runs.

    `unequal` lists the steps that differ.  `steps` counts all steps, `compared` those that hold the
    values to compare.
    """

    unequal: list[UnequalStep] = field(default_factory=list)
    steps: int = 0
    compared: int = 0

    def __add__(self, other: StepComparison) -> StepComparison:
        return StepComparison(
            self.unequal + other.unequal,
            self.steps + other.steps,
            self.compared + other.compared,
        )

    @property
    def count(self) -> int | None:
        """Number of steps that differ.  None if none differs and not every step was compared."""
        whole = self.steps and self.compared == self.steps
        return len(self.unequal) if whole or self.unequal else None

    @property
    def doubt(self) -> str:
        """Reason why `count` is None."""
        if not self.steps:
            return "no step was done after a resume"
        return f"{self.steps - self.compared} of {self.steps} steps lack the compared values"


def compare_steps(
    reference: Sequence[dict[str, Any]],
    results: Sequence[dict[str, Any]],
    first: int = 1,
    tolerance: float | None = None,
) -> StepComparison:
    """Compare the steps of two runs from `first` on, rank by rank and bit by bit.

    With a `tolerance` (nats), only samples, data and learning rate are compared bit by bit.  The
    loss of all ranks may then differ by `tolerance`.  Both runs are the trainer's results, ordered
    by rank.  Raises ValueError when their numbers of ranks differ.  A step that one run lacks is
    unequal.
    """
    found = StepComparison()
    for expected, actual in zip(reference, results, strict=True):
        expected_steps = {step["step"]: step for step in expected["steps"] if step["step"] >= first}
        actual_steps = {step["step"]: step for step in actual["steps"] if step["step"] >= first}
        for number in sorted(expected_steps.keys() | actual_steps.keys()):
            a, b = expected_steps.get(number, {}), actual_steps.get(number, {})
            keys = _differing_keys(a, b, tolerance)
            unequal = [UnequalStep(expected["rank"], number, keys, a, b)] if keys else []
            told = all(a.get(key) is not None for key in TOLD_KEYS)
            found += StepComparison(unequal, 1, int(told or bool(keys)))
    return found


def _differing_keys(a: dict[str, Any], b: dict[str, Any], tolerance: float | None) -> list[str]:
    if tolerance is None:
        return [key for key in BITWISE_KEYS if a.get(key) != b.get(key)]
    keys = [key for key in UNROUNDED_KEYS if a.get(key) != b.get(key)]
    losses = [step.get("loss", math.nan) for step in (a, b)]
    # Written so that a NaN loss counts as different.
    return keys if abs(losses[0] - losses[1]) <= tolerance else [*keys, "loss"]


def reordered_sums(reference: Sequence[dict[str, Any]], run: FaultedRun, victim: int) -> str:
    """Explain why the last bits of two runs on GPUs may differ: NCCL summed over other rings.

    Returns "" if all attempts used the rings of the reference run.  Also returns "" on CPUs, where
    sums follow the order of ranks.  Rings that NCCL did not report may have been any.
    """
    pairs = [
        (one["rank"], one.get("rings"), other.get("rings"))
        for one, other in zip(reference, run.results, strict=False)
        if str(other.get("device", "")).startswith("cuda")
    ]
    if not pairs:
        return ""
    of_victim = reference[victim].get("rings")
    lives = [event for life in run.journals for event in life if event["event"] == "rings"]
    pairs += [(victim, of_victim, event["rings"]) for event in lives]
    for rank, expected, actual in pairs:
        if expected is None or actual is None:
            return f"NCCL did not log the rings of rank {rank}"
        if expected != actual:
            return f"NCCL added over other rings on rank {rank}"
    return ""


def loss_distance(reference: Sequence[dict[str, Any]], results: Sequence[dict[str, Any]]) -> float:
    """Measure the largest difference (nats) of the mean loss over the steps of `results`.

    Returns NaN if a loss is NaN, or if there is no step.
    """
    expected = {step["step"]: step["loss"] for step in reference[0]["steps"]}
    gaps = [abs(step["loss"] - expected[step["step"]]) for step in results[0]["steps"]]
    return math.nan if any(map(math.isnan, gaps)) else max(gaps, default=math.nan)


def compare_attempts(
    run: FaultedRun, reference: dict[str, Any], attempts: int, tolerance: float | None = None
) -> StepComparison:
    """Compare the steps of the victim's first `attempts` attempts with its rank's `reference`."""
    expected, found = {step["step"]: step for step in reference["steps"]}, StepComparison()
    for attempt in range(attempts):
        steps = run.step_events(attempt)
        references = [expected[step["step"]] for step in steps if step["step"] in expected]
        pair = [{**reference, "steps": references}], [{**reference, "steps": steps}]
        found += compare_steps(*pair, tolerance=tolerance)
    return found
