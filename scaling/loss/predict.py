"""Predicts a step's communication: by a model, and by a replay of its collectives."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from reference_trainer.config import TrainConfig
from reference_trainer.late import dist
from reference_trainer.launch.gang import Gang
from reference_trainer.model.size import block_parameters, parameter_count
from reference_trainer.process_group import JOB, joins
from reports.groups import group_pairs
from reports.numbers import percent
from scaling.bounds import Amount, Count
from scaling.collectives import sweep
from scaling.collectives.line_rate import Fit, fit_alpha_beta
from scaling.collectives.operations import OPERATIONS, Buffers
from scaling.collectives.sweep import median_precision
from scaling.ladder.step_breakdown import RankSteps, by_step
from scaling.loss.significance import Runs, bootstrap_interval, expected_maximum, mad_deviation

NODE_COUNTS = (16, 64, 256, 1024)

MIN_SHARE = 0.001  # share of a step; a smaller loss is not reported

Z90 = 1.645  # standard deviations that contain nine of ten normal values


@dataclass(frozen=True)
class CollectiveCall:
    """`times` calls per step of one collective of `size` bytes, as nccl-tests counts size."""

    operation: str
    size: Amount
    times: Count


def communication_model(
    calls: Sequence[CollectiveCall], fits: Mapping[str, Fit], measured: int, per_node: int = 1
) -> Callable[[int], float]:
    """Return a function from the number of nodes to the seconds per step of these calls.

    `fits` are by operation, taken over `measured` ranks. Latency grows with the hops of a ring,
    ranks - 1. The function raises KeyError if an operation has no fit. Raises ValueError if the
    fits are of one rank.
    """
    if measured < 2:
        raise ValueError(f"collectives must be measured over 2 ranks or more, not {measured}")

    def seconds(nodes: int) -> float:
        ranks, total = nodes * per_node, 0.0
        for call in calls:
            fit = fits[call.operation]
            latency = fit.latency_us * 1e-6 * (ranks - 1) / (measured - 1)
            moved = call.size * OPERATIONS[call.operation].factor(ranks)
            total += call.times * (latency + moved / (fit.bandwidth * 1e9))
        return total

    return seconds


@dataclass(frozen=True)
class Prediction:
    """Efficiency at a number of nodes, with the band that should contain nine of ten outcomes."""

    nodes: int
    efficiency: float
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """Predictions, their assumptions, and how well the model fits the measured rungs.

    `share` is the part of the predicted communication that a step pays for. `beside` is the
    seconds of a step that the largest rung lost to neither communication nor variation.
    `misfit` is the root mean square of (model / measured - 1) over the rungs' step times.
    """

    predictions: tuple[Prediction, ...]
    share: float
    beside: float
    misfit: float
    assumptions: tuple[str, ...]
    load: str = ""  # load of each GPU, in words

    def __str__(self) -> str:
        figures = ", ".join(
            f"{percent(p.efficiency)} ({percent(p.low)} to {percent(p.high)}) on {p.nodes}"
            for p in self.predictions
        )
        load = f", {self.load}" if self.load else ""
        return f"predicted, not measured: efficiency {figures} nodes{load}"

    def columns(self) -> dict[str, list[float]]:
        """Return the predictions by column: nodes, efficiency, and the ends of the band."""
        names = ("nodes", "efficiency", "low", "high")
        return {name: [getattr(p, name) for p in self.predictions] for name in names}


def forecast_efficiency(
    rungs: Mapping[int, RankSteps],
    collectives: Callable[[int], float],
    sizes: Sequence[int] = NODE_COUNTS,
    communication_loss: Mapping[int, float] | None = None,
    causes: Sequence[str] = (),
    load: str = "",
) -> Forecast:
    """Predict the efficiency at sizes that were not measured.

    `rungs` are the steps of every rank by node count, 1 among them. `collectives(n)` is the
    seconds per step that communication takes on n nodes. `communication_loss` is the seconds of
    a step that each larger rung lost to communication (None: its complete loss). `causes` names
    the other causes of the largest rung, and `load` the load of each GPU, in words. Raises
    ValueError without a rung of 1 node and two larger ones.
    """
    larger = sorted(count for count in rungs if count > 1)
    if 1 not in rungs or len(larger) < 2:
        known = ", ".join(map(str, sorted(rungs))) or "none"
        raise ValueError(f"a prediction needs 1 node and two larger node counts, found: {known}")
    series = [step_seconds(rungs[count]) for count in (1, *larger)]
    means = [*map(statistics.fmean, series)]
    model = _Model(larger, collectives, mad_deviation(series[0]), dict.fromkeys(larger, 0.0))
    if communication_loss is not None:
        model = model.with_other_loss(means, communication_loss)
    predictions = tuple(model.predict(series, nodes) for nodes in sizes)
    share, top_loss = model.share(means), model.other_loss[larger[-1]]
    assumptions = _list_assumptions(larger, share, model.noise / means[0])
    if top_loss > MIN_SHARE * means[-1]:
        named = f" ({', '.join(causes)})" if causes else ""
        message = f"{top_loss:.2g} s of a step were lost to causes other than communication"
        lost = "the same is lost at every number of nodes"
        assumptions += (f"on {larger[-1]} nodes {message}{named}; {lost}",)
    return Forecast(predictions, share, top_loss, model.misfit(means), assumptions, load)


@dataclass(frozen=True)
class _Model:
    """Model of the step time by node count.

    `means` in its methods are the mean steps of 1 node and of the `larger` rungs, in seconds.
    `other_loss` is the seconds of a step that each rung lost to causes other than known
    communication, by node count.
    """

    larger: Sequence[int]
    collectives: Callable[[int], float]
    noise: float  # standard deviation of a node's steps alone, seconds
    other_loss: Mapping[int, float]

    def communication_seconds(self, means: Sequence[float]) -> list[float]:
        """Return the seconds of each larger rung's step that only communication can explain."""
        return [
            mean - means[0] - self.noise * expected_maximum(count) - self.other_loss[count]
            for mean, count in zip(means[1:], self.larger, strict=True)
        ]

    def with_other_loss(self, means: Sequence[float], communication: Mapping[int, float]) -> _Model:
        """Add `other_loss` to the model: what each rung lost, but not to communication."""
        lost = zip(self.larger, self.communication_seconds(means), strict=True)
        other_loss = {count: max(0.0, each - communication[count]) for count, each in lost}
        return replace(self, other_loss=other_loss)

    def predict(self, series: Sequence[Sequence[float]], nodes: int) -> Prediction:
        """Predict the efficiency; `series` are the steps of 1 node and of the `larger` rungs."""
        means = [*map(statistics.fmean, series)]
        best = self.efficiency(means, nodes)
        runs = [[steps] for steps in series]
        low, high = bootstrap_interval(runs, lambda means: self.efficiency(means, nodes), 0.9)
        # The model's error grows with the doublings beyond the largest measured rung.
        doublings = max(0.0, math.log2(nodes / self.larger[-1]))
        model_error = Z90 * self.misfit(means) * best * math.sqrt(1 + doublings)
        down, up = math.hypot(best - low, model_error), math.hypot(high - best, model_error)
        return Prediction(nodes, best, max(0.0, best - down), min(1.0, best + up))

    def share(self, means: Sequence[float]) -> float:
        """Fit the share of communication to the rungs by least squares; not below 0."""
        extra = self.communication_seconds(means)
        modelled = [self.collectives(count) for count in self.larger]
        denominator = sum(x * x for x in modelled)
        numerator = sum(x * y for x, y in zip(modelled, extra, strict=True))
        return max(0.0, numerator / denominator) if denominator else 0.0

    def seconds(self, means: Sequence[float], nodes: int) -> float:
        """Return the seconds of a step on that many nodes."""
        waiting = self.noise * expected_maximum(nodes)
        other_loss = self.other_loss.get(nodes, self.other_loss[self.larger[-1]])
        return means[0] + waiting + other_loss + self.share(means) * self.collectives(nodes)

    def efficiency(self, means: Sequence[float], nodes: int) -> float:
        """Return T(1) / T(n)."""
        return means[0] / self.seconds(means, nodes)

    def misfit(self, means: Sequence[float]) -> float:
        """Return the root mean square of (model / measured - 1).

        One number was fitted, so the divisor is the number of larger rungs minus 1.
        """
        errors = [
            self.seconds(means, count) / mean - 1
            for count, mean in zip(self.larger, means[1:], strict=True)
        ]
        return math.sqrt(sum(error**2 for error in errors) / (len(errors) - 1))


