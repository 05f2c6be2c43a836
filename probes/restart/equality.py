"""Is the resumed run the run that was never killed?  Compared bit by bit, step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from probes.faults.injection import FaultedRun

LOCAL_LOSS = "local_loss_hex"  # of a rank's own sequences; loss and norm are the whole job's
TOLD_KEYS = ("loss_hex", "norm_hex", "ids")  # that a step must tell, or nothing is compared
BITWISE_KEYS = ("loss_hex", LOCAL_LOSS, "norm_hex", "lr_hex", "ids", "data_crc32", "digest")
UNROUNDED_KEYS = ("lr_hex", "ids", "data_crc32")  # that no order of sums changes


@dataclass(frozen=True)
class UnequalStep:
    """One step of one rank that differs, and in what."""

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
    """A digest by its beginning; all else whole."""
    return f"{value[:12]}..." if isinstance(value, str) and len(value) > 32 else value


def first_unequal_step(unequal: Sequence[UnequalStep]) -> tuple[UnequalStep, list[int]]:
    """Where the first step that differs does, and the ranks that are to blame; none are sometimes.

    One rank that computes wrongly makes every rank unequal.  It is told from them by its own loss,
    in the first step; a wrong gradient shows on none.  ValueError where nothing differs.
    """
    first = min(item.step for item in unequal)
    in_step = [item for item in unequal if item.step == first]
    local = [item for item in in_step if LOCAL_LOSS in item.keys]
    culprits = local if len(local) < len(in_step) else []
    return (culprits or in_step)[0], [item.rank for item in culprits]


@dataclass(frozen=True)
class StepComparison:
    """What differs of two runs, of how many steps, and how many of those tell what is compared."""

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
        """How many steps differ; None where none was seen to, and not every step was compared."""
        whole = self.steps and self.compared == self.steps
        return len(self.unequal) if whole or self.unequal else None

    @property
    def doubt(self) -> str:
        """Why nothing is known, in words."""
        if not self.steps:
            return "no step was done after a resume"
        return f"{self.steps - self.compared} of {self.steps} steps do not tell what is compared"


def compare_steps(
    reference: Sequence[dict[str, Any]],
    results: Sequence[dict[str, Any]],
    first: int = 1,
    tolerance: float | None = None,
) -> StepComparison:
    """Compare the steps of two runs from `first` on, rank by rank: bit by bit.

    With a `tolerance` (nats) samples and data are, and the loss of all ranks may differ by as much.
    Both are the trainer's results in order of rank: another number of ranks is a ValueError.  A
    step that one of them lacks is unequal.
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
    # Written so that what is no number differs.
    return keys if abs(losses[0] - losses[1]) <= tolerance else [*keys, "loss"]


def reordered_sums(reference: Sequence[dict[str, Any]], run: FaultedRun, victim: int) -> str:
    """Tell why the last bits of two runs on GPUs may differ: over which rings they added up.

    "" where all lives added over the rings of the reference run, and on CPUs, where sums go by
    rank.  What NCCL did not tell may have been any.
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
            return f"NCCL did not tell the rings of rank {rank}"
        if expected != actual:
            return f"NCCL added over other rings on rank {rank}"
    return ""


def loss_distance(reference: Sequence[dict[str, Any]], results: Sequence[dict[str, Any]]) -> float:
    """Measure the largest difference of the loss, all ranks' mean, over the steps that both have.

    NaN where a loss is no number, or none is compared.
    """
    expected = {step["step"]: step["loss"] for step in reference[0]["steps"]}
    gaps = [abs(step["loss"] - expected[step["step"]]) for step in results[0]["steps"]]
    return math.nan if any(map(math.isnan, gaps)) else max(gaps, default=math.nan)


def compare_attempts(
    run: FaultedRun, reference: dict[str, Any], attempts: int, tolerance: float | None = None
) -> StepComparison:
    """Compare the steps of the victim's first so many lives with its rank's `reference`."""
    expected, found = {step["step"]: step for step in reference["steps"]}, StepComparison()
    for attempt in range(attempts):
        steps = run.step_events(attempt)
        references = [expected[step["step"]] for step in steps if step["step"] in expected]
        pair = [{**reference, "steps": references}], [{**reference, "steps": steps}]
        found += compare_steps(*pair, tolerance=tolerance)
    return found
