"""Measurements after the ladder: a planted delay, steps without sends, strong scaling."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from probes.scaling.judge import LimitLookup, judge_efficiency, judge_stragglers
from probes.scaling.plan import LadderRig, node_count_text
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import GangError
from reports.measurement import Limit
from reports.numbers import percent
from scaling.ladder.ladder import Rung, run_rung, skip_collectives, strong_scaling_config
from scaling.ladder.skew import COLLECTIVE_SEGMENTS, RankSteps
from scaling.ladder.step_breakdown import find_stragglers, mean_seconds
from scaling.loss.causes import noise_limit
from scaling.loss.ladder_result import Ladder
from scaling.loss.significance import standard_error

FEW_STEPS = 4  # steps of measurements that only inform
MIN_DELAY = 0.4  # of a step: the shortest planted delay
DELAYED_BY = 1.2  # times the longest step that the limit of efficiency allows
MAX_WORK = 8  # times its usual work that a node does at most: more would take too long
COMPUTE = ("forward", "backward")  # the segments that hold a step's compute


def control_planted_delay(
    rig: LadderRig, config: TrainConfig, ladder: Ladder, limits: LimitLookup
) -> None:
    """Check that a delay planted on one rank is located by rank and segment, and that all wait."""
    rung, limit = ladder.rungs[-1], limits("efficiency")
    culprit, delay = len(rung.steps) // 2, planted_delay(ladder, limit)
    planted = dataclasses.replace(config, steps=3, stall=f"data:rank={culprit}:seconds={delay}")
    fault = f"rank {culprit} waits {delay:.2g} s for its data in every step"
    if rung.count == 1:
        rig.measure.control("planted delay", fault, None, saw="one node")
        return
    try:
        late = run_rung(rig.gang, rig.node_names, rung.count, planted)
    except GangError as error:  # the measurements of the rungs remain valid
        rig.measure.control("planted delay", fault, None, saw=str(error))
        return
    trial = rig.measure.trial()
    judge_efficiency(ladder, late, limit, trial)
    judge_stragglers([ladder.rungs[0], late], limits, trial)
    located, observed = locate_delay(late.steps, culprit, delay)
    rig.measure.control(
        "planted delay",
        fault,
        trial,
        located=located,
        saw=f"efficiency {percent(ladder.efficiency(late))}; {observed}",
        without=() if limit else ("efficiency",),
    )


def planted_delay(ladder: Ladder, limit: Limit | None) -> float:
    """Compute a delay (s) that makes the largest rung's step longer than the limit allows."""
    seconds, base = ladder.rungs[-1].seconds, ladder.rungs[0].seconds
    allowed = base / limit.low if limit and limit.low else 0.0
    return max(MIN_DELAY * seconds, DELAYED_BY * allowed - seconds)


def locate_delay(late: RankSteps, culprit: int, delay: float) -> tuple[bool, str]:
    """Judge whether the delay is where it was planted and all others waited; describe it too."""
    slowest = find_stragglers(late)[0]
    blocked = [
        statistics.fmean(step.seconds_in(COLLECTIVE_SEGMENTS) for step in steps) for steps in late
    ]
    waited = min(blocked[:culprit] + blocked[culprit + 1 :]) - blocked[culprit]
    located = (slowest.rank, slowest.segment) == (culprit, "data") and waited > delay / 2
    return located, (
        f"rank {slowest.rank} in {slowest.segment}, {percent(slowest.share)}; each other rank "
        f"waited {waited:.2g} s or more for it"
    )


def time_unsent_step(rig: LadderRig, rungs: Sequence[Rung], config: TrainConfig) -> None:
    """Time the compute of a step that is sharded as on the largest rung and sends nothing.

    It should equal one node's compute.  A difference beyond the noise is unexplained.
    """
    count, short = rungs[-1].count, dataclasses.replace(config, steps=FEW_STEPS)
    on = node_count_text(count)
    try:
        silent = skip_collectives(rig.gang, rig.node_names, count, short).median_node()
    except GangError as error:
        rig.measure.covered(f"a step without communication was not timed: {error}")
        return
    rig.measure.note("without_communication", mean_seconds(silent), "s", on=on)
    rig.measure.covered(f"sharded as on {on}, {compare_compute(silent, rungs[0].median_node())}")


def compare_compute(silent: RankSteps, alone: RankSteps) -> str:
    """Describe whether a step that sends nothing computes as long as one node's step."""
    series = [compute_seconds(silent), compute_seconds(alone)]
    mean, base = map(statistics.fmean, series)
    noise = math.hypot(*map(standard_error, series))
    excess, margin = mean - base, noise_limit(noise, len(series[0]))
    text = f"without communication, a step computes for {mean:.3f} s; on one node {base:.3f} s"
    if abs(excess) <= margin:
        return f"{text}, the same within the noise ({margin:.3f} s)"
    return f"{text}: {excess:+.3f} s are unexplained"


def compute_seconds(ranks: RankSteps) -> list[float]:
    """Compute the seconds that each step computes, as a mean over ranks."""
    steps = zip(*ranks, strict=True)
    return [statistics.fmean(step.seconds_in(COMPUTE) for step in each) for each in steps]


def time_same_work(rig: LadderRig, nodes: list[int], config: TrainConfig) -> dict[str, list[float]]:
    """Time strong scaling, which only informs: the largest rung's step, done by fewer nodes.

    Returns the lists `nodes`, `efficiency` (against the fewest nodes) and `tokens_per_gpu_step`.
    They end at the first count that fails.
    """
    measure, short = rig.measure, dataclasses.replace(config, steps=FEW_STEPS)
    series: dict[str, list[float]] = {"nodes": [], "efficiency": [], "tokens_per_gpu_step": []}
    total = None
    for count in [count for count in nodes if count * MAX_WORK >= nodes[-1]]:
        on = node_count_text(count)
        try:
            work = strong_scaling_config(short, count, nodes[-1])
            rung = run_rung(rig.gang, rig.node_names, count, work)
        except (GangError, ValueError) as error:
            measure.covered(f"the same work on {on} was not timed: {error}")
            break
        total = total or rung.seconds * count
        efficiency = total / (rung.seconds * count)
        measure.note("strong_efficiency", efficiency, "ratio", on=f"{on}, {rung.load_text}")
        measure.covered(f"the same work on {on}: {rung.seconds:.3f} s with {rung.load_text}")
        for name, value in zip(series, (count, efficiency, rung.tokens_per_rank), strict=True):
            series[name].append(value)
    return series
