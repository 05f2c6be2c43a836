"""What gangs owe each other, measured: withdrawn, undisturbed, not blocked, handed on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from probes.contract import ClusterTerms
from probes.findings import finding, listed
from probes.gang_checks import whole
from probes.gang_stage import Scene

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
    """That a gang which runs held all of its own in every sample since it was placed."""
    seen = [whole(sample, gang) for sample in at.samples]
    lost = seen[seen.index(True) :].count(False) if True in seen else None
    at.measure("disturbed", lost, note="the gang never ran")


def passes(at: Scene, gang: str, since: float) -> None:
    """That a gang which has room is placed although another waits."""
    took = at.took(since, at.placed(gang))
    at.measure("blocked_behind", int(took is None))
    at.measure.note("placed_behind_in", took, "s")
    if took is None:
        said = f"gang {gang} had room and was not placed: {at.watch.samples[-1]['gangs']}"
        at.measure.explain(finding("GANG-BLOCKED", said, [f"job {gang[0]}"]))


def handed_off(at: Scene, since: float, gang: str, words: str) -> float | None:
    """How long a gang that waits takes to be placed once there is room; when it was."""
    there = at.placed(gang)
    took = at.took(since, there)
    at.measure("handoff", took, note=words)
    at.measure("never_placed", int(there is None))
    if there is None:
        said = f"{words}; last seen {at.watch.samples[-1]['gangs']}"
        at.measure.explain(finding("GANG-STUCK", said, [f"job {gang[0]}"]))
    return there


def none_placed(at: Scene, gangs: Iterable[str]) -> None:
    """That these gangs had room and were not placed."""
    waiting = sorted(gangs)
    at.measure("never_placed", len(waiting))
    if not waiting:
        return
    said = f"{listed(waiting)} were not placed; last seen {at.watch.samples[-1]['gangs']}"
    at.measure.explain(finding("GANG-STUCK", said))


def all_ran(at: Scene, sizes: list[int], told: list[dict[str, Any]]) -> None:
    """That each of many gangs had its turn, and how long the smaller and the larger ones waited."""
    at.measure("never_placed", len(sizes) - len(told), samples=len(sizes))
    middle = (min(sizes) + max(sizes)) / 2
    waits = {
        "small": [one["waited"] for one in told if one["size"] <= middle],
        "large": [one["waited"] for one in told if one["size"] > middle],
    }
    for words, each in waits.items():
        mean = sum(each) / len(each) if each else None
        at.measure.note(f"wait_{words}", mean, "s", samples=len(each))
    at.measure.note("wait_longest", max((one["waited"] for one in told), default=None), "s")
    if len(told) < len(sizes):
        said = f"{len(sizes) - len(told)} of {len(sizes)} gangs were never placed"
        at.measure.explain(finding("GANG-STUCK", said))


def bounded(at: Scene, wait: float | None, terms: ClusterTerms) -> None:
    """A big gang's wait: judged where a queue layer was declared, else told."""
    if terms.queue:
        at.measure("big_wait", wait, note="the big gang was never placed")
    else:
        at.measure.note("big_wait", wait, "s")


def tell_queue(at: Scene, terms: ClusterTerms) -> None:
    """That a declared queue gangs pods: what it does between Ray clusters is out of sight here."""
    if terms.queue:
        at.measure.covered(f"not proven: {terms.queue} gangs pods, between Ray clusters")
