"""What communication should cost a step: the trainer's own calls, timed in the same gang.

Each rung times the collectives that a sharded step makes, around their sizes, and fits the
alpha-beta model to them.  A step that waits longer than that waits for something else.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from reference_trainer.config import TrainConfig
from reference_trainer.flops import block_parameters, parameter_count
from reference_trainer.gang import Gang
from scaling.alphabeta import Fit, fit
from scaling.collectives import call_seconds, joined
from scaling.operations import OPERATIONS
from scaling.predict import Call, communication

GRADIENT_BYTES = 4  # the trainer reduces in float32
SMALL_BYTES = 64  # the norm of the gradients, and the mean of the loss
CALLS = 5  # of each size: with a rest before each they take longer than a step


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
    gang: Gang,
    groups: Sequence[Sequence[int]],
    calls: Sequence[Call],
    rest: float = 0.0,
    timeout: float = 120,
) -> tuple[float, dict[str, Fit]]:
    """Seconds per step that these calls take in a group of the gang's workers, and the fits.

    Each is made after `rest` seconds without any, as a step computes between them: sockets and
    caches are cold then.  Of several groups of equal size, which are timed side by side, the first
    one's.  A group of one communicates with nobody: 0.  Raises GangError when it could not be
    measured.
    """
    size = len(groups[0])
    if size < 2:
        return 0.0, {}
    found = gang.run(timed, _sizes(calls), rest, groups=groups, timeout=timeout)[:size]
    fits = {}
    for name, sizes in found[0].items():
        rows = [
            {"size": moved, "seconds": statistics.fmean(one[name][moved] for one in found)}
            for moved in sizes
        ]
        fitted = fit(rows, OPERATIONS[name], size)
        assert fitted is not None  # there are sizes, and more than one rank
        fits[name] = fitted
    return communication(calls, fits, measured=size)(size), fits


def timed(sizes: dict[str, list[int]], rest: float) -> dict[str, dict[int, float]]:
    """One rank's seconds of each operation at these sizes (bytes): the median of some calls."""
    import torch.distributed as dist

    found: dict[str, dict[int, float]] = {}
    with joined() as device:
        for name, each in sizes.items():
            operation, found[name] = OPERATIONS[name], {}
            for size in each:
                count = max(1, operation.count(size, dist.get_world_size()))
                buffers = operation.buffers(device, count, operation.placements[0] == "in_place")
                buffers.reset()
                buffers.run()
                taken = []
                for _ in range(CALLS):
                    time.sleep(rest)
                    taken.append(call_seconds(buffers, device))
                found[name][size] = statistics.median(taken)
    return found


def _sizes(calls: Sequence[Call]) -> dict[str, list[int]]:
    """The calls' sizes and a much smaller one, so that latency and bandwidth can be told apart."""
    sizes: dict[str, set[int]] = {}
    for call in calls:
        sizes.setdefault(call.operation, set()).add(int(call.size))
    return {name: [min(each) // 16, *sorted(each)] for name, each in sizes.items()}