def step_seconds(ranks: RankSteps) -> list[float]:
    """List the mean seconds over ranks of each step."""
    return by_step(ranks, lambda step: step.seconds)


def _list_assumptions(larger: Sequence[int], share: float, noise: float) -> tuple[str, ...]:
    rungs = ", ".join(map(str, (1, *larger)))
    return (
        f"only {rungs} nodes were measured, and nothing larger",
        "every GPU keeps its tokens per step (weak scaling), its model and its sharding",
        f"communication costs {share:.2f} times what its model predicts, as measured here",
        "latency grows with the hops of a ring; a tree would reduce it",
        "bandwidth per node stays the same, though larger jobs cross more switches",
        f"added nodes are as healthy as these nodes; steps vary by {percent(noise)}, independently",
        "a larger size adds no failures, slow nodes or storage limits",
        "the range covers this run's noise and the model's error, not what the model leaves out",
    )


def efficiency_interval(base: Runs, current: Runs) -> tuple[float, float]:
    """Bound E_n = T_1 / T_n with 95 % confidence, by a bootstrap over runs and blocks of steps.

    `base` and `current` are runs of the two rungs, at least one each. A run is the seconds of
    its steps. With a single run the interval covers the differences between steps, not between
    runs. With few steps it is too narrow.
    """
    return bootstrap_interval([base, current], lambda means: means[0] / means[1], 0.95)


