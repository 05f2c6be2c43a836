"""Provides what benchmarks share: a run on a lab's node, formatted values, targets."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tests.support.paths import REPO

if TYPE_CHECKING:
    from tests.lab.lab import Lab

MISSED: list[str] = []  # lines whose target is not met
TARGET_MISSED = 8  # exit code; 1 is Python's own, for a benchmark that raised an error


def on_node(lab: Lab, module: str, *words: str, seconds: float) -> str:
    """Run `python -m module words...` on node 0 and return its output; RuntimeError if it fails."""
    node = lab.nodes[0]
    done = subprocess.run(
        node.command(sys.executable, "-m", module, *words, cwd=str(REPO)),
        env={**node.environment(), "PYTHONPATH": str(REPO)},
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout


def spread(values: Iterable[float]) -> str:
    """Format values as `median (least to most, n=count)`."""
    known = sorted(values)
    if not known:
        return "none"
    return f"{statistics.median(known):.3g} ({known[0]:.3g} to {known[-1]:.3g}, n={len(known)})"


def judged(words: str, met: bool) -> None:
    """Print one line of a value with a target, and record it if the target is missed."""
    print(f"{words}: {'met' if met else 'NOT met'}", flush=True)
    if not met:
        MISSED.append(words)


def finish() -> None:
    """End the process: with TARGET_MISSED where a target was not met."""
    sys.exit(TARGET_MISSED if MISSED else 0)
