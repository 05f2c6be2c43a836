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

Table = Sequence[Sequence[Step]]  # [rank][step]

MEETINGS = ("forward", "backward", "clip")

NOT_SEPARABLE = "not separable here"


def separable(spans: Sequence[dict[str, Any]]) -> bool:
    """Whether the trainer's span records tell waiting apart from compute: all of them must."""
    return bool(spans) and all(record.get("separable", False) for record in spans)


@dataclass(frozen=True)
class Split:
    """One meeting segment, mean seconds per step: transfer + skew is its mean over ranks.

    `last[k]` is the rank that came last to it in step k; `skews[k]` the mean wait for it, seconds.
    """

    segment: str
    transfer: float
    skew: float
    last: tuple[int, ...]
    skews: tuple[float, ...]

    def culprit(self) -> tuple[int, float]:
        """(the rank that most of the skew is due to, its share of the skew; 0 without skew)."""
        owed = dict.fromkeys(self.last, 0.0)
        for rank, seconds in zip(self.last, self.skews, strict=True):
            owed[rank] += max(0.0, seconds)  # where all left together, rounding may say less than 0
        rank = max(owed, key=owed.__getitem__)
        total = sum(owed.values())
        return rank, owed[rank] / total if total > 0 else 0.0


def split(ranks: Table, segment: str) -> Split:
    """Transfer and skew of one segment.  KeyError where a step lacks it."""
    return _cut(segment, [[step.segments[segment] for step in steps] for steps in ranks])


def _cut(name: str, table: Sequence[Sequence[float]]) -> Split:
    """Transfer and skew of what each rank spent, seconds [rank][step]."""
    last, skews, least = [], [], []
    for spent in zip(*table, strict=True):
        last.append(min(range(len(spent)), key=spent.__getitem__))
        least.append(min(spent))
        skews.append(sum(spent) / len(spent) - min(spent))
    return Split(name, statistics.fmean(least), statistics.fmean(skews), tuple(last), tuple(skews))


def exposed(ranks: Table, separable: bool) -> dict[str, Split] | None:
    """What steps waited, by collective; None where it is not separable from compute, never 0."""
    return _waits(ranks) if separable else None


def grown(base: Table, here: Table) -> dict[str, float]:
    """By how much the transfer of each collective grew since the base rung, seconds per step.

    What ranks wait for each other is none of it.
    """
    before, now = map(_waits, (base, here))
    return {
        name: one.transfer - (before[name].transfer if name in before else 0.0)
        for name, one in now.items()
    }


def _waits(ranks: Table) -> dict[str, Split]:
    """What was waited for each collective, split."""
    waited = [[step.waited for step in steps] for steps in ranks]
    names = dict.fromkeys(name for steps in waited for one in steps for name in one)
    return {
        name: _cut(name, [[one.get(name, 0.0) for one in steps] for steps in waited])
        for name in names
    }


def computing(ranks: Table, timed: Collection[str]) -> list[float]:
    """Seconds by step that meetings would take if links were free: each one's slowest compute.

    `timed` are the meetings whose waits are; the others are left out.
    """
    return [
        sum(max(step.computed([name]) for step in at) for name in timed)
        for at in zip(*ranks, strict=True)
    ]


def exposed_said(ranks: Table, separable: bool, nodes: Sequence[str]) -> str:
    """Exposed communication in words, in milliseconds per step, and whom the skew is due to.

    `nodes[r]` is rank r's.
    """
    found = exposed(ranks, separable)
    if found is None:
        return f"exposed communication: {NOT_SEPARABLE}"
    parts = []
    for name, one in found.items():
        rank, share = one.culprit()
        due = f" ({share:.0%} of it for rank {rank} on {nodes[rank]})" if one.skew > 0 else ""
        parts.append(f"{name} {one.transfer * 1e3:.1f} + {one.skew * 1e3:.1f}{due}")
    return f"exposed communication, transfer + skew in ms: {', '.join(parts) or 'none'}"


