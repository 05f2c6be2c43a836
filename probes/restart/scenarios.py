"""Fault scenarios of RESTART, with the outcome that each must have."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Any

import pytest

from probes.faults.injection import Fault, FaultScenario
from probes.least_versions import ASYNC_SAVES
from probes.restart.node_loss import NodeLoss
from probes.restart.reference_run import MAX_STEPS_LOST, NEWEST

# Longer than the supervisor takes to see the loss and to end the survivors.  Otherwise survivors
# could commit what all ranks have written.
COMMIT_STALL = f"commit:rank=0:seconds=8:from={NEWEST}:to={NEWEST}"
SCENARIOS = [
    FaultScenario(
        name="killed-in-a-step-then-in-a-save",
        summary="SIGKILL in a step, and in the next attempt between a save's data and its commit",
        faults=(Fault("begin", 7), Fault("written", NEWEST)),
        changes={"stall": COMMIT_STALL},
    ),
    FaultScenario(
        name="stopped-not-killed",
        summary="SIGSTOP in a step: no socket closes, so only the missing heartbeat shows it",
        faults=(Fault("begin", 7, signal.SIGSTOP),),
    ),
    FaultScenario(
        name="told-to-leave",
        summary="SIGTERM, as before a preemption: it saves and leaves, and nothing is lost",
        faults=(Fault("begin", 6, signal.SIGTERM),),
        resume_step=6,
        max_lost=0,
    ),
    FaultScenario(
        name="killed-in-an-upload",
        summary="SIGKILL while a save is written in the background",
        faults=(Fault("save-returned", NEWEST),),
        max_lost=MAX_STEPS_LOST["async"],
        changes={"save_mode": "async", "stall": COMMIT_STALL.replace("commit", "upload")},
    ),
    FaultScenario(
        name="killed-in-a-commit",
        summary="SIGKILL of rank 0 between a save's manifest and the rename that commits it",
        faults=(Fault("sealed", NEWEST),),
        victim=0,
        changes={"stall": COMMIT_STALL.replace("commit", "rename")},
    ),
    FaultScenario(
        name="killed-before-the-first-checkpoint",
        summary="SIGKILL in step 2: it starts from the beginning, and logs that",
        faults=(Fault("begin", 2),),
        resume_step=0,
    ),
    FaultScenario(
        name="killed-while-it-restarts",
        summary="SIGKILL in a step, and again as soon as the next attempt starts",
        faults=(Fault("begin", 7), Fault("")),
    ),
    FaultScenario(
        name="attempts-used-up",
        summary=(
            "SIGKILL in every attempt: after two of them it gives up and leaves nothing behind"
        ),
        faults=(Fault("begin", 5), Fault("begin", 5)),
        restarts=1,
        gives_up=True,
    ),
]
NODE_LOSSES = [
    NodeLoss(
        name="no-node-to-spare",
        summary="a node is lost and no spare is left: it waits, holds nothing, and logs that",
        faults=(Fault("begin", 7),),
        spare_count=2,
        must_wait=True,
        timed=False,
    ),
    NodeLoss(
        name="a-node-to-spare",
        summary="a node is lost and a spare is left",
        faults=(Fault("begin", 7),),
        spare_count=3,
    ),
    NodeLoss(
        name="raylet-killed",
        summary="SIGKILL of Ray's raylet on a node: the rank there must end, too",
        faults=(Fault("begin", 5),),
        spare_count=3,
        whole_node=False,
        changes={"pace_s": 1.5},  # a rank takes some seconds to see that its raylet is gone
    ),
    NodeLoss(
        name="two-nodes-at-once",
        summary="all its nodes are lost at once, and other nodes are left",
        faults=(Fault("begin", 7),),
        spare_count=4,
        kills=2,
    ),
]
LAUNCHER_KILLED = FaultScenario(
    name="launcher-killed",
    summary="SIGKILL of the launcher; the same command is run again",
    faults=(Fault("step", 5),),
    changes={"pace_s": 1.0},  # a launcher logs its ranks' steps late, and they must still run
    resume_step=None,
    timed=False,
)


def params_by_tier(cases: Iterable[Any], quick: int = 0, standard: int | None = None) -> list[Any]:
    """Mark each case with its tier: the first `quick` cases run in every tier.

    Cases up to number `standard` (None: all) also run in the standard tier, the rest only in soak.
    Cases with background saves need ASYNC_SAVES.
    """
    ordered = list(cases)
    end = len(ordered) if standard is None else standard
    params = []
    for i, case in enumerate(ordered):
        marks = [] if i < quick else [pytest.mark.tier("standard" if i < end else "soak")]
        if getattr(case, "changes", {}).get("save_mode") == "async":
            marks.append(pytest.mark.needs(ASYNC_SAVES))
        params.append(pytest.param(case, id=getattr(case, "name", case), marks=marks))
    return params
