"""Control of the all-reduce inside nodes: one rank that begins each call late."""

from __future__ import annotations

from probes.fabric.bad_nodes import FabricRig
from probes.fabric.speeds.inside import InsideSpeeds, judge_against_others, measure_inside
from probes.fabric.sweep import SweepResult
from reference_trainer.launch.gang import GangError
from scaling.collectives.node_groups import MESSAGE_BYTES
from scaling.collectives.operations import OPERATIONS

SLOWED_BY = 2.0  # times the time of a call: the node then has a third of the speed


def control_slow_inside(rig: FabricRig, run: SweepResult, inside: InsideSpeeds) -> None:
    """Check that a node whose last rank begins each call late is located."""
    fault = "the last rank of a node begins each all-reduce late"
    if not inside.shares():
        if inside.busbw:
            saw = "no two nodes have as many ranks"
            rig.measure.control("slow inside", fault, None, saw=saw)
        return
    victim = [*inside.shares()][-1]
    ranks = [rank for rank, node in enumerate(run.rank_nodes) if node == victim]
    factor = OPERATIONS["all_reduce"].factor(len(ranks))
    speed = inside.busbw[victim] * 1e9
    delay_s = SLOWED_BY * MESSAGE_BYTES[run.backend] * factor / speed if speed else 1.0
    fault = f"rank {ranks[-1]} on {victim} begins each all-reduce {delay_s:.2g} s late"
    try:
        found = measure_inside(rig.gang, run.rank_nodes, (ranks[-1], delay_s))
    except GangError as error:
        rig.measure.control("slow inside", fault, None, saw=str(error))
        return
    trial = rig.measure.trial()
    judge_against_others(found, trial)
    shares = found.shares()
    slowest = min(shares, key=lambda node: shares[node])
    rig.measure.control("slow inside", fault, trial, located=slowest == victim)
