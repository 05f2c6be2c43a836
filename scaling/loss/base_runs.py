"""Whether the rung of one node is a base that others may be measured against.

Every efficiency is T_1 / T_n, so a base that something slowed down makes all larger rungs look
better than they are.  Disturbances only slow down: the fastest run is the honest one, and another
run as fast says that it is no accident.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaling.ladder.ladder import Rung
from scaling.loss.predict import step_seconds
from scaling.loss.significance import lower_half_mean

# Limits of efficiency have a marginal band of 0.05: a base known to that turns no FAIL into a PASS.
TOLERANCE = 0.05
MAX_REPEATS = 2  # of the base: one to confirm it, one more to tell which of two was disturbed


def base_doubt(base: Rung, other_runs: Sequence[float]) -> str:
    """Say why `base` is none, in words; "" where it may be compared with.

    `other_runs` are the seconds of a step in its other runs.
    """
    fastest, *slower = sorted([base.seconds, *other_runs])
    if not slower:
        return "the rung of 1 node was run once, and nothing confirms it"
    most = fastest * (1 + TOLERANCE)
    if slower[0] > most or base.seconds > most:
        runs = ", ".join(f"{seconds:.3g}" for seconds in (base.seconds, *other_runs))
        return f"one node takes {runs} s for a step in its runs, more than {TOLERANCE:.0%} apart"
    excess = base.seconds / lower_half_mean(step_seconds(base.judged_steps)) - 1
    if excess > TOLERANCE:
        return f"something disturbed one node: a step takes {excess:.0%} more than its faster half"
    return ""
