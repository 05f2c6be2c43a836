"""Judges the ladder: efficiency, stragglers, every lost percent; and controls of SCALING."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from probes.check.recorder import Recorder
from probes.findings import finding
from probes.scaling import criterion as check
from probes.scaling import run_ladder
from probes.scaling.run_ladder import LadderRig, node_count_text
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import GangError
from reports.measurement import Limit, Verdict
from reports.numbers import percent
from reports.record import Finding
from scaling.ladder import step_breakdown as breakdown
from scaling.ladder.ladder import Rung, run_rung, skip_collectives, strong_scaling_config
from scaling.loss.causes import LossCause, noise_limit
from scaling.loss.explain import Explanation
from scaling.loss.ladder_result import Ladder
from scaling.loss.predict import Forecast
from scaling.loss.significance import standard_error

LimitLookup = Callable[[str], Limit | None]

# With sharding each rank's optimizer does less work; that gains a few per cent at most.
MAX_EFFICIENCY = 1.1
# Codes of rungs that have no figures, or worthless ones.
INVALID_CODES = ("SCALE-RUNG-FAILED", "SCALE-NAN", "SCALE-RANKS-DISAGREE")


def judge_ladder(
    ladder: Ladder, limits: LimitLookup, measure: Recorder, alone: bool = False
) -> list[Explanation]:
    """Judge each rung's efficiency, residual and stragglers; return the rungs' explanations.

    `alone`: one node was ordered, so no efficiency is owed.
    """
    rungs, limit = ladder.rungs, limits(check.EFFICIENCY)
    base, required = rungs[0].median_node(), run_ladder.required_efficiency(limit)
    explained = ladder.explanations(required)
    causes = causes_to_report(ladder, explained, limit)
    for rung, loss in reversed([*zip(rungs[1:], explained, strict=True)]):
        on = node_count_text(rung.count)
        judge_efficiency(ladder, rung, limit, measure)
        # The rung is judged by the replay.  The alpha-beta time is that of the same calls alone.
        added, modelled = ladder.replay_growth.get(rung.count), ladder.fit_growth.get(rung.count)
        measure.note("communication_added_in_replay", added, "s", on=on)
        measure.note("modelled_communication", modelled, "s", on=on)
        gaps = [breakdown.loss_residual(base, rung.steps), breakdown.segment_gap(rung.steps)]
        measure(check.RESIDUAL, breakdown.largest(gaps), on=on)
        measure.covered(str(loss))
        if rung.count in causes:
            measure.explain(finding("SCALE-EFFICIENCY", str(loss)))
        for cause in causes.get(rung.count, []):
            names = words_of(cause.where)
            suspects = [node for node in dict.fromkeys(rung.nodes) if node in names]
            measure.explain(finding(cause.code, f"at {on}, {cause.statement}", suspects))
    if len(rungs) == 1 and not alone:
        subject = f"{node_count_text(1)}, {rungs[0].load_text}"
        measure(check.EFFICIENCY, None, on=subject, note="scaling needs at least 2 nodes")
    measure(check.RESIDUAL, breakdown.segment_gap(rungs[0].steps), on=node_count_text(1))
    for rung in rungs:
        judge_rung(rung, measure, node_count_text(rung.count))
    for number, rung in enumerate(ladder.base_repeats, 1):
        judge_rung(rung, measure, f"{node_count_text(1)}, other run {number}")
        ratio = rung.seconds / rungs[0].seconds
        measure.note("base_repeat", ratio, "ratio", on=f"{node_count_text(1)}, other run {number}")
    last = rungs[-1]
    measure.covered(breakdown.describe_exposed(last.steps, last.separable, last.nodes))
    judge_stragglers(rungs, limits, measure)
    return explained


def causes_to_report(
    ladder: Ladder, explained: Sequence[Explanation], limit: Limit | None
) -> dict[int, list[LossCause]]:
    """Select the causes to report for each rung that does not pass the efficiency limit.

    The result is by node count.  A cause on a larger rung is not reported again on a smaller one.
    """
    causes: dict[int, list[LossCause]] = {}
    named: list[LossCause] = []
    for rung, loss in reversed([*zip(ladder.rungs[1:], explained, strict=True)]):
        if limit and limit.judge(ladder.efficiency(rung)) is not Verdict.PASS:
            new = [cause for cause in loss.causes if not already_reported(cause, named)]
            causes[rung.count] = new
            named += loss.causes
    return causes


def already_reported(cause: LossCause, named: Sequence[LossCause]) -> bool:
    """Return whether a cause was already `named`, at the same place or a larger one.

    Unexplained time in another segment is another cause.
    """

    def known(reported: LossCause) -> bool:
        same = cause.code == reported.code and words_of(cause.where) <= words_of(reported.where)
        any_segment = cause.code != "SCALE-UNEXPLAINED"
        return same and (any_segment or words_of(cause.segment) <= words_of(reported.segment))

    return any(map(known, named))


def words_of(where: str) -> set[str]:
    """Split a cause's place into its words, nodes among them."""
    return set(re.split("[ ,]+", where))


