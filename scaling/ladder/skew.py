"""Splits collective segments into transfer and skew, and computes the critical path.

A collective segment (a "meeting") contains a collective: ranks that arrive early wait there for the
others.

    transfer = min over ranks of the seconds spent there,   skew = mean - min      exact, per step.

The split is arithmetic. That the rank with the least time waited for no other is an assumption. The
segment also contains compute, so its transfer is not communication. On GPUs the trainer's clock
measures the waits for each of FSDP's collectives. They are split the same way.

The critical path counts each moment once. Between two meetings the frontier is the rank that comes
last, and the job moves at its pace. The local work and the waits of the other ranks are hidden
behind it. So each interval costs what the last rank did in it, and no other rank is charged.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from reports.numbers import percent
from scaling.ladder.step_breakdown import Step

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

    segment: str
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
    return _split_transfer(segment, [[step.segments[segment] for step in steps] for steps in ranks])


def _split_transfer(name: str, table: Sequence[Sequence[float]]) -> TransferSkew:
    """Split what each rank spent, seconds [rank][step], into transfer and skew."""
    steps = [*zip(*table, strict=True)]
    last = tuple(spent.index(min(spent)) for spent in steps)
    skews = tuple(sum(spent) / len(spent) - min(spent) for spent in steps)
    return TransferSkew(
        name, statistics.fmean(map(min, steps)), statistics.fmean(skews), last, skews
    )


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
    return {
        name: _split_transfer(
            name, [[step_waits.get(name, 0.0) for step_waits in steps] for steps in waits]
        )
        for name in names
    }


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
        return "exposed communication: not separable here"
    parts = []
    for name, entry in exposed_waits(ranks).items():
        rank, share = entry.culprit()
        due = (
            f" ({percent(share)} of it for rank {rank} on {nodes[rank]})" if entry.skew > 0 else ""
        )
        parts.append(f"{name} {entry.transfer * 1e3:.1f} + {entry.skew * 1e3:.1f}{due}")
    return f"exposed communication, transfer + skew in ms: {', '.join(parts) or 'none'}"


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

    @property
    def seconds(self) -> float:
        """Mean seconds of a step, exactly: the sum of all costs / the number of steps."""
        local_s = sum(entry.seconds for entry in self.entries)
        transfer_s = sum(sum(series) for series in self.transfer.values())
        return (local_s + transfer_s + sum(self.unaligned)) / self.steps

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


def critical_path(
    ranks: RankSteps, collective_segments: Sequence[str] = COLLECTIVE_SEGMENTS
) -> CriticalPath:
    """Compute the critical path of a rung, which charges every moment once.

    Segments are taken in their order within a step. Work after the last meeting of a step
    counts towards the first meeting of the next step. Raises ValueError if ranks counted
    unequal steps, or none.
    """
    if not ranks or not ranks[0] or len({len(steps) for steps in ranks}) > 1:
        raise ValueError("every rank must have counted the same steps, at least one")
    names = list(ranks[0][0].segments)
    runs = _adjacent_segments(names, collective_segments)
    entries: list[CriticalPathEntry] = []
    transfer: dict[str, list[float]] = {name: [] for name in names if name in collective_segments}
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


def _adjacent_segments(names: Sequence[str], collective_segments: Sequence[str]) -> list[list[str]]:
    """List runs of two or more meetings that follow each other in a step.

    Within a run there is no local work between the meetings.
    """
    runs: list[list[str]] = [[]]
    for name in names:
        if name in collective_segments:
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


def _make_entry(
    step: int, segment: str, seconds: list[float], last: int | None
) -> CriticalPathEntry:
    cost = sum(seconds) / len(seconds) if last is None else seconds[last]
    return CriticalPathEntry(step, segment, last, cost, statistics.median_low(seconds))
