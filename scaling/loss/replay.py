"""Measures what communication should cost a step: replays the trainer's calls in the same gang.

Each rung replays the collectives of a sharded step in order, without the trainer, and pauses where
the step computes. The extra time of such a step, compared with one node, is the expected cost of
more nodes. If a step of the trainer loses more, other causes are at work. The replay is a
measurement, not a model: it contains slow links, and delays between ranks that share cores. The
alpha-beta model is fitted to the times of each collective and reported too.

Nothing is computed behind a replayed collective. On a GPU, where FSDP hides some collectives, the
replay takes longer than a step waits.

If an accelerator is emulated by sleeping, each pause ends with as much CPU work as the trainer's
step has. Ranks that share cores and wake together delay each other.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang
from reference_trainer.model.flops import block_parameters, parameter_count
from scaling.collectives.alpha_beta import Fit, fit_alpha_beta
from scaling.collectives.operations import OPERATIONS, Buffers
from scaling.collectives.sweep import process_group, time_call
from scaling.loss.predict import CollectiveCall, communication_model

GRADIENT_BYTES = 4  # the trainer reduces in float32
SMALL_BYTES = 64  # all-reduce of the mean loss and the gradients' norm
SIZE_DIVISOR = 16  # calls smaller by this factor are timed too, to separate latency from bandwidth
REPLAY_STEPS = 16  # replayed steps, a quarter of them with small calls
SMALL_STEP_EVERY = 4  # one of so many replayed steps makes the smaller calls

ReplayItem = tuple[str, int] | None  # (collective, bytes), or None: a block computes


def step_collectives(config: TrainConfig, weight_bytes: int) -> list[ReplayItem]:
    """List the collectives of one fully sharded step in order; a weight has `weight_bytes` bytes.

    The order is that of FSDP2. Each block's weights are gathered for forward, and again for
    backward one block ahead. Weights outside of the blocks are gathered once for both. Each
    gradient is reduced once, in the last part of the step.
    """
    block = block_parameters(config)
    root = parameter_count(config) - config.layers * block
    gather, reduce = (
        ("all_gather", block * weight_bytes),
        ("reduce_scatter", block * GRADIENT_BYTES),
    )
    order: list[ReplayItem] = []
    for part in range(1, config.accumulate + 1):
        order += [("all_gather", root * weight_bytes), *[gather, None] * config.layers, gather]
        for layer in reversed(range(config.layers)):
            order += [gather] if layer else []
            order += [None, reduce] if part == config.accumulate else [None]
    return [*order, ("reduce_scatter", root * GRADIENT_BYTES), ("all_reduce", SMALL_BYTES)]


def count_calls(order: Sequence[ReplayItem]) -> list[CollectiveCall]:
    """Count the calls of each collective in a step."""
    counts = Counter(item for item in order if item)
    return [CollectiveCall(operation, size, count) for (operation, size), count in counts.items()]


def time_collectives(
    gang: Gang,
    groups: Sequence[Sequence[int]],
    order: Sequence[ReplayItem],
    sleep_s: float,
    busy_s: float = 0.0,
    steps: int = REPLAY_STEPS,
    timeout: float = 120,
) -> tuple[list[float], dict[str, Fit]]:
    """Time replayed steps in groups of the gang's workers, and fit their collectives.

    Returns (seconds of each full-size step, mean over ranks; fits by operation). `steps` steps
    are played. Each block's compute is emulated by `sleep_s` seconds of sleep and `busy_s`
    seconds of CPU work: sockets and caches are cold after it, and ranks do not wake at once.
    Groups have equal size and run at the same time. The seconds are those of the median group,
    the fits those of the first. A group of one rank has no fits. Raises GangError if the
    measurement fails.
    """
    size = len(groups[0])
    results = gang.run(
        replay_on_rank, [*order], sleep_s, busy_s, steps, groups=groups, timeout=timeout
    )
    by_group = [results[row : row + size] for row in range(0, len(results), size)]
    series = [
        [statistics.fmean(row) for row in zip(*(seconds for seconds, _ in group), strict=True)]
        for group in by_group
    ]
    rows: dict[str, list[dict[str, float]]] = {}
    calls = [rank_calls for _, rank_calls in results[:size]]
    for operation, size_bytes in calls[0] if size > 1 else ():
        seconds = statistics.fmean(rank_calls[operation, size_bytes] for rank_calls in calls)
        rows.setdefault(operation, []).append({"size": size_bytes, "seconds": seconds})
    fits = {}
    for operation, sizes in rows.items():
        fitted = fit_alpha_beta(sizes, OPERATIONS[operation], size)
        assert fitted is not None  # there are sizes, and more than one rank
        fits[operation] = fitted
    return sorted(series, key=statistics.median)[(len(series) - 1) // 2], fits


def saved_at_agreed_rate(
    order: Sequence[ReplayItem], fits: Mapping[str, Fit], ranks: int, busbw: float
) -> float:
    """Return the seconds per step that these calls would save on links of the agreed rate.

    `fits` are those of `time_collectives` among `ranks` ranks. `busbw` is the agreed rate in
    GB/s. The rate of the links is that of the fastest collective that moves the model. A slower
    collective on the same links is slow for its own reasons, as gloo's reduce-scatter is.
    """
    large = {name for name, size in filter(None, order) if size > SMALL_BYTES}
    speedup = max(1.0, busbw / max(fits[name].bandwidth for name in large))
    rates = {name: fit.bandwidth * (speedup if name in large else 1) for name, fit in fits.items()}
    faster = {name: replace(model, bandwidth=rates[name]) for name, model in fits.items()}
    current_s, agreed_s = (modelled_seconds(order, models, ranks) for models in (fits, faster))
    return current_s - agreed_s


def modelled_seconds(order: Sequence[ReplayItem], fits: Mapping[str, Fit], ranks: int) -> float:
    """Compute the seconds per step of these calls by their fits, which were taken on `ranks` ranks.

    The calls run alone: no delay before them, no other load.
    """
    return communication_model(count_calls(order), fits, measured=ranks)(ranks)


def min_bytes_sent(order: Sequence[ReplayItem], ranks: int, steps: int = REPLAY_STEPS) -> float:
    """Compute the least bytes that a node must send when so many steps are replayed."""
    calls = count_calls(order)
    sent = (call.times * call.size * OPERATIONS[call.operation].factor(ranks) for call in calls)
    step_bytes = sum(sent)
    return step_bytes * steps * (SMALL_STEP_EVERY - 1) / SMALL_STEP_EVERY


def replay_on_rank(
    order: Sequence[ReplayItem], sleep_s: float, busy_s: float, steps: int
) -> tuple[list[float], dict[tuple[str, int], float]]:
    """Replay the steps on one rank.

    Returns (seconds of each full-size step, {(operation, bytes): typical seconds of one call}).
    Some steps make smaller calls instead, which only the fits use.
    """
    import torch.distributed as dist

    step_times: list[float] = []
    call_times: dict[tuple[str, int], list[float]] = {}
    with process_group() as device:

        def make_buffers(operation: str, size: int) -> Buffers:
            kind = OPERATIONS[operation]
            count = max(1, kind.count(size, dist.get_world_size()))
            buffers = kind.buffers(device, count, kind.placements[0] == "in_place")
            buffers.reset()
            buffers.run()  # connections are made with the first call
            return buffers

        collectives = dict.fromkeys(item for item in order if item)
        sizes = {
            (name, size // smaller) for name, size in collectives for smaller in (1, SIZE_DIVISOR)
        }
        buffers = {(name, size): make_buffers(name, size) for name, size in sorted(sizes)}
        for step in range(steps):
            smaller = SIZE_DIVISOR if step % SMALL_STEP_EVERY == SMALL_STEP_EVERY - 1 else 1
            spent: dict[tuple[str, int], list[float]] = {}
            start = time.perf_counter()
            for item in order:
                if item is None:
                    _emulate_compute(sleep_s, busy_s)
                    continue
                call = item[0], item[1] // smaller
                spent.setdefault(call, []).append(time_call(buffers[call], device))
            if smaller == 1:
                step_times.append(time.perf_counter() - start)
            for call, each in spent.items():
                call_times.setdefault(call, []).append(statistics.fmean(each))
    calls = {call: statistics.median(each) for call, each in call_times.items()}
    return step_times, calls


def _emulate_compute(sleep_s: float, busy_s: float) -> None:
    """Emulate a block's compute: an accelerator's time (sleep) and a core's time (busy loop)."""
    time.sleep(sleep_s)  # a computing accelerator needs no core, so sleeping emulates it
    start = time.thread_time()
    while time.thread_time() - start < busy_s:
        pass