def judge_efficiency(ladder: Ladder, rung: Rung, limit: Limit | None, measure: Recorder) -> None:
    """Judge one rung's efficiency.  Its spread is half its interval (`ladder.interval_basis`)."""
    on, timed = f"{node_count_text(rung.count)}, {rung.load_text}", len(rung.steps[0])
    value, note = proven_efficiency(ladder, rung, limit)
    low, high = ladder.intervals[rung.count]
    measure(check.EFFICIENCY, value, on=on, spread=(high - low) / 2, samples=timed, note=note)


def proven_efficiency(ladder: Ladder, rung: Rung, limit: Limit | None) -> tuple[float | None, str]:
    """Return (efficiency, ""), or (None, reason) if the base may have been slow.

    A slow base makes larger rungs look better, never worse, so a failed efficiency stays.  An
    efficiency above MAX_EFFICIENCY also shows a slow base.
    """
    efficiency, doubt = ladder.efficiency(rung), ladder.base_doubt
    if efficiency > MAX_EFFICIENCY:
        doubt = "a step took longer on one node than on several: the run on one node was disturbed"
    if not doubt or (limit and limit.judge(efficiency) is Verdict.FAIL):
        return efficiency, ""
    return None, f"{percent(efficiency)} is not proven: {doubt}"


def note_other_runs(runs: Sequence[Sequence[Rung]], measure: Recorder) -> None:
    """Record the efficiency of the runs that are not the worst one, and judge their rungs."""
    for number, rungs in enumerate(runs, 1):
        for rung in rungs:
            judge_rung(rung, measure, f"{node_count_text(rung.count)}, other run {number}")
        on = f"{node_count_text(rungs[-1].count)}, {rungs[-1].load_text}, other run {number}"
        measure.note("efficiency_again", run_ladder.top_efficiency(rungs), "ratio", on=on)


def judge_rung(rung: Rung, measure: Recorder, on: str) -> None:
    """Judge that a rung's steps fill its time and that its ranks trained one model; note tokens."""
    measure.note("tokens_per_second", rung.tokens_per_second, "tokens/s", on=on)
    measure.note("tokens_per_gpu_step", rung.tokens_per_rank, "tokens", on=on)
    if rung.mfu is not None and rung.count > 1:  # one node's MFU is judged in base_speed
        measure.note(check.MFU, rung.mfu, "ratio", on=on)
    if rung.memory_ratio is not None:
        measure.note("memory_against_estimate", rung.memory_ratio, "ratio", on=on)
    measure(check.WALL_GAP, breakdown.wall_gap(rung.steps), on=on)
    judge_training(rung, measure, on)


def judge_training(rung: Rung, measure: Recorder, on: str) -> None:
    """Judge that a rung's ranks trained one model: their losses are finite and agree."""
    measure(check.NON_FINITE, rung.non_finite, on=on)
    measure(check.DISAGREEMENTS, len(rung.disagreements), on=on)
    measure.explain(find_invalid_rung(rung, on))


def find_invalid_rung(rung: Rung, on: str) -> Iterator[Finding]:
    """Find evidence that a rung's ranks did not train one model, however fast they were."""
    if rung.non_finite:
        message = f"at {on}, number of NaN or infinite losses, over all ranks: {rung.non_finite}"
        yield finding("SCALE-NAN", message)
    if rung.disagreements:
        yield finding("SCALE-RANKS-DISAGREE", f"at {on}, in {rung.disagreements[0]}")


def judge_stragglers(rungs: Sequence[Rung], limits: LimitLookup, measure: Recorder) -> None:
    """Judge the slowest node alone, and the rank that delays the largest rung most.

    The findings also name every other node or rank that breaks the limit.
    """
    by_node = rungs[0].node_seconds()
    ratio = max(by_node.values()) / min(by_node.values())
    measure.note("step_time_of_slowest_node_over_fastest", ratio, "ratio")
    for slowest, *_ in (_slow_alone(rungs[0]), _slow_ranks(rungs[-1])):
        measure(check.STRAGGLER, slowest.share, on=slowest.subject)
    measure.explain(find_stragglers_beyond(rungs, limits(check.STRAGGLER)))