@dataclass(frozen=True)
class Charge:
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
class Account:
    """Where a rung's time went, each moment once; `seconds` is the mean step, exactly.

    `transfer[segment][k]` and `unaligned[k]` are seconds of step k.  Unaligned is the waiting that
    the last rank's own work does not account for: ranks did not leave the meeting before together.
    """

    charges: tuple[Charge, ...]
    transfer: dict[str, list[float]]
    unaligned: list[float]

    @property
    def steps(self) -> int:
        """Number of steps in the window."""
        return len(self.unaligned)

    @property
    def seconds(self) -> float:
        """Mean seconds of a step: the sum of all that is charged, over the number of steps."""
        own = sum(charge.seconds for charge in self.charges)
        met = sum(sum(series) for series in self.transfer.values())
        return (own + met + sum(self.unaligned)) / self.steps

    def met(self) -> list[float]:
        """Seconds of transfer in each step, all meetings together."""
        return [sum(at) for at in zip(*self.transfer.values(), strict=True)]

    def own(self, segment: str) -> list[float]:
        """Seconds charged to one own segment, by step."""
        found = [0.0] * self.steps
        for charge in self.charges:
            if charge.segment == segment:
                found[charge.step] += charge.seconds
        return found


def account(ranks: Table, meetings: Sequence[str] = MEETINGS) -> Account:
    """Charge every moment once.  `meetings` are the segments that hold a collective.

    Segments are taken in their order within a step, and what is done after the last meeting of a
    step counts towards the first of the next.  ValueError where ranks counted unequal steps.
    """
    if not ranks or not ranks[0] or len({len(steps) for steps in ranks}) > 1:
        raise ValueError("every rank must have counted the same steps, at least one")
    names = list(ranks[0][0].segments)
    runs = _adjacent(names, meetings)
    charges: list[Charge] = []
    transfer: dict[str, list[float]] = {name: [] for name in names if name in meetings}
    unaligned: list[float] = []
    open_: list[tuple[int, str, list[float]]] = []  # own segments since the last meeting
    for at in range(len(ranks[0])):
        unaligned.append(0.0)
        for name in names:
            spent = [steps[at].segments[name] for steps in ranks]
            if name not in transfer:
                open_.append((at, name, spent))
                continue
            least = min(spent)
            last = spent.index(least)
            transfer[name].append(least)
            unaligned[at] += sum(spent) / len(spent) - least
            for step, own, seconds in open_:
                charges.append(_charge(step, own, seconds, last))
                unaligned[at] += sum(seconds) / len(seconds) - seconds[last]
            open_ = []
        for run in runs:
            late = _beyond(ranks, at, run)
            transfer[run[-1]][at] += late
            unaligned[at] -= late
    charges += [_charge(step, own, seconds, None) for step, own, seconds in open_]
    return Account(tuple(charges), transfer, unaligned)


def _adjacent(names: Sequence[str], meetings: Sequence[str]) -> list[list[str]]:
    """Meetings that follow each other without own work between them, by their order in a step."""
    runs: list[list[str]] = [[]]
    for name in names:
        if name in meetings:
            runs[-1].append(name)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if len(run) > 1]


def _beyond(ranks: Table, at: int, run: Sequence[str]) -> float:
    """What adjacent meetings took together, beyond the least of each: seconds, never below 0.

    A meeting does not end for all at once: who is slow after the last collective of one keeps the
    others waiting in the next.  Each alone has a rank that was quick in it, together they have not.
    """
    spent = [[steps[at].segments[name] for name in run] for steps in ranks]
    together = min(sum(mine) for mine in spent)
    return together - sum(min(theirs) for theirs in zip(*spent, strict=True))


def _charge(step: int, segment: str, seconds: list[float], last: int | None) -> Charge:
    cost = sum(seconds) / len(seconds) if last is None else seconds[last]
    return Charge(step, segment, last, cost, statistics.median_low(seconds))
