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
from scaling.collectives.alpha_beta import Fit, fit
from scaling.collectives.operations import OPERATIONS, Buffers
from scaling.collectives.sweep import call_seconds, joined
from scaling.loss.predict import Call, communication

GRADIENT_BYTES = 4  # the trainer reduces in float32
SMALL_BYTES = 64  # the mean of the loss, and the norm of the gradients with it
SMALLER = 16  # so many times smaller calls are timed too: latency and bandwidth are told apart
PLAYED = 16  # steps
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
    busy: float = 0.0,
    steps: int = PLAYED,
    timeout: float = 120,
) -> tuple[list[float], dict[str, Fit]]:
    """Seconds of each played step in a group of the gang's workers, and fits of its collectives.

    So many steps are played, with `rest` seconds, and `busy` seconds of a core, for each block's
    computing: sockets and caches are cold after it, and ranks do not wake at once.  Of several
    groups of equal size, which are timed side by side, the median one's.  A group of one has no
    fits.  Raises GangError when it could not be measured.
    """
    size = len(groups[0])
    found = gang.run(played, [*order], rest, busy, steps, groups=groups, timeout=timeout)
    each = [found[at : at + size] for at in range(0, len(found), size)]
    series = [
        [statistics.fmean(at) for at in zip(*(seconds for seconds, _ in group), strict=True)]
        for group in each
    ]
    rows: dict[str, list[dict[str, float]]] = {}
    calls = [one for _, one in found[:size]]
    for operation, moved in calls[0] if size > 1 else ():
        seconds = statistics.fmean(one[operation, moved] for one in calls)
        rows.setdefault(operation, []).append({"size": moved, "seconds": seconds})
    fits = {}
    for operation, sizes in rows.items():
        fitted = fit(sizes, OPERATIONS[operation], size)
        assert fitted is not None  # there are sizes, and more than one rank
        fits[operation] = fitted
    return sorted(series, key=statistics.median)[(len(series) - 1) // 2], fits


def spared_by_agreed_links(
    order: Sequence[Moment], fits: Mapping[str, Fit], ranks: int, busbw: float
) -> float:
    """Seconds per step that these calls would take less, were the links as fast as agreed.

    `fits` are those that `expected` found among so many ranks; `busbw` is in GB/s.  What the links
    give is what the fastest collective shows that moves the model: one that is slower on the same
    links is so by itself, as gloo's reduce-scatter is.
    """
    large = {name for name, size in filter(None, order) if size > SMALL_BYTES}
    by = max(1.0, busbw / max(fits[name].bandwidth for name in large))
    faster = {name: replace(one, bandwidth=one.bandwidth * by if name in large else one.bandwidth)
              for name, one in fits.items()}  # fmt: skip
    now, then = (modelled(order, each, ranks) for each in (fits, faster))
    return now - then


def modelled(order: Sequence[Moment], fits: Mapping[str, Fit], ranks: int) -> float:
    """Seconds per step of these calls by their alpha-beta fits, which were taken on so many ranks:
    what they would take with nothing before or beside them."""
    return communication(calls_of(order), fits, measured=ranks)(ranks)


def least_sent(order: Sequence[Moment], ranks: int, steps: int = PLAYED) -> float:
    """Bytes that a node must send, at the least, when so many steps are played."""
    calls = calls_of(order)
    step = sum(call.times * call.size * OPERATIONS[call.operation].factor(ranks) for call in calls)
    return step * steps * (EVERY - 1) / EVERY


def played(
    order: Sequence[Moment], rest: float, busy: float, steps: int
) -> tuple[list[float], dict[tuple[str, int], float]]:
    """One rank's seconds of each played step, and of the typical collective of each size (bytes).

    Some steps make smaller calls instead: they are for the fits alone.
    """
    import torch.distributed as dist

    whole: list[float] = []
    taken: dict[tuple[str, int], list[float]] = {}
    with joined() as device:

        def ready(operation: str, size: int) -> Buffers:
            kind = OPERATIONS[operation]
            count = max(1, kind.count(size, dist.get_world_size()))
            buffers = kind.buffers(device, count, kind.placements[0] == "in_place")
            buffers.reset()
            buffers.run()  # connections are made with the first call
            return buffers

        kinds = dict.fromkeys(moment for moment in order if moment)
        sizes = {(name, size // smaller) for name, size in kinds for smaller in (1, SMALLER)}
        buffers = {(name, size): ready(name, size) for name, size in sorted(sizes)}
        for step in range(steps):
            smaller = SMALLER if step % EVERY == EVERY - 1 else 1
            spent: dict[tuple[str, int], list[float]] = {}
            begun = time.perf_counter()
            for moment in order:
                if moment is None:
                    _compute(rest, busy)
                    continue
                call = moment[0], moment[1] // smaller
                spent.setdefault(call, []).append(call_seconds(buffers[call], device))
            if smaller == 1:
                whole.append(time.perf_counter() - begun)
            for call, each in spent.items():
                taken.setdefault(call, []).append(statistics.fmean(each))
    calls = {call: statistics.median(each) for call, each in taken.items()}
    return whole, calls


def _compute(rest: float, busy: float) -> None:
    """What a block's computing is for the machine: an accelerator's time, and a core's."""
    time.sleep(rest)  # it waits for nothing: an accelerator that computes needs no core
    begun = time.thread_time()
    while time.thread_time() - begun < busy:
        pass