def find_stragglers_beyond(rungs: Sequence[Rung], limit: Limit | None) -> Iterator[Finding]:
    """Find all nodes and all ranks that break the straggler limit, if there is one."""
    for parts in (_slow_alone(rungs[0]), _slow_ranks(rungs[-1])):
        slow = [part for part in parts if limit and limit.judge(part.share) is Verdict.FAIL]
        if slow:
            suspects = dict.fromkeys(name for part in slow for name in part.suspects)
            yield finding("SCALE-STRAGGLER", "; ".join(part.message for part in slow), [*suspects])


@dataclasses.dataclass(frozen=True)
class _SlowPart:
    """A node or a rank, and the share by which it is slower than the median one.

    For a node `share` is relative to the median node of its kind, for a rank to the mean step.
    """

    subject: str
    share: float
    message: str
    suspects: list[str]


def _slow_alone(base: Rung) -> Iterator[_SlowPart]:
    """List each node of the base rung, where it runs alone, slowest first.

    It is compared with the nodes that have the same GPUs.
    """
    found = [one for kind in base.kinds() for one in breakdown.slowest_nodes(kind)]
    for node, excess in sorted(found, key=lambda one: -one[1]):
        than = f"longer than that of the median node{' of its kind' * bool(base.gpus)}"
        message = f"a step on {node} alone takes {percent(excess)} {than}"
        yield _SlowPart(f"{node} alone", excess, message, [node])


def _slow_ranks(rung: Rung) -> Iterator[_SlowPart]:
    """List each rank of a rung, ordered by how much it delays the others."""
    for slow in breakdown.find_stragglers(rung.steps):
        rank, node = f"rank {slow.rank}", rung.nodes[slow.rank]
        share = f"{percent(slow.share)} of the step time"
        message = f"{rank} on {node} makes the other ranks wait: its part `{slow.segment}` of a "
        message += f"step is too long, by {share}"
        yield _SlowPart(f"{rank} ({node}) in {slow.segment}", slow.share, message, [rank, node])


def record_prediction(ladder: Ladder, measure: Recorder) -> Forecast | None:
    """Record the prediction for more nodes, with its band and its assumptions; return it."""
    try:
        outlook = ladder.forecast()
    except ValueError as error:
        measure.covered(str(error))
        return None
    measure.covered(str(outlook))
    measure.keep("prediction.json", dataclasses.asdict(outlook), caption=str(outlook))
    return outlook


def record_figures(
    ladder: Ladder,
    explained: Sequence[Explanation],
    limits: LimitLookup,
    measure: Recorder,
    strong: Mapping[str, Sequence[float]],
    outlook: Forecast | None,
) -> None:
    """Record the numbers of the three figures, and the table behind them.

    `strong` is the same work on fewer nodes; empty if it was not run.  `outlook` is the prediction
    for more nodes.
    """
    rungs, base = ladder.rungs, ladder.rungs[0].median_node()
    parts = [breakdown.mean_terms(steps) for steps in (base, *(rung.steps for rung in rungs[1:]))]
    limit = limits(check.EFFICIENCY)
    caption = "every timed step of every rank, in parts; the collectives at each number of nodes"
    measure.keep("ladder.json", ladder.to_dict(), kind="series", caption=caption)
    intervals = [ladder.intervals[rung.count] for rung in rungs[1:]]
    efficiency = {
        "nodes": [rung.count for rung in rungs],
        "efficiency": [1.0, *map(ladder.efficiency, rungs[1:])],
        "low": [None, *(low for low, _ in intervals)],
        "high": [None, *(high for _, high in intervals)],
        "over": ladder.interval_basis,
        "limit": limit.low if limit else None,
        "tokens_per_second": [rung.tokens_per_second for rung in rungs],
        "tokens_per_gpu_step": [rung.tokens_per_rank for rung in rungs],
        "strong": dict(strong),
        "predicted": outlook.columns() if outlook else {},
    }
    measure.series("efficiency", efficiency)
    if explained:
        lost = {
            "nodes": [loss.nodes for loss in explained],
            "lost": [loss.lost for loss in explained],
            "parts": [[dataclasses.asdict(part) for part in loss.parts] for loss in explained],
            "sentences": list(map(str, explained)),
        }
        measure.series("lost", lost)
    terms = {name: [part.get(name, 0.0) for part in parts] for name in parts[-1]}
    measure.series("terms", {"nodes": [rung.count for rung in rungs], "terms": terms})


FEW_STEPS = 4  # steps of measurements that only inform
MIN_DELAY = 0.4  # of a step: the shortest planted delay
DELAYED_BY = 1.2  # times the longest step that the limit of efficiency allows
MAX_WORK = 8  # times its usual work that a node does at most: more would take too long
COMPUTE = ("forward", "backward")  # the segments that hold a step's compute


