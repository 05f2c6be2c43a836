"""What a run may meet, and what it must come to."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Any

import pytest

from probes.restart.faulted_run import Blow, Scenario
from probes.restart.node_loss import Loss
from probes.restart.reference_run import LOST_AT_MOST, NEWEST

# Longer than it takes to see the loss, and than survivors are given to end: they could commit what
# all have written.
HOLD = f"commit:rank=0:seconds=8:from={NEWEST}:to={NEWEST}"
SCENARIOS = [
    Scenario(
        name="killed-in-a-step-then-in-a-save",
        words="SIGKILL in a step, and in the next life between a save's data and its commit",
        blows=(Blow("begin", 7), Blow("written", NEWEST)),
        changes={"stall": HOLD},
    ),
    Scenario(
        name="stopped-not-killed",
        words="SIGSTOP in a step: no socket closes, and only a heartbeat tells",
        blows=(Blow("begin", 7, signal.SIGSTOP),),
    ),
    Scenario(
        name="told-to-leave",
        words="SIGTERM, as a preemption gives notice: it saves, leaves, and nothing is lost",
        blows=(Blow("begin", 6, signal.SIGTERM),),
        resumes=6,
        lost=0,
    ),
    Scenario(
        name="killed-in-an-upload",
        words="SIGKILL while a save is written in the background",
        blows=(Blow("save-returned", NEWEST),),
        lost=LOST_AT_MOST["async"],
        changes={
            "save_mode": "async",
            "stall": HOLD.replace("commit", "upload"),
        },
    ),
    Scenario(
        name="killed-in-a-commit",
        words="SIGKILL of rank 0 between a save's manifest and the rename that commits it",
        blows=(Blow("sealed", NEWEST),),
        victim=0,
        changes={"stall": HOLD.replace("commit", "rename")},
    ),
    Scenario(
        name="killed-before-the-first-checkpoint",
        words="SIGKILL in step 2: it starts over, and says so",
        blows=(Blow("begin", 2),),
        resumes=0,
    ),
    Scenario(
        name="killed-while-it-restarts",
        words="SIGKILL in a step, and of the next life as soon as it is there",
        blows=(Blow("begin", 7), Blow("")),
    ),
    Scenario(
        name="attempts-used-up",
        words="SIGKILL in every life: after two of them it gives up and leaves nothing behind",
        blows=(Blow("begin", 5), Blow("begin", 5)),
        restarts=1,
        dies=True,
    ),
]
LOSSES = [
    Loss(
        name="no-node-to-spare",
        words="a node is lost and none is to spare: it waits, holds nothing, and says so",
        blows=(Blow("begin", 7),),
        berths=2,
        waits=True,
        timed=False,
    ),
    Loss(
        name="a-node-to-spare",
        words="a node is lost and one is to spare",
        blows=(Blow("begin", 7),),
        berths=3,
    ),
    Loss(
        name="raylet-killed",
        words="SIGKILL of Ray's own process on a node: the rank there must end, too",
        blows=(Blow("begin", 5),),
        berths=3,
        whole=False,
        changes={"pace_s": 1.5},  # it takes a rank some seconds to see that its raylet is gone
    ),
    Loss(
        name="two-nodes-at-once",
        words="all its nodes are lost at once, and there are others",
        blows=(Blow("begin", 7),),
        berths=4,
        fall=2,
    ),
]
AGAIN = Scenario(
    name="launcher-killed",
    words="SIGKILL of the launcher; the same command is typed again",
    blows=(Blow("step", 5),),
    changes={"pace_s": 1.0},  # a launcher hears of its ranks later, and they must not have ended
    resumes=None,
    timed=False,
)


def later(each: Iterable[Any], quick: int = 0, standard: int | None = None) -> list[Any]:
    """All of them: the first few in every tier, more of them in standard, the rest in soak."""
    every = list(each)
    most = len(every) if standard is None else standard
    return [
        pytest.param(
            one,
            id=getattr(one, "name", one),
            marks=[] if at < quick else pytest.mark.tier("standard" if at < most else "soak"),
        )
        for at, one in enumerate(every)
    ]
