"""What communication should cost a step: the trainer's own calls, timed in the same gang.

Each rung plays the collectives of a sharded step in their order, with a rest where the step
computes, and fits the alpha-beta model to what each took.  A step that waits longer than that waits
for something else.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from reference_trainer.config import TrainConfig
from reference_trainer.flops import block_parameters, parameter_count
from reference_trainer.gang import Gang
from scaling.alphabeta import Fit, fit
from scaling.collectives import call_seconds, joined
from scaling.operations import OPERATIONS, Buffers
from scaling.predict import Call, communication

GRADIENT_BYTES = 4  # the trainer reduces in float32
SMALL_BYTES = 64  # the mean of the loss, and the norm of the gradients with it
SMALLER = 16  # so many times smaller calls are timed too: latency and bandwidth are told apart
PLAYED = 12  # steps
EVERY = 4  # of so many steps that are played, one is of the smaller calls

Moment = tuple[str, int] | None  # a collective and its bytes, or None: a block computes


def order_of(config: TrainConfig, weight_bytes: int) -> list[Moment]:
    """The collectives of one fully sharded step in their order; a weight is sent in so many bytes.

    As FSDP2 makes them: each block's weights are gathered for forward, and again for backward one
    block ahead; those outside of the blocks once for both.  Each gradient is reduced once, in the
    last part of the step.
    """
    block = block_parameters(config)
    root = parameter_count(config) - config.layers * block
    gather, reduce = (
        ("all_gather", block * weight_bytes),
        ("reduce_scatter", block * GRADIENT_BYTES),
    )
    order: list[Moment] = []
    for part in range(1, config.accumulate + 1):
        order += [("all_gather", root * weight_bytes), *[gather, None] * config.layers, gather]
        for left in reversed(range(config.layers)):
            order += [gather] if left else []
            order += [None, reduce] if part == config.accumulate else [None]
    return [*order, ("reduce_scatter", root * GRADIENT_BYTES), ("all_reduce", SMALL_BYTES)]


def calls_of(order: Sequence[Moment]) -> list[Call]:
    """How often each collective is called in a step."""
    times = Counter(moment for moment in order if moment)
    return [Call(operation, size, count) for (operation, size), count in times.items()]


def expected(
    gang: Gang,
    groups: Sequence[Sequence[int]],
    order: Sequence[Moment],
    rest: float,
    steps: int = PLAYED,
    timeout: float = 120,
) -> tuple[float, dict[str, Fit]]:
    """Seconds per step that these calls take in a group of the gang's workers, and the fits.

    So many steps are played, with `rest` seconds for each block's computing: sockets and caches
    are cold after it, and ranks do not wake at once.  Of several groups of equal size, which are
    timed side by side, the first one's.  A group of one communicates with nobody: 0.  Raises
    GangError when it could not be measured.
    """
    size = len(groups[0])
    if size < 2:
        return 0.0, {}
    found = gang.run(played, [*order], rest, steps, groups=groups, timeout=timeout)[:size]
    rows: dict[str, list[dict[str, float]]] = {}
    for operation, moved in found[0]:
        seconds = statistics.fmean(one[operation, moved] for one in found)
        rows.setdefault(operation, []).append({"size": moved, "seconds": seconds})
    fits = {}
    for operation, each in rows.items():
        fitted = fit(each, OPERATIONS[operation], size)
        assert fitted is not None  # there are sizes, and more than one rank
        fits[operation] = fitted
    return communication(calls_of(order), fits, measured=size)(size), fits


def on_agreed_links(
    order: Sequence[Moment], fits: Mapping[str, Fit], ranks: int, busbw: float
) -> float:
    """Seconds per step of these calls, were no bandwidth below the agreed one (GB/s of busbw).

    `fits` are those that `expected` found among so many ranks.
    """
    faster = {name: replace(one, bandwidth=max(one.bandwidth, busbw)) for name, one in fits.items()}
    return communication(calls_of(order), faster, measured=ranks)(ranks)


def played(order: Sequence[Moment], rest: float, steps: int) -> dict[tuple[str, int], float]:
    """One rank's seconds of each collective and size (bytes), over the typical step's calls."""
    import torch.distributed as dist

    taken: dict[tuple[str, int], list[float]] = {}
    with joined() as device:

        def ready(operation: str, size: int) -> Buffers:
            kind = OPERATIONS[operation]
            count = max(1, kind.count(size, dist.get_world_size()))
            buffers = kind.buffers(device, count, kind.placements[0] == "in_place")
            buffers.reset()
            buffers.run()  # connections are made with the first call
            return buffers

        whole = dict.fromkeys(moment for moment in order if moment)
        sizes = {(name, size // smaller) for name, size in whole for smaller in (1, SMALLER)}
        buffers = {(name, size): ready(name, size) for name, size in sorted(sizes)}
        for step in range(steps):
            smaller = SMALLER if step % EVERY == EVERY - 1 else 1
            spent: dict[tuple[str, int], list[float]] = {}
            for moment in order:
                if moment is None:
                    time.sleep(rest)  # a block computes
                    continue
                call = moment[0], moment[1] // smaller
                spent.setdefault(call, []).append(call_seconds(buffers[call], device))
            for call, each in spent.items():
                taken.setdefault(call, []).append(statistics.fmean(each))
    return {call: statistics.median(each) for call, each in taken.items()}
