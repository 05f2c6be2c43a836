"""Splits steps into their parts, and finds the ranks that others wait for."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from reports.numbers import percent
from scaling.bounds import Part, Seconds

# Segments without a collective: the time spent there depends on the rank alone.
LOCAL_SEGMENTS = ("data", "optimizer", "checkpoint", "other")


@dataclass(frozen=True)
class Step:
    """One rank's step: seconds, and the segments that sum to them.

    `exposed` is the time in a segment that was spent waiting, by collective: {segment:
    {collective: seconds}}. It is empty if waits are not separable. `wall` is the step's seconds
    by the host's own clock; None if it was not read.
    """

    seconds: Seconds
    segments: dict[str, Part]
    exposed: dict[str, dict[str, Part]] = field(default_factory=dict)
    wall: Seconds | None = None

    def seconds_in(self, segments: Sequence[str]) -> float:
        """Sum the seconds of these segments, waits included."""
        return sum(self.segments[name] for name in segments)

    @property
    def waits(self) -> dict[str, float]:
        """Seconds of waiting by collective, over all segments."""
        names = dict.fromkeys(name for waits in self.exposed.values() for name in waits)
        return {n: sum(waits.get(n, 0.0) for waits in self.exposed.values()) for n in names}

    def compute_in(self, segments: Sequence[str]) -> float:
        """Sum the seconds of these segments, waits excluded."""
        waited = sum(sum(self.exposed.get(name, {}).values()) for name in segments)
        return self.seconds_in(segments) - waited

    @property
    def terms(self) -> dict[str, float]:
        """Seconds by segment without its waits, and by collective waited for.

        The waits for a collective follow the segment in which it first appears.
        """
        result, waited = dict[str, float](), self.waits
        for name, seconds in self.segments.items():
            waits = self.exposed.get(name, {})
            result[name] = seconds - sum(waits.values())
            result |= {f"exposed {collective}": waited[collective] for collective in waits}
        return result


def parse_steps(spans: Sequence[dict[str, Any]]) -> list[Step]:
    """Convert the trainer's span records to steps."""
    return [
        Step(span["seconds"], span["segments"], span.get("exposed", {}), span.get("wall"))
        for span in spans
    ]


def by_step(
    ranks: Sequence[Sequence[Step]],
    seconds: Callable[[Step], float],
    combine: Callable[[list[float]], float] = statistics.fmean,
) -> list[float]:
    """Combine a value of all ranks, step by step, for example by mean or maximum."""
    return [combine([seconds(step) for step in row]) for row in zip(*ranks, strict=True)]


def mean_terms(ranks: Sequence[Sequence[Step]]) -> dict[str, float]:
    """Return the mean seconds of each term over ranks and steps: segments, and separable waits."""
    all_terms = [step.terms for steps in ranks for step in steps]
    return {
        name: sum(step_terms.get(name, 0.0) for step_terms in all_terms) / len(all_terms)
        for name in dict.fromkeys(name for step_terms in all_terms for name in step_terms)
    }


def mean_seconds(ranks: Sequence[Sequence[Step]]) -> float:
    """Return the mean seconds of a step, over ranks and steps: T_n."""
    seconds = [step.seconds for steps in ranks for step in steps]
    return sum(seconds) / len(seconds)


def loss_residual(base: Sequence[Sequence[Step]], current: Sequence[Sequence[Step]]) -> float:
    """Return |(1 - E_n) - sum of the lost shares|: the part of the loss that no term explains.

    E_n comes from complete steps, the shares from their segments. So a segment that is missing
    or counted twice shows here. On a GPU a step is the sum of its segments; there `wall_gap`
    finds such errors.
    """
    lost = 1 - mean_seconds(base) / mean_seconds(current)
    return abs(lost - sum(loss_by_term(mean_terms(base), mean_terms(current)).values()))


def largest(values: Iterable[float | None]) -> float | None:
    """Return the largest value; None if there are no values, or if one is None or NaN.

    A plain maximum could hide a NaN.
    """
    known = list(values)
    numbers = [value for value in known if value is not None and not math.isnan(value)]
    return max(numbers) if numbers and len(numbers) == len(known) else None


