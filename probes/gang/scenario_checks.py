"""Checks of scenarios: placement of components, and the loss of a node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from probes.check.judging import judge_or_explain, plant
from probes.check.recorder import Recorder
from probes.contract import placement as components
from probes.contract.contract import ClusterTerms
from probes.contract.placement import Placement, Slot
from probes.faults.spare_nodes import SpareNodes
from probes.findings import finding, join_names
from probes.gang import criterion as check
from probes.gang import invariants, judge
from probes.gang.invariants import Sample, count_placed
from probes.gang.observer import REQUIRED_RATE_HZ, ScenarioMark
from probes.gang.scenario import ContentionRig, Scenario
from reports.numbers import quantity

DEFAULT_ACCELERATORS = 8  # at most, for the default placements


def try_strategy(run: Scenario, strategy: str, size: int) -> dict[str, int]:
    """Place a gang with this strategy, then give it back.

    Returns its bundles per node, or {} if it was not placed.
    """
    gang = run.ask("A", size, strategy=strategy)
    placed_at = run.wait_placed(gang)
    nodes = run.observer.samples[-1]["gangs"][gang]["nodes"] if placed_at else {}
    run.drop(gang)
    run.wait_idle()
    return dict(nodes)


def list_layouts(
    terms: ClusterTerms, size: int, free: int
) -> Iterator[tuple[Placement, Mapping[str, int] | None]]:
    """List component placements to try, each with its parallel sizes (None: sizes not judged).

    The contract's own placement uses all `size` accelerators. Without one, two default placements
    use some of the free accelerators. Then, if the contract has parallel sizes, one job uses all.
    """
    split = {str(key): size for key, size in terms.parallel.items()} if terms.parallel else None
    if terms.components:
        yield components.parse(terms.components, size), split
        return
    for spec in default_placements(min(free, DEFAULT_ACCELERATORS)):
        yield components.parse(spec, min(free, DEFAULT_ACCELERATORS)), None
    if split:
        yield components.parse({"job": "all"}, size), split


def default_placements(total: int) -> list[dict[str, str | int]]:
    """Build placements of two components: on the same accelerators, and on different ones."""
    half = total // 2
    return [{"actor,rollout": "all"}, {"actor": f"0-{half - 1}", "rollout": f"{half}-{total - 1}"}]


def control_misplaced_rank(places: Mapping[str, Sequence[Slot]]) -> dict[str, list[Slot]]:
    """Move the last component's first rank to the place of the first component's last rank."""
    first, *_ = places
    *_, last = places
    moved = {last: [places[first][-1], *places[last][1:]]}
    return {**{component: list(ranks) for component, ranks in places.items()}, **moved}


def find_splits(
    parts: Placement, places: Mapping[str, Sequence[Slot]], parallel: Mapping[str, int] | None
) -> list[str]:
    """Describe tensor-parallel groups that do not lie inside one node, one sentence each."""
    if not parallel:
        return []
    node: dict[int, str] = {}
    for component, numbers in parts.items():
        node |= {number: pair[0] for number, pair in zip(numbers, places[component], strict=True)}
    nodes = [node[number] for number in sorted(node)]
    group_text = "a tensor-parallel group of {} (accelerators {}) is not on one node"
    return [
        group_text.format(component, components.as_ranges(group))
        for component, numbers in parts.items()
        for group in components.split_groups(numbers, nodes, parallel["tp"])
    ]


LOSS_SECONDS = 90  # for Ray to detect a lost node: 5 health checks of 3 s each, and a margin
BLOCKED_SECONDS = 5.0  # for another gang to be placed while the gang that lost a node still stands


@contextmanager
def spare_raylets(run: Scenario, count: int) -> Iterator[SpareNodes]:
    """Add spare raylets, and remove them on exit."""
    run.measure.progress(f"gang: {count} spare raylets join the cluster")
    with closing(SpareNodes(run.rig.cluster, count)) as spares:
        run.observer.node_names |= spares.node_names
        run.measure.covered("lost nodes: spare raylets on the head's machine, without a GPU")
        yield spares


def kill_spare_node(run: Scenario, spares: SpareNodes, name: str, message: str) -> float:
    """Kill one spare raylet and judge that it is dead; return when it was killed."""
    killed_at = run.observer.mark(message, fault=True)
    dead, _ = spares.kill_nodes(name)
    note = "seatrial could not prove that the raylet died"
    run.measure(check.NODES_KILLED, int(dead) or None, on=name, note=note)
    return killed_at


def lose_free_node(run: Scenario, spares: SpareNodes, waiting: str, victim: str) -> None:
    """Kill a node that no gang holds while a gang waits; one with room must still be placed."""
    control_node_not_lost(run, victim)
    lost_at = kill_spare_node(run, spares, victim, "the free node is lost")
    detected = run.until(lambda sample: victim not in sample["free_on"], LOSS_SECONDS)
    _judge_detection(run, lost_at, detected, victim)
    behind = judge.judge_not_blocked(run, "B", 1, "B asks for one")
    judge.judge_withdrawal(run, waiting, run.drop(waiting, "B cancels"))
    run.drop(behind)


def control_node_not_lost(run: Scenario, victim: str) -> None:
    """Judge a node that runs as if it had been killed; the loss must count as undetected."""
    gone = run.until(lambda sample: victim not in sample["free_on"], judge.PENDING_SECONDS)
    fault = f"node {victim} is not killed, so Ray cannot detect a loss"
    judge_alive = partial(judge_detected, gone, victim, judge.PENDING_SECONDS)
    plant(run.measure, check.NODE_NOT_LOST, fault, judge_alive)


def lose_held_node(run: Scenario, spares: SpareNodes, running: str, victim: str) -> None:
    """Kill a node of the running gang; Ray must detect it, and place others once it is removed."""
    lost_at = kill_spare_node(run, spares, victim, "a node of A's gang is lost")

    def is_harmed(sample: Sample) -> bool:
        return bool(sample["gangs"].get(running, {}).get("state") == "RESCHEDULING")

    _judge_detection(run, lost_at, run.until(is_harmed, LOSS_SECONDS), victim)
    run.measure.note("bundles_kept", count_placed(run.observer.samples[-1], running), "bundles")
    free = run.observer.samples[-1]["free"]
    asked = run.observer.mark("B asks for one")
    gang = run.ask("B", 1)
    unaided = run.wait_placed(gang, BLOCKED_SECONDS)
    removed = run.drop(running, "A's launcher removes its gang")
    if unaided is not None:
        took, event = run.elapsed(asked, unaided), f"the placement of gang {gang}"
        judge.judge_time(run, check.PLACEMENT_DELAY, took, event, "")
        return
    judge.time_handoff(run, removed, gang, "job B", "the gang of job A was removed")
    message = (
        f"Ray did not place gang {gang} for {BLOCKED_SECONDS:g} s. It needs 1 accelerator, and "
        f"{free} were free. Meanwhile gang {running} still existed. It had lost node {victim}"
    )
    run.measure.explain(finding("GANG-NODE-LOSS", message, ["job A", victim]))


def _judge_detection(run: Scenario, lost_at: float, detected: float | None, victim: str) -> None:
    """Judge that Ray detected the loss, and note how long that took."""
    run.measure.note("loss_seen_after", run.elapsed(lost_at, detected), "s", on=victim)
    judge_detected(detected, victim, LOSS_SECONDS, run.measure)


def judge_detected(detected: float | None, victim: str, seconds: float, measure: Recorder) -> None:
    """Judge that a node loss was detected within `seconds`."""
    message = f"node {victim} was killed, and Ray did not detect the loss within {seconds} s"
    unseen = finding("GANG-LOSS-NOT-DETECTED", message, [victim])
    judge_or_explain(measure, check.LOSSES_NOT_DETECTED, int(detected is None), unseen, on=victim)


@contextmanager
def run_scenario(
    rig: ContentionRig, title: str, measure: Recorder, **options: Any
) -> Iterator[Scenario]:
    """Run one scenario; if its body ends without an error, judge the invariants as well."""
    run, judge_end = Scenario(rig, title, measure, **options), judge_deferred
    try:
        yield run
        judge_end = judge_invariants
    finally:
        rig.release()
        judge_end(run)


def judge_deferred(run: Scenario) -> None:
    """Judge the deferred values.

    A failure while jobs of other people were here may be caused by them: it counts as not proven.
    """
    deferred, run.deferred = run.deferred, []
    for name, value, findings, ours, more in deferred:
        failed = run.measure.would_fail(name, value)
        if failed and not ours and (other_jobs := run.describe_other_jobs()):
            run.measure(name, None, **{**more, "note": other_jobs})
        else:
            judge_or_explain(run.measure, name, value, findings, failed, **more)


def judge_invariants(run: Scenario) -> None:
    """Judge partial holds, overcommitment, leaks and the sample rate; keep the evidence."""
    try:
        free_again = run.wait_idle()
        samples = run.samples
        judge_partial_holds(run.segments, run.measure)
        _judge_overcommit(run, samples)
        if run.steady:
            leaks = (invariants.count_leaked(segment, run.total) for segment in run.segments)
            _judge_leak(run, check.LEAKED, max(leaks))
        last = run.observer.samples[-1]
        held = 0 if free_again is not None else run.total - last["free"]
        _judge_leak(run, check.NOT_RELEASED, held)
    finally:
        judge_deferred(run)
    _judge_sampling(run)
    if run.rig.cluster.on_gpu:
        judge_gpu_use(samples, run.rig.cluster.gpus_by_node, run.measure)
    _keep_evidence(run, samples)


def judge_partial_holds(segments: Sequence[Sequence[Sample]], measure: Recorder) -> None:
    """Judge that no sample of these segments shows a partly placed gang."""
    samples = [sample for segment in segments for sample in segment]
    count = sum(bool(invariants.partial_gangs(one)) for one in samples) if samples else None
    measure(check.PARTIALLY_HELD, count, samples=len(samples), note="seatrial took no sample")
    spans = [span for segment in segments for span in invariants.find_partial_holds(segment)]
    for span in spans[:3]:
        measure.explain(judge.blame_job("GANG-PARTIAL", span.describe(), span.job))


def _judge_overcommit(run: Scenario, samples: list[Sample]) -> None:
    """Judge that no accelerator was given away twice."""
    bad = invariants.find_overcommitted(samples, run.capacity)
    first = next(iter(bad), {})
    shown = join_names(f"{count} accelerators held on {node}" for node, count in first.items())
    seen = quantity(len(bad), "samples")
    message = f"in {seen}, jobs held more accelerators than were free. First sample: {shown}"
    twice = finding("GANG-OVERCOMMIT", message, sorted(first))
    run.measure_at_end(check.OVERCOMMITTED, len(bad), twice)


def _judge_leak(run: Scenario, name: str, lost: int) -> None:
    """Judge the number of missing accelerators, and report where they are."""
    last = run.observer.samples[-1]
    gangs, free = last["gangs"], last["free_on"]
    missing = [node for node, count in run.capacity.items() if free.get(node, 0) < count]
    which = f"gang{'s' * (len(gangs) > 1)} {join_names(gangs)}"
    holders = f"held by {which}" if gangs else "not free, but no gang held them"
    if last["actors"]:
        alive = join_names(f"{count} of job {job}" for job, count in last["actors"].items())
        holders += f"; actors that still ran: {alive}"
    message = f"{lost} of {run.total} {run.rig.cluster.resource}s were {holders}"
    run.measure_at_end(name, lost, finding("GANG-LEAK", message, missing))


def _judge_sampling(run: Scenario) -> None:
    """Judge the sample rate; note the gaps, the age of samples and the duration."""
    gaps = [gap for segment in run.segments for gap in invariants.sample_gaps(segment)]
    if run.sampled:
        judge_rate(gaps, run.measure)
    run.measure.note("longest_gap", max(gaps, default=None), "s", on="sampling")
    lags = [sample["took"] for sample in run.samples]
    run.measure.note("lag", invariants.percentile_95(lags), "s", on="sampling")
    run.measure.note("longest_lag", max(lags, default=None), "s", on="sampling")
    run.measure.note("duration", sum(gaps), "s")


def judge_rate(gaps: Sequence[float], measure: Recorder) -> None:
    """Judge the sample rate; `gaps` are the seconds between samples."""
    rate, reason = invariants.sample_rate(gaps, REQUIRED_RATE_HZ)
    measure(check.SAMPLE_RATE, rate, samples=len(gaps), note=reason)


def judge_gpu_use(samples: Sequence[Sample], ray_gpus: dict[str, int], measure: Recorder) -> None:
    """Judge whether processes use GPUs that Ray counts as free."""
    silent = invariants.nvml_errors(samples, ray_gpus)
    hidden = invariants.find_hidden_gpus(samples, ray_gpus)
    reasons = join_names(f"{node}: {message}" for node, message in silent.items())
    value = sum(count for count, _ in hidden.values())
    measure(check.UNREGISTERED_USE, None if silent and not hidden else value, note=reasons)
    if hidden:
        details = "; ".join(
            f"{quantity(count, 'GPUs')} on {node}. GPUs in use there: {join_names(gpus)}"
            for node, (count, gpus) in hidden.items()
        )
        message = f"processes use GPUs that Ray counts as free: {details}"
        (_, gpus), *_rest = hidden.values()
        names = {"gpu": gpus[0] if gpus else ""}
        measure.explain(finding("GANG-UNREGISTERED", message, list(hidden), names=names))


def _keep_evidence(run: Scenario, samples: list[Sample]) -> None:
    """Keep the samples and marks as evidence, and the series for the chart."""
    control = [s for s in (run.observer.samples[a:b] for a, b in run.control_ranges) if s]
    unit = run.rig.cluster.resource
    scene = {"title": run.title, "unit": unit, "capacity": run.capacity, "taken": len(samples)}
    series: dict[str, Any] = {**scene, **chart_series(run.segments, run.marks)}
    if control:
        series["control"] = chart_series(control, run.marks)
    run.measure.series("gang", series)
    all_samples = run.observer.samples[run.first_sample :]
    content = {"samples": all_samples, "marks": run.marks, "control_from_to": run.control_ranges}
    name = "gang-" + "-".join(run.title.replace("%", "percent").split()) + ".json"
    caption = f"{run.title}: accelerators of each job over time"
    run.measure.keep(name, content, kind="series", caption=caption)
    room = f"{run.total} {unit}s free on {quantity(len(run.capacity), 'nodes')}"
    jobs = "test jobs A and B, which hold accelerators and compute nothing"
    run.measure.covered(f"{run.title}: {jobs}, {room}, {len(samples)} samples")


def chart_series(segments: list[list[Sample]], marks: list[ScenarioMark]) -> dict[str, Any]:
    """Build the series of the chart from segments and their marks; the first sample is at 0 s.

    Between the segments the chart is blank.
    """
    origin, end = segments[0][0]["t"], segments[-1][-1]["t"]
    samples, partial, shown_marks = [], [], []
    for segment in segments:
        first, last = segment[0]["t"], segment[-1]["t"]
        samples += [{**row, "t": row["t"] - origin} for row in invariants.sample_changes(segment)]
        samples.append({"t": last - origin, "nodes": {}, "waits": {}})
        spans = invariants.find_partial_holds(segment)
        partial += [[s.start - origin, s.end - origin, s.job, s.placed, s.size] for s in spans]
        shown_marks += [[mark.t - origin, *mark[1:]] for mark in marks if first <= mark.t <= last]
    return {"samples": samples, "end": end - origin, "marks": shown_marks, "half": partial}
