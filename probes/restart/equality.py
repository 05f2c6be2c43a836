"""Is the resumed run the run that was never killed?  Compared bit by bit, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from probes.faults.injection import FaultedRun

LOCAL_LOSS = "local_loss_hex"  # of a rank's own sequences; loss and norm are the whole job's
BITWISE_KEYS = ("loss_hex", LOCAL_LOSS, "norm_hex", "lr_hex", "ids", "data_crc32", "digest")


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


def unequal_steps(
    reference: Sequence[dict[str, Any]], results: Sequence[dict[str, Any]], first: int = 1
) -> list[UnequalStep]:
    """Steps from `first` on where the ranks' results differ from the reference's.

    Both are the trainer's results in order of rank.  A step that one of them lacks is unequal.
    """
    unequal = []
    for expected, actual in zip(reference, results, strict=True):
        expected_steps = {step["step"]: step for step in expected["steps"] if step["step"] >= first}
        actual_steps = {step["step"]: step for step in actual["steps"] if step["step"] >= first}
        for number in sorted(expected_steps.keys() | actual_steps.keys()):
            a, b = expected_steps.get(number, {}), actual_steps.get(number, {})
            keys = [key for key in BITWISE_KEYS if a.get(key) != b.get(key)]
            if keys:
                unequal.append(UnequalStep(expected["rank"], number, keys, a, b))
    return unequal


def unequal_attempts(
    run: FaultedRun, reference: dict[str, Any], attempts: int
) -> list[UnequalStep]:
    """Compare the steps of the victim's first so many lives with its rank's `reference`."""
    expected, unequal = {step["step"]: step for step in reference["steps"]}, []
    for attempt in range(attempts):
        steps = run.step_events(attempt)
        references = [expected[step["step"]] for step in steps if step["step"] in expected]
        pair = [{**reference, "steps": references}], [{**reference, "steps": steps}]
        unequal += unequal_steps(*pair)
    return unequal