def segment_gap(ranks: Sequence[Sequence[Step]]) -> float | None:
    """Return the largest |seconds - sum of segments| / seconds of any step; 0 if all add up.

    It finds what `loss_residual` cannot: a segment that is missing on both rungs alike. None
    without steps, or if a step has no length.
    """
    return largest(
        abs(step.seconds - sum(step.segments.values())) / step.seconds if step.seconds > 0 else None
        for steps in ranks
        for step in steps
    )


def wall_gap(ranks: Sequence[Sequence[Step]]) -> float | None:
    """Return the largest relative difference between a rank's summed steps and the host's clock.

    It finds time that no segment contains, or that two contain. Sums made from the same clock
    readings cannot show that. None if the host's clock was not read in every step.
    """
    gaps: list[float | None] = []
    for steps in ranks:
        walls = [step.wall for step in steps if step.wall is not None]
        total = sum(walls) if len(walls) == len(steps) else 0.0
        gaps.append(abs(sum(s.seconds for s in steps) - total) / total if total > 0 else None)
    return largest(gaps)


def loss_by_term(base: dict[str, float], current: dict[str, float]) -> dict[str, float]:
    """Return each term's growth since the base rung, as a share of this rung's step.

    The shares sum to 1 - E_n.
    """
    total = sum(current.values())
    names = dict.fromkeys([*current, *base])
    return {name: (current.get(name, 0.0) - base.get(name, 0.0)) / total for name in names}


@dataclass(frozen=True)
class Straggler:
    """A rank that delays the others: `segment` is where, `share` the excess as a share of a step.

    `rank` is its index in the list of ranks.
    """

    rank: int
    segment: str
    share: float


def find_stragglers(ranks: Sequence[Sequence[Step]]) -> list[Straggler]:
    """Find each rank's worst excess over the median rank, as a share of the mean step; worst first.

    Only segments without a collective are compared: in the others all ranks wait for the
    slowest, and look alike. A rank that exceeds the median nowhere gets segment "none".
    """
    mean, worst = mean_seconds(ranks), [Straggler(rank, "none", 0.0) for rank in range(len(ranks))]
    for name in LOCAL_SEGMENTS:
        medians = [statistics.median(step.segments[name] for step in steps) for steps in ranks]
        median = _low_median(medians)
        for rank, seconds in enumerate(medians):
            share = _share((seconds - median) / mean)
            if share > worst[rank].share:
                worst[rank] = Straggler(rank, name, share)
    return sorted(worst, key=lambda one: one.share, reverse=True)


def _low_median(values: Iterable[float]) -> float:
    """Return the lower median of the values that are not NaN; NaN if there are none."""
    numbers = [value for value in values if not math.isnan(value)]
    return statistics.median_low(numbers) if numbers else math.nan


def _share(value: float) -> float:
    """Return the value, or infinity for NaN, so that NaN compares as worse than any number."""
    return math.inf if math.isnan(value) else value


def slowest_nodes(seconds: dict[str, float]) -> list[tuple[str, float]]:
    """Rank the nodes by their seconds when each runs alone, slowest first, with relative excess.

    The excess is relative to the median; for an even number, to the lower median. So even half
    of the nodes can be slow and still show.
    """
    median = _low_median(seconds.values())
    excess = [(node, _share(took / median - 1)) for node, took in seconds.items()]
    return sorted(excess, key=lambda one: one[1], reverse=True)


RankSteps = Sequence[Sequence[Step]]  # [rank][step]

COLLECTIVE_SEGMENTS = ("forward", "backward", "clip")


def waits_separable(spans: Sequence[dict[str, Any]]) -> bool:
    """Return whether the trainer's span records separate waits from compute.

    All of them must, and there must be at least one.
    """
    return bool(spans) and all(record.get("separable", False) for record in spans)


