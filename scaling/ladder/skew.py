"""Who waits for whom: meetings of ranks split into transfer and skew, and the frontier's account.

A segment with a collective inside is a meeting: whoever comes early waits there for the others.

    transfer = min over ranks of the seconds spent there,   skew = mean - min      exact, per step.

That the rank with the least time saw no straggler is an assumption; the split is arithmetic.  A
meeting holds compute as well, so its transfer is not communication.  What was waited for each of
FSDP's collectives is, where the trainer's clock tells it apart: on GPUs.  It is split the same way.

The account charges each moment once.  Between two meetings the frontier is the rank that comes
last, and the job moves at its pace: the others' own work is hidden behind it, and so is their
waiting.  So that round costs what the last rank did in it, and nobody else is charged.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.ladder.step_breakdown import Step

RankSteps = Sequence[Sequence[Step]]  # [rank][step]

COLLECTIVE_SEGMENTS = ("forward", "backward", "clip")


def waits_separable(spans: Sequence[dict[str, Any]]) -> bool:
    """Whether the trainer's span records tell waiting apart from compute: all of them must."""
    return bool(spans) and all(record.get("separable", False) for record in spans)


@dataclass(frozen=True)
class TransferSkew:
    """One meeting segment, mean seconds per step: transfer + skew is its mean over ranks.

    `last_ranks[k]` came last to it in step k; `skews[k]` is the mean wait for it, seconds.
    """

    segment: str
    transfer: float
    skew: float
    last_ranks: tuple[int, ...]
    skews: tuple[float, ...]

    def culprit(self) -> tuple[int, float]:
        """(the rank that most of the skew is due to, its share of the skew; 0 without skew)."""
        skew_by_rank = dict.fromkeys(self.last_ranks, 0.0)
        for rank, seconds in zip(self.last_ranks, self.skews, strict=True):
            # Where all left together, rounding may say less than 0.
            skew_by_rank[rank] += max(0.0, seconds)
        rank = max(skew_by_rank, key=skew_by_rank.__getitem__)
        total = sum(skew_by_rank.values())
        return rank, skew_by_rank[rank] / total if total > 0 else 0.0


def split_segment(ranks: RankSteps, segment: str) -> TransferSkew:
    """Transfer and skew of one segment.  KeyError where a step lacks it."""
    return _split_transfer(segment, [[step.segments[segment] for step in steps] for steps in ranks])


def _split_transfer(name: str, table: Sequence[Sequence[float]]) -> TransferSkew:
    """Transfer and skew of what each rank spent, seconds [rank][step]."""
    steps = [*zip(*table, strict=True)]
    last = tuple(spent.index(min(spent)) for spent in steps)
    skews = tuple(sum(spent) / len(spent) - min(spent) for spent in steps)
    return TransferSkew(
        name, statistics.fmean(map(min, steps)), statistics.fmean(skews), last, skews
    )


def transfer_growth(base: RankSteps, current: RankSteps) -> dict[str, float]:
    """By how much the transfer of each collective grew since the base rung, seconds per step.

    What ranks wait for each other is none of it.
    """
    before, now = map(exposed_waits, (base, current))
    return {
        name: entry.transfer - (before[name].transfer if name in before else 0.0)
        for name, entry in now.items()
    }


def exposed_waits(ranks: RankSteps) -> dict[str, TransferSkew]:
    """Split what was waited for each collective; meant for waits that are separable."""
    waits = [[step.waits for step in steps] for steps in ranks]
    names = dict.fromkeys(name for steps in waits for step_waits in steps for name in step_waits)
    return {
        name: _split_transfer(
            name, [[step_waits.get(name, 0.0) for step_waits in steps] for steps in waits]
        )
        for name in names
    }


def slowest_compute(ranks: RankSteps, segments: Collection[str]) -> list[float]:
    """List what meetings would take by step if links were free: each one's slowest compute.

    `segments` are the meetings whose waits are timed; the others are left out.
    """
    return [
        sum(max(step.compute_in([name]) for step in row) for name in segments)
        for row in zip(*ranks, strict=True)
    ]


