"""Injects node losses: spare raylets join, one is killed, and the effect on gangs is judged."""

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

LOSS_SECONDS = 90  # for Ray to detect a lost node: 5 health checks of 3 s each, and a margin
BLOCKED_SECONDS = 5.0  # for another gang to be placed while the gang that lost a node still stands


@contextmanager
def spare_raylets(run: Scenario, count: int) -> Iterator[SpareNodes]:
    """Add spare raylets, and remove them on exit."""
    run.measure.progress(f"gang: {count} spare raylets join")
    with closing(SpareNodes(run.rig.cluster, count)) as spares:
        run.observer.node_names |= spares.node_names
        yield spares


def kill_spare_node(run: Scenario, spares: SpareNodes, name: str, message: str) -> float:
    """Kill one spare raylet and judge that it is dead; return when it was killed."""
    killed_at = run.observer.mark(message, fault=True)
    dead, _ = spares.kill_nodes(name)
    run.measure("nodes_killed", int(dead) or None, on=message, note="its death is not proven")
    return killed_at


def lose_free_node(run: Scenario, spares: SpareNodes, waiting: str, victim: str) -> None:
    """Kill a node that no gang holds while a gang waits; one with room must still be placed."""
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
    """Judge a node that runs as if it had been killed; the loss must count as undetected."""
    trial = run.measure.trial()
    gone = run.until(lambda sample: victim not in sample["free_on"], PENDING_SECONDS)
    judge_detected(gone, victim, PENDING_SECONDS, trial)
    fault = f"{victim} is alive, and is judged as if it had been killed"
    run.measure.control("node not lost", fault, trial)


def lose_held_node(run: Scenario, spares: SpareNodes, running: str, victim: str) -> None:
    """Kill a node of the running gang; Ray must detect it, and place others once it is removed."""
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
        f"gang {gang} of 1, with {free} free, was not placed for {BLOCKED_SECONDS:g} s while "
        f"gang {running}, which had lost {victim}, still existed"
    )
    run.measure.explain(finding("GANG-NODE-LOSS", message, ["job A", victim]))


def _judge_detection(run: Scenario, lost_at: float, detected: float | None, victim: str) -> None:
    """Judge that Ray detected the loss, and note how long that took."""
    run.measure.note("loss_seen_after", run.elapsed(lost_at, detected), "s", on=victim)
    judge_detected(detected, victim, LOSS_SECONDS, run.measure)


def judge_detected(detected: float | None, victim: str, seconds: float, measure: Recorder) -> None:
    """Judge that a node loss was detected within `seconds`."""
    measure("losses_not_detected", int(detected is None), on=victim)
    if detected is None:
        message = f"{victim} was killed, and Ray did not detect it within {seconds} s"
        measure.explain(finding("GANG-LOSS-NOT-DETECTED", message, [victim]))
