"""What gangs owe each other, measured: withdrawn, undisturbed, not blocked, handed on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from probes.acceptance.contract import ClusterTerms
from probes.acceptance.measure import Ledger
from probes.findings import finding, listed
from probes.gang.invariants import whole
from probes.gang.scenario import Scene

PENDING_SECONDS = 0.7  # how long a gang without room is looked at
WITHDRAWN_SECONDS = 10  # until a cancelled gang, or a dead driver's, is gone


def runs_and_waits(at: Scene, need: int) -> tuple[str, str]:
    """A gang of A that runs and one of B that has no room."""
    running = at.ask("A", need)
    at.placed(running)
    waiting = at.ask("B", need)
    at.watch.dwell(PENDING_SECONDS)
    return running, waiting


def withdrawn(at: Scene, gang: str, since: float) -> None:
    """That a gang is gone, and how long it took."""
    took = at.took(since, at.gone(gang, WITHDRAWN_SECONDS))
    at.measure("not_withdrawn", int(took is None))
    at.measure.note("withdrawn_in", took, "s")
    if took is None:
        said = f"gang {gang} is still there {WITHDRAWN_SECONDS} s later"
        at.measure.explain(finding("GANG-STAYS", said, [f"job {gang[0]}"]))


def undisturbed(at: Scene, gang: str) -> None:
    """That a gang which runs held all of its own in every sample since it was placed.

    Looks on for a moment: what harms it may come a little later.
    """
    at.watch.dwell(PENDING_SECONDS)
    seen = [whole(sample, gang) for sample in at.samples]
    lost = seen[seen.index(True) :].count(False) if True in seen else None
    at.measure("disturbed", lost, note="the gang never ran")
    if lost:
        said = f"gang {gang} ran and was not whole in {lost} samples after that; now {_now(at)}"
        at.measure.explain(finding("GANG-DISTURBED", said, [f"job {gang[0]}"]))


def one_whole(at: Scene, won: list[str], need: int) -> None:
    """That of two gangs which cannot both fit one is whole, and has all that was asked for."""
    gangs = at.watch.samples[-1]["gangs"]
    sizes = {gang: gangs[gang]["size"] for gang in won if gang in gangs}
    small = [gang for gang, size in sizes.items() if size < need]
    for gang in small:
        said = f"{gang} is of {sizes[gang]}, not {need}"
        at.measure.explain(finding("GANG-HALF", said, [f"job {gang[0]}"]))
    both = f"{listed(won)} of {need} each were both whole, with {at.total} free"
    twice = [finding("GANG-TWICE", both, sorted(at.room))] if len(won) > 1 and not small else []
    at.owe("placed_at_once", len(won), *twice, ours=bool(small))


def staffed(at: Scene, need: int, gangs: Iterable[str]) -> None:
    """That each place of a gang that is placed has its actor."""
    placed = sorted(gangs)
    if not placed:
        at.owe("unstaffed", None, note="no gang was placed")
        return
    all_there = at.until(lambda sample: sum(sample["actors"].values()) >= need)
    missing = 0 if all_there is not None else need - sum(at.samples[-1]["actors"].values())
    said = f"{missing} of {need} actors of gang {listed(placed)} did not run"
    at.owe("unstaffed", missing, finding("GANG-UNSTAFFED", said, jobs_of(placed)), ours=True)


def passes(at: Scene, gang: str, since: float) -> None:
    """That a gang which has room is placed although another waits."""
    took = at.took(since, at.placed(gang))
    at.measure.note("placed_behind_in", took, "s")
    said = f"gang {gang} had room and was not placed: {_now(at)}"
    at.owe("blocked_behind", int(took is None), finding("GANG-BLOCKED", said, jobs_of([gang])))


def handed_off(at: Scene, since: float, gang: str, words: str) -> float | None:
    """How long a gang that waits takes to be placed once there is room; when it was."""
    there = at.placed(gang)
    in_time(at, "handoff", at.took(since, there), f"gang {gang} was placed", [gang], words)
    stuck = finding("GANG-STUCK", f"{words}; last {_now(at)}", jobs_of([gang]))
    at.owe("never_placed", int(there is None), stuck)
    return there


def in_time(
    at: Scene, name: str, took: float | None, what: str, gangs: Iterable[str], never: str
) -> None:
    """That something came in time; `never` says what did not happen where it never came."""
    said = f"{what} only {took:.1f} s after it could be" if took else ""
    at.owe(name, took, finding("GANG-SLOW", said, jobs_of(gangs)), note=never)


def none_placed(at: Scene, gangs: Iterable[str]) -> None:
    """That these gangs had room and were not placed."""
    waiting = sorted(gangs)
    said = f"{listed(waiting)} were not placed; last seen {_now(at)}"
    at.owe("never_placed", len(waiting), finding("GANG-STUCK", said, jobs_of(waiting)))


def all_ran(at: Scene, sizes: list[int], told: list[dict[str, Any]]) -> None:
    """That each of many gangs had its turn, and how long the smaller and the larger ones waited."""
    missed = len(sizes) - len(told)
    said = f"{missed} of {len(sizes)} gangs were never placed"
    at.owe("never_placed", missed, finding("GANG-STUCK", said), samples=len(sizes))
    middle = (min(sizes) + max(sizes)) / 2
    waits = {
        "small": [one["waited"] for one in told if one["size"] <= middle],
        "large": [one["waited"] for one in told if one["size"] > middle],
    }
    for words, each in waits.items():
        mean = sum(each) / len(each) if each else None
        at.measure.note(f"wait_{words}", mean, "s", samples=len(each))
    at.measure.note("wait_longest", max((one["waited"] for one in told), default=None), "s")


def jobs_of(gangs: Iterable[str]) -> list[str]:
    """The jobs of these gangs, as suspects."""
    return sorted({f"job {gang[0]}" for gang in gangs})


def _now(at: Scene) -> str:
    """What gangs hold by the last look."""
    gangs = at.watch.samples[-1]["gangs"].items()
    return listed(f"{gang} {e['placed']} of {e['size']} {e['state']}" for gang, e in gangs)


def bounded(at: Scene, wait: float | None, terms: ClusterTerms) -> None:
    """A big gang's wait: judged where a queue layer was declared, else told."""
    if terms.queue:
        at.owe("big_wait", wait, note="the big gang was never placed")
    else:
        at.measure.note("big_wait", wait, "s")


def tell_queue(measure: Ledger, terms: ClusterTerms) -> None:
    """That a declared queue gangs pods: what it does between Ray clusters is out of sight here."""
    if terms.queue:
        measure.covered(f"not proven: {terms.queue} gangs pods, between Ray clusters")