@dataclass(frozen=True)
class TransferSkew:
    """One meeting segment, mean seconds per step: transfer + skew is its mean over ranks.

    `last_ranks[k]` came last in step k. `skews[k]` is the mean wait for it, in seconds.
    """

    transfer: float
    skew: float
    last_ranks: tuple[int, ...]
    skews: tuple[float, ...]

    def culprit(self) -> tuple[int, float]:
        """Return (rank that causes most of the skew, its share of the skew; 0 without skew)."""
        skew_by_rank = dict.fromkeys(self.last_ranks, 0.0)
        for rank, seconds in zip(self.last_ranks, self.skews, strict=True):
            # If all ranks left together, rounding may give less than 0.
            skew_by_rank[rank] += max(0.0, seconds)
        rank = max(skew_by_rank, key=skew_by_rank.__getitem__)
        total = sum(skew_by_rank.values())
        return rank, skew_by_rank[rank] / total if total > 0 else 0.0


def split_segment(ranks: RankSteps, segment: str) -> TransferSkew:
    """Split one segment into transfer and skew. Raises KeyError if a step lacks it."""
    return _split_transfer([[step.segments[segment] for step in steps] for steps in ranks])


def _split_transfer(table: Sequence[Sequence[float]]) -> TransferSkew:
    """Split what each rank spent, seconds [rank][step], into transfer and skew."""
    steps = [*zip(*table, strict=True)]
    last = tuple(spent.index(min(spent)) for spent in steps)
    skews = tuple(sum(spent) / len(spent) - min(spent) for spent in steps)
    return TransferSkew(statistics.fmean(map(min, steps)), statistics.fmean(skews), last, skews)


def transfer_growth(base: RankSteps, current: RankSteps) -> dict[str, float]:
    """Return how much the transfer of each collective grew since the base rung, seconds per step.

    Skew, the time that ranks wait for each other, is not part of it.
    """
    before, now = map(exposed_waits, (base, current))
    return {
        name: entry.transfer - (before[name].transfer if name in before else 0.0)
        for name, entry in now.items()
    }


def exposed_waits(ranks: RankSteps) -> dict[str, TransferSkew]:
    """Split the waits for each collective into transfer and skew, by collective.

    Meant for ranks whose waits are separable.
    """
    waits = [[step.waits for step in steps] for steps in ranks]
    names = dict.fromkeys(name for steps in waits for step_waits in steps for name in step_waits)
    by_name = {name: [[step.get(name, 0.0) for step in steps] for steps in waits] for name in names}
    return {name: _split_transfer(seconds) for name, seconds in by_name.items()}


def slowest_compute(ranks: RankSteps, segments: Collection[str]) -> list[float]:
    """Sum the slowest rank's compute over the meetings of each step; list the seconds by step.

    That is the time of the meetings if links were free. `segments` are the meetings whose waits
    are timed.
    """
    return [
        sum(max(step.compute_in([name]) for step in row) for name in segments)
        for row in zip(*ranks, strict=True)
    ]


def describe_exposed(ranks: RankSteps, separable: bool, nodes: Sequence[str]) -> str:
    """Describe exposed communication in milliseconds per step, and the rank that causes the skew.

    `nodes[r]` is rank r's node.
    """
    if not separable:  # unknown, so it must not be shown as 0
        return "waiting for collectives: this run cannot separate the wait from compute"
    parts = []
    for name, wait in exposed_waits(ranks).items():
        rank, share = wait.culprit()
        whose = f"rank {rank} on {nodes[rank]} causes {percent(share)} of this wait"
        due = f" ({whose})" if wait.skew > 0 else ""
        parts.append(f"{name} {wait.transfer * 1e3:.1f} + {wait.skew * 1e3:.1f}{due}")
    text = "waiting for collectives, in ms of a step (transfer + wait for late ranks)"
    return f"{text}: {', '.join(parts) or 'none'}"


@dataclass(frozen=True)
class CriticalPathEntry:
    """Cost of one local segment of one step for the job.

    `seconds` are those of the rank that comes last to the next meeting. `typical` is the median
    rank's (of two, the lesser). After the last meeting of the window no rank is known to be
    last. Then `rank` is None and `seconds` is the mean over ranks.
    """

    step: int
    segment: str
    rank: int | None
    seconds: float
    typical: float


