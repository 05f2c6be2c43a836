"""A node is lost: spare raylets join, one is killed, and what that does to the gangs of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from probes.faults.spare_nodes import Berths
from probes.findings import finding
from probes.gang.invariants import placed
from probes.gang.judge import handed_off, in_time, passes, withdrawn
from probes.gang.scenario import Scene

SEEN_SECONDS = 90  # until Ray has missed a node: 5 health checks, each 3 s, and then some
BLOCKED_SECONDS = 5.0  # that others are given beside a gang which lost a node


@contextmanager
def spare_raylets(at: Scene, count: int) -> Iterator[Berths]:
    """Spare raylets, gone afterwards."""
    at.measure.progress(f"gang: {count} spare raylets join")
    berths = Berths(at.stage.cluster, count)
    at.watch.names |= berths.names
    try:
        yield berths
    finally:
        berths.close()


def lose(at: Scene, berths: Berths, name: str, words: str) -> float:
    """Kill one spare raylet, and have it proven; when."""
    when = at.watch.mark(words, fault=True)
    dead, _ = berths.lose(name)
    at.measure("victims_dead", int(dead) or None, on=words, note="it is not proven dead")
    return when


def beside_a_waiting_gang(at: Scene, berths: Berths, waiting: str, victim: str) -> None:
    """A node is lost that nobody holds, while a gang waits: one that has room is still placed."""
    lost = lose(at, berths, victim, "the free node is lost")
    gone = at.until(lambda sample: victim not in sample["free_on"], SEEN_SECONDS)
    _noticed(at, lost, gone, victim)
    begun = at.watch.mark("B asks for one")
    behind = at.ask("B", 1)
    passes(at, behind, begun)
    withdrawn(at, waiting, at.drop(waiting, "B cancels"))
    at.drop(behind)


def under_a_gang(at: Scene, berths: Berths, running: str, victim: str) -> None:
    """The running gang loses a node: it is seen, and once it is removed others are placed."""
    lost = lose(at, berths, victim, "a node of A's gang is lost")
    seen = at.until(
        lambda sample: sample["gangs"].get(running, {}).get("state") == "RESCHEDULING", SEEN_SECONDS
    )
    _noticed(at, lost, seen, victim)
    at.measure.note("bundles_kept", placed(at.watch.samples[-1], running), "bundles")
    free = at.watch.samples[-1]["free"]
    asked = at.watch.mark("B asks for one")
    other = at.ask("B", 1)
    unaided = at.placed(other, BLOCKED_SECONDS)
    removed = at.drop(running, "A's launcher removes its gang")
    if unaided is not None:
        in_time(at, "handoff", at.took(asked, unaided), f"gang {other} was placed", [other], "")
        return
    handed_off(at, removed, other, "others stay blocked after the harmed gang was removed")
    said = (
        f"gang {other} of 1, with {free} free, was not placed for {BLOCKED_SECONDS:g} s, while "
        f"gang {running} stood, which had lost {victim}"
    )
    at.measure.explain(finding("GANG-NODE-LOSS", said, ["job A", victim]))


def _noticed(at: Scene, lost: float, seen: float | None, victim: str) -> None:
    """That Ray noticed the loss, and how long that took."""
    at.measure.note("loss_seen_after", at.took(lost, seen), "s", on=victim)
    at.measure("loss_not_seen", int(seen is None), on=victim)
    if seen is None:
        said = f"{victim} was killed, and Ray did not notice within {SEEN_SECONDS} s"
        at.measure.explain(finding("GANG-LOSS-UNSEEN", said, [victim]))