def describe_exposed(ranks: RankSteps, separable: bool, nodes: Sequence[str]) -> str:
    """Exposed communication in words, in milliseconds per step, and whom the skew is due to.

    `nodes[r]` is rank r's.
    """
    if not separable:  # then it is not known, and never 0
        return "exposed communication: not separable here"
    parts = []
    for name, entry in exposed_waits(ranks).items():
        rank, share = entry.culprit()
        due = f" ({share:.0%} of it for rank {rank} on {nodes[rank]})" if entry.skew > 0 else ""
        parts.append(f"{name} {entry.transfer * 1e3:.1f} + {entry.skew * 1e3:.1f}{due}")
    return f"exposed communication, transfer + skew in ms: {', '.join(parts) or 'none'}"


@dataclass(frozen=True)
class CriticalPathEntry:
    """What one own segment of one step cost the job: the seconds of the rank that came last next.

    `typical` is the median rank's (of two the lesser).  `rank` is None after the last meeting of
    the window, where nobody is known to be last and the mean over ranks is charged.
    """

    step: int
    segment: str
    rank: int | None
    seconds: float
    typical: float


@dataclass(frozen=True)
class CriticalPath:
    """Where a rung's time went, each moment once; `seconds` is the mean step, exactly.

    `transfer[segment][k]` and `unaligned[k]` are seconds of step k.  Unaligned is the waiting that
    the last rank's own work does not account for: ranks did not leave the meeting before together.
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
        """Mean seconds of a step: the sum of all that is charged, over the number of steps."""
        local_s = sum(entry.seconds for entry in self.entries)
        transfer_s = sum(sum(series) for series in self.transfer.values())
        return (local_s + transfer_s + sum(self.unaligned)) / self.steps

    def transfer_by_step(self) -> list[float]:
        """Seconds of transfer in each step, all meetings together."""
        return [sum(row) for row in zip(*self.transfer.values(), strict=True)]

    def local_by_step(self, segment: str) -> list[float]:
        """Seconds charged to one own segment, by step."""
        seconds = [0.0] * self.steps
        for entry in self.entries:
            if entry.segment == segment:
                seconds[entry.step] += entry.seconds
        return seconds


def critical_path(
    ranks: RankSteps, collective_segments: Sequence[str] = COLLECTIVE_SEGMENTS
) -> CriticalPath:
    """Charge every moment once.

    Segments are taken in their order within a step, and what is done after the last meeting of a
    step counts towards the first of the next.  ValueError where ranks counted unequal steps.
    """
    if not ranks or not ranks[0] or len({len(steps) for steps in ranks}) > 1:
        raise ValueError("every rank must have counted the same steps, at least one")
    names = list(ranks[0][0].segments)
    runs = _adjacent_segments(names, collective_segments)
    entries: list[CriticalPathEntry] = []
    transfer: dict[str, list[float]] = {name: [] for name in names if name in collective_segments}
    unaligned: list[float] = []
    pending: list[tuple[int, str, list[float]]] = []  # own segments since the last meeting
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
    """Meetings that follow each other without own work between them, by their order in a step."""
    runs: list[list[str]] = [[]]
    for name in names:
        if name in collective_segments:
            runs[-1].append(name)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if len(run) > 1]


def _run_excess(ranks: RankSteps, index: int, run: Sequence[str]) -> float:
    """What adjacent meetings took together, beyond the least of each: seconds, never below 0.

    A meeting does not end for all at once: who is slow after the last collective of one keeps the
    others waiting in the next.  Each alone has a rank that was quick in it, together they have not.
    """
    spent = [[steps[index].segments[name] for name in run] for steps in ranks]
    together = min(sum(rank_spent) for rank_spent in spent)
    return together - sum(min(segment_spent) for segment_spent in zip(*spent, strict=True))


def _make_entry(
    step: int, segment: str, seconds: list[float], last: int | None
) -> CriticalPathEntry:
    cost = sum(seconds) / len(seconds) if last is None else seconds[last]
    return CriticalPathEntry(step, segment, last, cost, statistics.median_low(seconds))
