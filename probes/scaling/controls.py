"""Beside the ladder: a planted delay, steps that send nothing, the same work on fewer nodes."""

from __future__ import annotations

import dataclasses
import math
import statistics

from probes.acceptance.measure import Ledger
from probes.scaling.plan import said
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang, GangError
from scaling.ladder.ladder import Rung, climb, hush, strong
from scaling.ladder.skew import MEETINGS, Table
from scaling.ladder.step_breakdown import laggard, mean_seconds
from scaling.loss.causes import beyond
from scaling.loss.significance import standard_error

FEW, HARDEST = 4, 8  # steps of what only informs, and how many times its usual work a node does
COMPUTE = ("forward", "backward")  # the segments that hold a step's compute


def control(
    gang: Gang, names: dict[str, str], config: TrainConfig, rung: Rung, measure: Ledger
) -> None:
    """A delay planted on one rank comes back with its rank and segment, and all wait for it."""
    culprit, delay = len(rung.steps) // 2, 0.4 * rung.seconds
    planted = dataclasses.replace(config, steps=3, stall=f"data:rank={culprit}:seconds={delay}")
    found, saw = None, "one node"
    if rung.count > 1:
        try:
            late = climb(gang, names, rung.count, planted).steps
            seen = laggard(late)
            met = [statistics.fmean(step.spent(MEETINGS) for step in steps) for steps in late]
            waited = min(met[:culprit] + met[culprit + 1 :]) - met[culprit]
            located = (seen.rank, seen.segment) == (culprit, "data") and seen.share > 0.15
            found = located and waited > delay / 2
            saw = f"rank {seen.rank} in {seen.segment}, {seen.share:.0%}"
            saw += f"; each other rank waited {waited:.2g} s or more for it"
        except GangError as error:  # the rungs were measured all the same
            saw = str(error)
    measure.control(
        "planted delay",
        f"rank {culprit} waits {delay:.2g} s for its data in every step",
        caught=found,
        saw=saw,
    )


def unsent(
    gang: Gang, names: dict[str, str], rungs: list[Rung], config: TrainConfig, measure: Ledger
) -> None:
    """What a step computes when it is sharded as on the largest rung and nothing is sent.

    It should be what one node's step computes; what it is not, beyond the noise, is unexplained.
    """
    count, short = rungs[-1].count, dataclasses.replace(config, steps=FEW)
    try:
        silent = hush(gang, names, count, short).median_node()
    except GangError as error:
        measure.covered(f"a step without communication was not timed: {error}")
        return
    measure.note("without_communication", mean_seconds(silent), "s", on=said(count))
    measure.covered(f"sharded as on {said(count)}, {same_compute(silent, rungs[0].median_node())}")


def same_compute(silent: Table, alone: Table) -> str:
    """Whether steps that send nothing compute as long as those of one node, in words."""
    series = [computing(silent), computing(alone)]
    found, before = map(statistics.fmean, series)
    noise = math.hypot(*map(standard_error, series))
    more, doubt = found - before, beyond(noise, len(series[0]))
    text = f"with nothing sent, a step computes for {found:.3f} s; {before:.3f} s on one node"
    if abs(more) <= doubt:
        return f"{text}, the same within the noise ({doubt:.3f} s)"
    return f"{text}: {more:+.3f} s are unexplained"


def computing(ranks: Table) -> list[float]:
    """Seconds that a step computes, mean over ranks, by step."""
    return [statistics.fmean(step.spent(COMPUTE) for step in at) for at in zip(*ranks, strict=True)]


def same_work(
    gang: Gang, names: dict[str, str], nodes: list[int], config: TrainConfig, measure: Ledger
) -> dict[str, list[float]]:
    """Strong scaling, which only informs: the largest rung's step, done by fewer nodes as well.

    (nodes, efficiency against the fewest of them, tokens_per_gpu_step), as far as it could be run.
    """
    found: dict[str, list[float]] = {"nodes": [], "efficiency": [], "tokens_per_gpu_step": []}
    whole = None
    for count in [count for count in nodes if count * HARDEST >= nodes[-1]]:
        on = said(count)
        try:
            work = strong(dataclasses.replace(config, steps=FEW), count, nodes[-1])
            rung = climb(gang, names, count, work)
        except (GangError, ValueError) as error:
            measure.covered(f"the same work on {on} was not timed: {error}")
            break
        whole = whole or rung.seconds * count
        strength = whole / (rung.seconds * count)
        measure.note("strong_efficiency", strength, "ratio", on=f"{on}, {rung.load}")
        measure.covered(f"the same work on {on}: {rung.seconds:.3f} s with {rung.load}")
        for name, value in zip(found, (count, strength, rung.tokens_per_rank), strict=True):
            found[name].append(value)
    return found