def control_planted_delay(
    rig: LadderRig, config: TrainConfig, ladder: Ladder, limits: LimitLookup, alone: bool = False
) -> None:
    """Check that a delay planted on one rank is located by rank and segment, and that all wait.

    `alone` as in `judge_ladder`: the ranks of the only node wait for each other.
    """
    rung, limit = ladder.rungs[-1], None if alone else limits(check.EFFICIENCY)
    measure = rig.measure
    culprit, delay = len(rung.steps) // 2, planted_delay(ladder, limit)
    planted = dataclasses.replace(config, steps=3, stall=f"data:rank={culprit}:seconds={delay}")
    fault = f"rank {culprit} waits {delay:.2g} s for its data in every step"
    if rung.count == 1 and not (alone and len(rung.steps) > 1):
        saw = "the job has only one rank" if alone else "the test ran on only one node"
        measure.control(check.PLANTED_DELAY, fault, None, saw=saw)
        return
    try:
        late = run_rung(rig.gang, rig.node_names, rung.count, planted)
    except GangError as error:  # the measurements of the rungs remain valid
        measure.control(check.PLANTED_DELAY, fault, None, saw=str(error))
        return
    trial = measure.trial()
    if rung.count > 1:
        judge_efficiency(ladder, late, limit, trial)
    judge_stragglers([ladder.rungs[0], late], limits, trial)
    located, observed = locate_delay(late.steps, culprit, delay)
    saw = f"efficiency {percent(ladder.efficiency(late))}; " * (rung.count > 1) + observed
    without = () if limit else (check.EFFICIENCY,)
    measure.control(check.PLANTED_DELAY, fault, trial, located=located, saw=saw, without=without)


def planted_delay(ladder: Ladder, limit: Limit | None) -> float:
    """Compute a delay (s) that makes the largest rung's step longer than the limit allows."""
    seconds, base = ladder.rungs[-1].seconds, ladder.rungs[0].seconds
    allowed = base / limit.low if limit and limit.low else 0.0
    return max(MIN_DELAY * seconds, DELAYED_BY * allowed - seconds)


def locate_delay(late: breakdown.RankSteps, culprit: int, delay: float) -> tuple[bool, str]:
    """Judge whether the delay is where it was planted and all others waited; describe it too."""
    slowest = breakdown.find_stragglers(late)[0]
    sent = breakdown.COLLECTIVE_SEGMENTS
    blocked = [statistics.fmean(step.seconds_in(sent) for step in steps) for steps in late]
    waited = min(blocked[:culprit] + blocked[culprit + 1 :]) - blocked[culprit]
    located = (slowest.rank, slowest.segment) == (culprit, "data") and waited > delay / 2
    return located, (
        f"rank {slowest.rank} is late in its part `{slowest.segment}`, "
        f"by {percent(slowest.share)} of a step; each other rank waited {waited:.2g} s or more"
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
        rig.measure.covered(f"the step without collectives was not timed: {error}")
        return
    rig.measure.note("without_communication", breakdown.mean_seconds(silent), "s", on=on)
    text = compare_compute(silent, rungs[0].median_node())
    rig.measure.covered(f"sharded as on {on}, but without communication, {text}")


def compare_compute(silent: breakdown.RankSteps, alone: breakdown.RankSteps) -> str:
    """Describe whether a step that sends nothing computes as long as one node's step."""
    series = [compute_seconds(silent), compute_seconds(alone)]
    mean, base = map(statistics.fmean, series)
    noise = math.hypot(*map(standard_error, series))
    excess, margin = mean - base, noise_limit(noise, len(series[0]))
    text = f"a step computes for {mean:.3f} s, a step on one node for {base:.3f} s"
    if abs(excess) <= margin:
        return f"{text}: the same within the noise of {margin:.3f} s"
    return f"{text}: {excess:+.3f} s are unexplained"


def compute_seconds(ranks: breakdown.RankSteps) -> list[float]:
    """Compute the seconds that each step computes, as a mean over ranks."""
    return breakdown.by_step(ranks, lambda step: step.seconds_in(COMPUTE))


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
            measure.covered(f"strong scaling on {on} was not timed: {error}")
            break
        total = total or rung.seconds * count
        efficiency = total / (rung.seconds * count)
        measure.note("strong_efficiency", efficiency, "ratio", on=f"{on}, {rung.load_text}")
        measure.covered(f"strong scaling on {on}: {rung.seconds:.3f} s a step, {rung.load_text}")
        for name, value in zip(series, (count, efficiency, rung.tokens_per_rank), strict=True):
            series[name].append(value)
    return series
