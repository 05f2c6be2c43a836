"""What communication should cost a step: the trainer's own calls, replayed in the same gang.

Each rung replays the collectives of a sharded step in their order, without the trainer, with a rest
where the step computes.  What such a step takes longer than on one node is what more nodes should
cost; a step of the trainer that loses more loses it to something else.  It is no model: slow links
and what ranks that share cores do to each other are in it.  The alpha-beta model is fitted to what
each collective took, and is told beside it.

Nothing is computed behind a replayed collective, so on a GPU, where FSDP hides some, the replay is
more than a step waits.

Where an accelerator is emulated by sleeping, each rest ends with as much work for the core as the
trainer has beside: ranks that share cores and wake together hold each other up.
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
SMALL_BYTES = 64  # the mean of the loss, and the norm of the gradients with it
SIZE_DIVISOR = 16  # so many times smaller calls are timed too: latency and bandwidth are told apart
REPLAY_STEPS = 16  # steps
SMALL_STEP_EVERY = 4  # of so many steps that are played, one is of the smaller calls

ReplayItem = tuple[str, int] | None  # a collective and its bytes, or None: a block computes


def step_collectives(config: TrainConfig, weight_bytes: int) -> list[ReplayItem]:
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
    order: list[ReplayItem] = []
    for part in range(1, config.accumulate + 1):
        order += [("all_gather", root * weight_bytes), *[gather, None] * config.layers, gather]
        for layer in reversed(range(config.layers)):
            order += [gather] if layer else []
            order += [None, reduce] if part == config.accumulate else [None]
    return [*order, ("reduce_scatter", root * GRADIENT_BYTES), ("all_reduce", SMALL_BYTES)]


def count_calls(order: Sequence[ReplayItem]) -> list[CollectiveCall]:
    """How often each collective is called in a step."""
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
    """Seconds of each played step in a group of the gang's workers, and fits of its collectives.

    So many steps are played, with `sleep_s`, and `busy_s` of a core, for each block's
    computing: sockets and caches are cold after it, and ranks do not wake at once.  Of several
    groups of equal size, which are timed side by side, the median one's.  A group of one has no
    fits.  Raises GangError when it could not be measured.
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
    """Seconds per step that these calls would take less, were the links as fast as agreed.

    `fits` are those that `time_collectives` found among so many ranks; `busbw` is in GB/s.  What
    the links give is what the fastest collective shows that moves the model: one that is slower on
    the same links is so by itself, as gloo's reduce-scatter is.
    """
    large = {name for name, size in filter(None, order) if size > SMALL_BYTES}
    speedup = max(1.0, busbw / max(fits[name].bandwidth for name in large))
    rates = {name: fit.bandwidth * (speedup if name in large else 1) for name, fit in fits.items()}
    faster = {name: replace(model, bandwidth=rates[name]) for name, model in fits.items()}
    current_s, agreed_s = (modelled_seconds(order, models, ranks) for models in (fits, faster))
    return current_s - agreed_s


def modelled_seconds(order: Sequence[ReplayItem], fits: Mapping[str, Fit], ranks: int) -> float:
    """Seconds per step of these calls by their alpha-beta fits, which were taken on so many ranks:
    what they would take with nothing before or beside them."""
    return communication_model(count_calls(order), fits, measured=ranks)(ranks)


def min_bytes_sent(order: Sequence[ReplayItem], ranks: int, steps: int = REPLAY_STEPS) -> float:
    """Bytes that a node must send, at the least, when so many steps are played."""
    calls = count_calls(order)
    sent = (call.times * call.size * OPERATIONS[call.operation].factor(ranks) for call in calls)
    step_bytes = sum(sent)
    return step_bytes * steps * (SMALL_STEP_EVERY - 1) / SMALL_STEP_EVERY


def replay_on_rank(
    order: Sequence[ReplayItem], sleep_s: float, busy_s: float, steps: int
) -> tuple[list[float], dict[tuple[str, int], float]]:
    """One rank's seconds of each played step, and of the typical collective of each size (bytes).

    Some steps make smaller calls instead: they are for the fits alone.
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
    """What a block's computing is for the machine: an accelerator's time, and a core's."""
    time.sleep(sleep_s)  # it waits for nothing: an accelerator that computes needs no core
    start = time.thread_time()
    while time.thread_time() - start < busy_s:
        pass