@dataclass(frozen=True)
class CriticalPath:
    """Account of a rung's time in which each moment counts once.

    `transfer[segment][k]` and `unaligned[k]` are seconds of step k. Unaligned is the waiting
    that the last rank's local work does not explain: ranks did not leave the previous meeting
    together.
    """

    entries: tuple[CriticalPathEntry, ...]
    transfer: dict[str, list[float]]
    unaligned: list[float]

    @property
    def steps(self) -> int:
        """Number of steps in the window."""
        return len(self.unaligned)

    def transfer_by_step(self) -> list[float]:
        """Sum the seconds of transfer of all meetings, by step."""
        return [sum(row) for row in zip(*self.transfer.values(), strict=True)]

    def local_by_step(self, segment: str) -> list[float]:
        """List the seconds charged to one local segment, by step."""
        seconds = [0.0] * self.steps
        for entry in self.entries:
            if entry.segment == segment:
                seconds[entry.step] += entry.seconds
        return seconds


def critical_path(ranks: RankSteps) -> CriticalPath:
    """Compute the critical path of a rung, which charges every moment once.

    Segments are taken in their order within a step. Work after the last meeting of a step
    counts towards the first meeting of the next step. Raises ValueError if ranks counted
    unequal steps, or none.
    """
    if not ranks or not ranks[0] or len({len(steps) for steps in ranks}) > 1:
        raise ValueError("every rank must report the same steps, at least one")
    names = list(ranks[0][0].segments)
    runs = _adjacent_segments(names)
    entries: list[CriticalPathEntry] = []
    transfer: dict[str, list[float]] = {name: [] for name in names if name in COLLECTIVE_SEGMENTS}
    unaligned: list[float] = []
    pending: list[tuple[int, str, list[float]]] = []  # local segments since the last meeting
    for index in range(len(ranks[0])):
        unaligned.append(0.0)
        for name in names:
            spent = [steps[index].segments[name] for steps in ranks]
            if name not in transfer:
                pending.append((index, name, spent))
                continue
            fastest = min(spent)
            last = spent.index(fastest)
            transfer[name].append(fastest)
            unaligned[index] += sum(spent) / len(spent) - fastest
            for step, segment, seconds in pending:
                entries.append(_make_entry(step, segment, seconds, last))
                unaligned[index] += sum(seconds) / len(seconds) - seconds[last]
            pending = []
        for run in runs:
            excess = _run_excess(ranks, index, run)
            transfer[run[-1]][index] += excess
            unaligned[index] -= excess
    entries += [_make_entry(step, segment, seconds, None) for step, segment, seconds in pending]
    return CriticalPath(tuple(entries), transfer, unaligned)


def _adjacent_segments(names: Sequence[str]) -> list[list[str]]:
    """List runs of two or more meetings that follow each other in a step.

    Within a run there is no local work between the meetings.
    """
    runs: list[list[str]] = [[]]
    for name in names:
        if name in COLLECTIVE_SEGMENTS:
            runs[-1].append(name)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if len(run) > 1]


def _run_excess(ranks: RankSteps, index: int, run: Sequence[str]) -> float:
    """Return the seconds of adjacent meetings together beyond the sum of their minima, 0 or more.

    A meeting does not end for all ranks at once. A rank that is slow after the last collective
    of one meeting makes the others wait in the next. Each meeting has a rank that was quick in
    it, but no rank was quick in all.
    """
    spent = [[steps[index].segments[name] for name in run] for steps in ranks]
    together = min(sum(rank_spent) for rank_spent in spent)
    return together - sum(min(segment_spent) for segment_spent in zip(*spent, strict=True))


def _make_entry(step: int, segment: str, spent: list[float], last: int | None) -> CriticalPathEntry:
    cost = sum(spent) / len(spent) if last is None else spent[last]
    return CriticalPathEntry(step, segment, last, cost, statistics.median_low(spent))
