"""A node is lost: spare raylets join, one is killed, and what that does to the gangs of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from probes.berths import Berths
from probes.findings import finding
from probes.gang_checks import placed
from probes.gang_judging import handed_off
from probes.gang_stage import Scene

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
    when = at.watch.mark(words)
    at.measure("victims_dead", int(berths.lose(name)[0]), on=words)
    return when


def under_a_gang(at: Scene, berths: Berths, running: str, victim: str) -> None:
    """The running gang loses a node: it is seen, and once it is removed others are placed."""
    lost = lose(at, berths, victim, "a node of A's gang is lost")
    seen = at.until(
        lambda sample: sample["gangs"].get(running, {}).get("state") == "RESCHEDULING", SEEN_SECONDS
    )
    at.measure.note("loss_seen_after", at.took(lost, seen), "s")
    at.measure("loss_not_seen", int(seen is None))
    at.measure.note("bundles_kept", placed(at.watch.samples[-1], running), "bundles")
    asked = at.watch.mark("B asks for one")
    other = at.ask("B", 1)
    unaided = at.placed(other, BLOCKED_SECONDS)
    removed = at.drop(running, "A's launcher removes its gang")
    if unaided is not None:
        at.measure("handoff", at.took(asked, unaided))
        return
    handed_off(at, removed, other, "others stay blocked after the harmed gang was removed")
    said = (
        f"a gang of 1 with {at.total} free was not placed for {BLOCKED_SECONDS:g} s, while a gang "
        "that had lost a node stood"
    )
    at.measure.explain(finding("GANG-NODE-LOSS", said))
