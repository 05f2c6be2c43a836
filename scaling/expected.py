"""What communication should cost a step: the trainer's own calls, timed in the same gang.

Each rung times the collectives that a sharded step makes, around their sizes, and fits the
alpha-beta model to them.  A step that waits longer than that waits for something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reference_trainer.config import TrainConfig
from reference_trainer.flops import block_parameters, parameter_count
from reference_trainer.gang import Gang, GangError
from scaling.alphabeta import Fit, fit
from scaling.collectives import joined, summarise, swept
from scaling.operations import OPERATIONS
from scaling.predict import Call, communication

GRADIENT_BYTES = 4  # the trainer reduces in float32
SMALL_BYTES = 64  # the norm of the gradients, and the mean of the loss
LONGEST_SECONDS = 2.0
BUDGET_SECONDS = 0.1  # for each size


def calls_of(config: TrainConfig, weight_bytes: int) -> list[Call]:
    """The collectives of one fully sharded step; a weight is sent in so many bytes.

    Each block's weights are gathered twice, for forward and backward, those outside of the blocks
    once (FSDP2 keeps the root's); every gradient is reduced once.
    """
    block = block_parameters(config)
    root = parameter_count(config) - config.layers * block
    return [
        Call("all_gather", block * weight_bytes, 2 * config.layers * config.accumulate),
        Call("all_gather", root * weight_bytes, 1),
        Call("reduce_scatter", block * GRADIENT_BYTES, config.layers),
        Call("reduce_scatter", root * GRADIENT_BYTES, 1),
        Call("all_reduce", SMALL_BYTES, 2),
    ]


def expected(
    gang: Gang, groups: Sequence[Sequence[int]], calls: Sequence[Call], timeout: float = 120
) -> tuple[float, dict[str, Fit]]:
    """Seconds per step that these calls take in a group of the gang's workers, and the fits.

    Of several groups of equal size, which are timed side by side, the first one's.  A group of one
    communicates with nobody: 0.  Raises GangError when it could not be measured.
    """
    size = len(groups[0])
    if size < 2:
        return 0.0, {}
    found = gang.run(timed, _sizes(calls), groups=groups, timeout=timeout)[:size]
    fits = {}
    for name in found[0]:
        fitted = fit(summarise([one[name] for one in found]), OPERATIONS[name], size)
        if fitted is None:
            raise GangError(f"{name} could not be timed: {found[0][name]['note']}")
        fits[name] = fitted
    return communication(calls, fits, measured=size)(size), fits


def timed(sizes: dict[str, list[int]]) -> dict[str, Any]:
    """One rank's sweep of each operation at these sizes (bytes)."""
    with joined() as device:
        return {
            name: swept(device, OPERATIONS[name], LONGEST_SECONDS, BUDGET_SECONDS, each)
            for name, each in sizes.items()
        }


def _sizes(calls: Sequence[Call]) -> dict[str, list[int]]:
    """Each call's size, and one on either side, so that latency and bandwidth can be told apart."""
    sizes: dict[str, set[int]] = {}
    for call in calls:
        near = {int(call.size / 4), int(call.size), int(call.size * 4)}
        sizes.setdefault(call.operation, set()).update(near)
    return {name: sorted(each) for name, each in sizes.items()}
