"""A node is lost: spare raylets join, one is killed, and what that does to the gangs of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from probes.acceptance.measure import Recorder
from probes.faults.spare_nodes import SpareNodes
from probes.findings import finding
from probes.gang.invariants import count_placed
from probes.gang.judge import (
    PENDING_SECONDS,
    judge_not_blocked,
    judge_time,
    judge_withdrawal,
    time_handoff,
)
from probes.gang.scenario import Scenario

LOSS_SECONDS = 90  # until Ray has missed a node: 5 health checks, each 3 s, and then some
BLOCKED_SECONDS = 5.0  # that others are given beside a gang which lost a node


@contextmanager
def spare_raylets(run: Scenario, count: int) -> Iterator[SpareNodes]:
    """Add spare raylets, gone afterwards."""
    run.measure.progress(f"gang: {count} spare raylets join")
    with closing(SpareNodes(run.rig.cluster, count)) as spares:
        run.observer.node_names |= spares.node_names
        yield spares


def kill_spare_node(run: Scenario, spares: SpareNodes, name: str, message: str) -> float:
    """Kill one spare raylet, and have it proven; when."""
    killed_at = run.observer.mark(message, fault=True)
    dead, _ = spares.kill_nodes(name)
    run.measure("nodes_killed", int(dead) or None, on=message, note="it is not proven dead")
    return killed_at


def lose_free_node(run: Scenario, spares: SpareNodes, waiting: str, victim: str) -> None:
    """A node is lost that nobody holds, while a gang waits: one that has room is still placed."""
    control_node_not_lost(run, victim)
    lost_at = kill_spare_node(run, spares, victim, "the free node is lost")
    detected = run.until(lambda sample: victim not in sample["free_on"], LOSS_SECONDS)
    _judge_detection(run, lost_at, detected, victim)
    asked_at = run.observer.mark("B asks for one")
    behind = run.ask("B", 1)
    judge_not_blocked(run, behind, asked_at)
    judge_withdrawal(run, waiting, run.drop(waiting, "B cancels"))
    run.drop(behind)


def control_node_not_lost(run: Scenario, victim: str) -> None:
    """A node that lives is judged as if it had been killed: its loss must be missed."""
    trial = run.measure.trial()
    gone = run.until(lambda sample: victim not in sample["free_on"], PENDING_SECONDS)
    judge_detected(gone, victim, PENDING_SECONDS, trial)
    fault = f"{victim} lives, and is judged as if it had been killed"
    run.measure.control("node not lost", fault, trial)


def lose_held_node(run: Scenario, spares: SpareNodes, running: str, victim: str) -> None:
    """The running gang loses a node: it is seen, and once it is removed others are placed."""
    lost_at = kill_spare_node(run, spares, victim, "a node of A's gang is lost")
    detected = run.until(
        lambda sample: sample["gangs"].get(running, {}).get("state") == "RESCHEDULING", LOSS_SECONDS
    )
    _judge_detection(run, lost_at, detected, victim)
    run.measure.note("bundles_kept", count_placed(run.observer.samples[-1], running), "bundles")
    free = run.observer.samples[-1]["free"]
    asked = run.observer.mark("B asks for one")
    gang = run.ask("B", 1)
    unaided = run.wait_placed(gang, BLOCKED_SECONDS)
    removed = run.drop(running, "A's launcher removes its gang")
    if unaided is not None:
        took, event = run.elapsed(asked, unaided), f"gang {gang} was placed"
        judge_time(run, "placement_delay", took, event, [gang], "")
        return
    time_handoff(run, removed, gang, "others stay blocked after the harmed gang was removed")
    message = (
        f"gang {gang} of 1, with {free} free, was not placed for {BLOCKED_SECONDS:g} s, while "
        f"gang {running} stood, which had lost {victim}"
    )
    run.measure.explain(finding("GANG-NODE-LOSS", message, ["job A", victim]))


def _judge_detection(run: Scenario, lost_at: float, detected: float | None, victim: str) -> None:
    """That Ray noticed the loss, and how long that took."""
    run.measure.note("loss_seen_after", run.elapsed(lost_at, detected), "s", on=victim)
    judge_detected(detected, victim, LOSS_SECONDS, run.measure)


def judge_detected(detected: float | None, victim: str, seconds: float, measure: Recorder) -> None:
    """That a loss was noticed within so many seconds."""
    measure("losses_not_detected", int(detected is None), on=victim)
    if detected is None:
        message = f"{victim} was killed, and Ray did not notice within {seconds} s"
        measure.explain(finding("GANG-LOSS-NOT-DETECTED", message, [victim]))
