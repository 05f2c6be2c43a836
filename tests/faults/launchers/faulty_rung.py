"""Clusters on which a job scales badly, and why.  A plugin that plants one cause, and the causes.

pytest -p tests.faults.launchers.faulty_rung ...      with SEATRIAL_TEST_FAULT=<a name of FAULTS>

The cause is in ranks of the largest rung, of four: a cluster whose nodes are sound alone.  A slow
node is slow on each rung; one fault is in the rung of two.  Delays are in a step's compute, as the
contract paces it.
"""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from reference_trainer.config import TrainConfig
from reference_trainer.launch import launchers
from scaling.ladder import ladder

NAME = "SEATRIAL_TEST_FAULT"
RUNG, MIDDLE, SLOW = "4", "2", "node1"
CHECKPOINTS = "/shared/planted-checkpoints"
# For what is planted in the lab's links instead: the rate, and the contract's other lines.
SLOW_LINK = "50mbit"  # 0.00625 GB/s
BRISK = {"pace_seconds = 0.25": "pace_seconds = 0.1"}  # a quarter of the computing
STRICT = {"at_least = 0.55": "at_least = 0.85", "marginal = 0.65": "marginal = 0.95"}
EVERY = ["node0", "node1", "node2", "node3"]
Change = Callable[[TrainConfig], TrainConfig]


def pytest_configure() -> None:
    """The plugin's way in."""
    plant(os.environ[NAME])


def plant(fault: str) -> None:
    """The ladder's ranks are faulty ones from now on."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers have no tests
    vars(ladder)["train_rank"] = partial(_rank, FAULTS[fault])  # where `run_rung` looks for it


def _rank(change: Change, config: TrainConfig) -> dict[str, Any]:
    rung = MIDDLE if change is dies_in_the_middle else RUNG
    there = os.environ["WORLD_SIZE"] == rung or change in ON_EACH_RUNG
    there = there and not config.stall  # not in the probe's own control
    return launchers.train_rank(change(config) if there else config)


def stalled(*stalls: tuple[str, float]) -> Change:
    """Delays of certain ranks and steps: (where, how many steps' compute)."""

    def change(config: TrainConfig) -> TrainConfig:
        late = [f"{where}:seconds={much * config.pace_s:g}" for where, much in stalls]
        return replace(config, stall=",".join(late))

    return change


def jitters(config: TrainConfig, *also: tuple[str, float]) -> TrainConfig:
    """In every third step some rank, never the same one for long, is late."""
    chance = random.Random(7)
    late = [step for step in range(1, config.steps + 1) if step % 3 == 0]
    where = [f"forward:rank={chance.randrange(int(RUNG))}:from={at}:to={at}" for at in late]
    return stalled(*also, *[(one, 5) for one in where])(config)


def slow_node(config: TrainConfig) -> TrainConfig:
    """All that one node computes takes longer, alone too."""
    if socket.gethostname() != SLOW:
        return config
    return stalled((f"forward:rank={os.environ['RANK']}", 1.25))(config)


def half_pace(config: TrainConfig) -> TrainConfig:
    """What one node emulates takes twice as long."""
    return half_pace_everywhere(config) if socket.gethostname() == SLOW else config


def half_pace_everywhere(config: TrainConfig) -> TrainConfig:
    """What is emulated takes twice as long, in whatever this process trains from now on.

    The config says nothing of it: the contract's pace is what was agreed, this what there is.
    """
    from reference_trainer.model import transformer
    from reference_trainer.model.transformer import EmulatedCompute

    def emulate(seconds: float, blocks: int) -> EmulatedCompute:
        return EmulatedCompute(2 * seconds, blocks)

    if isinstance(EmulatedCompute, type):  # else an earlier rung of this process has it already
        vars(transformer)["EmulatedCompute"] = emulate
    return config


def late_checkpoint(config: TrainConfig) -> TrainConfig:
    """It saves, as on no other rung, and one node is late after each save."""
    if not config.checkpoints:  # runs of another length are no resumes of this one
        folder = f"{CHECKPOINTS}/{config.steps}"
        config = replace(config, checkpoints=folder, save_every=6, keep_last=1)
    return stalled(("checkpoint:rank=2", 10))(config)


def apart(config: TrainConfig) -> TrainConfig:
    """Its ranks do not know of each other: each trains alone, which is fast."""
    os.environ.update(WORLD_SIZE="1", RANK="0", MASTER_ADDR="127.0.0.1")
    return config


def breaks(config: TrainConfig) -> TrainConfig:
    """There is no memory for it on one rank's GPU; its peers wait for that rank."""
    import torch

    if os.environ["RANK"] == "2":
        raise torch.OutOfMemoryError("no memory for the model")
    return config


def dies(config: TrainConfig) -> TrainConfig:
    """One of its processes ends."""
    if os.environ["RANK"] == "2":
        os._exit(1)
    return config


def dies_in_the_middle(config: TrainConfig) -> TrainConfig:
    """One of its processes ends, on a rung that is not the largest."""
    if os.environ["RANK"] == "1":
        os._exit(1)
    return config


def explodes(config: TrainConfig) -> TrainConfig:
    """Its loss is soon no number."""
    return replace(config, lr=1e30, clip=1e30)


ON_EACH_RUNG = (slow_node, half_pace, half_pace_everywhere)
DATA, SLOWING = ("data:rank=2", 1.5), ("forward:rank=1:from=14", 2.5)
FAULTS: dict[str, Change] = {
    "late-data": stalled(DATA),
    "slowing": stalled(SLOWING),
    "jitter": jitters,
    "late-data-and-slowing": stalled(DATA, SLOWING),
    "late-data-and-jitter": lambda config: jitters(config, DATA),
    "slow-node": slow_node,
    "half-pace": half_pace,
    "half-pace-everywhere": half_pace_everywhere,
    "late-checkpoint": late_checkpoint,
    "late-storage": stalled(("upload:rank=2", 10)),
    "slow-storage": stalled(*[(f"upload:rank={rank}", 10) for rank in range(int(RUNG))]),
    "apart": apart,
    "breaks": breaks,
    "dies": dies,
    "dies-in-the-middle": dies_in_the_middle,
    "explodes": explodes,
}

HALF_PACE = {  # what fails, and what is said beside the loss
    "half-pace": ("efficiency", [("SCALE-SLOW-NODE", [SLOW]), ("SCALE-STRAGGLER", [SLOW])]),
    "half-pace-everywhere": ("tokens_per_s", [("SCALE-SLOW-BASE", EVERY)]),
}
# What is said of those that cost time, beside the loss, in order: code and suspects.
LATE = ("SCALE-STRAGGLER", ["rank 2", "node2"])
NAMED: dict[str, list[tuple[str, list[str]]]] = {
    "late-data": [("SCALE-DATA", ["node2"]), LATE],
    "slowing": [("SCALE-THROTTLING", ["node1"])],
    "jitter": [("SCALE-JITTER", [])],
    "slow-node": [("SCALE-SLOW-NODE", [SLOW]), ("SCALE-STRAGGLER", [SLOW])],
    "late-checkpoint": [("SCALE-CHECKPOINT", ["node2"])],
    "late-data-and-slowing": [("SCALE-DATA", ["node2"]), ("SCALE-THROTTLING", ["node1"]), LATE],
    "late-data-and-jitter": [("SCALE-JITTER", []), ("SCALE-DATA", ["node2"]), LATE],
}
