"""Checks that the rung of one node is a valid base for the larger rungs.

Every efficiency is T_1 / T_n. A base that was slowed down makes all larger rungs look better than
they are. Disturbances only slow down, so the fastest run is the correct one. A second run as fast
confirms it.
"""

from __future__ import annotations

from collections.abc import Sequence

from reports.numbers import percent
from scaling.ladder.ladder import Rung
from scaling.loss.predict import step_seconds
from scaling.loss.significance import lower_half_mean

# Limits of efficiency have a marginal band of 0.05. A base known to 0.05 turns no FAIL into PASS.
TOLERANCE = 0.05
MAX_REPEATS = 2  # of the base: one to confirm it, one to show which of two was disturbed


def base_doubt(base: Rung, other_runs: Sequence[float]) -> str:
    """Describe why `base` is not a valid base; "" if it is.

    `other_runs` are the mean seconds of a step in its other runs.
    """
    fastest, *slower = sorted([base.seconds, *other_runs])
    if not slower:
        return "the run of 1 node was not repeated, so nothing confirms it"
    most = fastest * (1 + TOLERANCE)
    if slower[0] > most or base.seconds > most:
        runs = ", ".join(f"{seconds:.3g}" for seconds in (base.seconds, *other_runs))
        return (
            f"a step on one node takes {runs} s in its runs, which differ by more than "
            f"{percent(TOLERANCE)}"
        )
    excess = base.seconds / lower_half_mean(step_seconds(base.judged_steps)) - 1
    if excess > TOLERANCE:
        return f"one node was disturbed: a step takes {percent(excess)} more than its faster half"
    return ""