GRADIENT_BYTES = 4  # the trainer reduces in float32
SMALL_BYTES = 64  # all-reduce of the mean loss and the gradients' norm
SIZE_DIVISOR = 16  # calls smaller by this factor are timed too, to separate latency from bandwidth
REPLAY_STEPS = 16  # most replayed steps, a quarter of them with small calls
LEAST_REPLAY_STEPS = 12  # from here on a replay ends once its median step is known well enough
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
    gather = ("all_gather", block * weight_bytes)
    reduce = ("reduce_scatter", block * GRADIENT_BYTES)
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

    Returns (seconds of each full-size step, mean over ranks; fits by operation). At most `steps`
    steps are played (see `replay_on_rank`). Each block's compute is emulated by `sleep_s` seconds
    of sleep and `busy_s` seconds of CPU work: sockets and caches are cold after it, and ranks do
    not wake at once.
    Groups run at the same time. The seconds are those of the median group, the fits those of the
    first of the largest. A group of one rank has no fits. Raises GangError if the measurement
    fails.
    """
    played = [*order], sleep_s, busy_s, steps
    answers = iter(gang.run(replay_on_rank, *played, groups=groups, timeout=timeout))
    by_group = [[next(answers) for _ in group] for group in groups]
    series = [
        [statistics.fmean(row) for row in zip(*(seconds for seconds, _ in group), strict=True)]
        for group in by_group
    ]
    calls = [rank_calls for _, rank_calls in max(by_group, key=len)]
    rows = group_pairs(
        (name, {"size": size, "seconds": statistics.fmean(each[name, size] for each in calls)})
        for name, size in calls[0]
    )
    fits = {
        name: fitted  # of one rank there is none
        for name, sizes in rows.items()
        if (fitted := fit_alpha_beta(sizes, OPERATIONS[name], len(calls)))
    }
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


def min_bytes_sent(order: Sequence[ReplayItem], ranks: int, steps: int) -> float:
    """Compute the least bytes that a node must send in so many full-size steps."""
    calls = count_calls(order)
    sent = (call.times * call.size * OPERATIONS[call.operation].factor(ranks) for call in calls)
    return sum(sent) * steps


@joins(JOB)
def replay_on_rank(
    order: Sequence[ReplayItem], sleep_s: float, busy_s: float, steps: int
) -> tuple[list[float], dict[tuple[str, int], float]]:
    """Replay the steps on one rank, until every rank knows its median step to PRECISION.

    At least LEAST_REPLAY_STEPS and at most `steps` are played. Returns (seconds of each full-size
    step, {(operation, bytes): typical seconds of one call}). Some steps make smaller calls
    instead, which only the fits use.
    """
    step_times: list[float] = []
    call_times: dict[tuple[str, int], list[float]] = {}
    with sweep.process_group(kind=JOB) as device:

        def make_buffers(operation: str, size: int) -> Buffers:
            kind = OPERATIONS[operation]
            count = max(1, kind.count(size, dist.get_world_size()))
            buffers = kind.buffers(device, count, kind.placements[0] == "in_place")
            buffers.reset()
            buffers.run()  # connections are made with the first call
            return buffers

        collectives = dict.fromkeys(item for item in order if item)
        sizes = {(name, size // by) for name, size in collectives for by in (1, SIZE_DIVISOR)}
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
                spent.setdefault(call, []).append(sweep.time_call(buffers[call], device))
            if smaller == 1:
                step_times.append(time.perf_counter() - start)
            for call, each in spent.items():
                call_times.setdefault(call, []).append(statistics.fmean(each))
            if smaller > 1 and LEAST_REPLAY_STEPS <= step + 1 < steps:
                (precision,) = sweep.largest_of_ranks([median_precision(step_times)], device)
                if precision < sweep.PRECISION:
                    break
    return step_times, {call: statistics.median(each) for call, each in call_times.items()}


def _emulate_compute(sleep_s: float, busy_s: float) -> None:
    """Emulate a block's compute: an accelerator's time (sleep) and a core's time (busy loop)."""
    time.sleep(sleep_s)  # a computing accelerator needs no core, so sleeping emulates it
    start = time.thread_time()
    while time.thread_time() - start < busy_s:
        pass
