"""Controls of the links: a slow sender that loses packets, and counters of a bad port."""

from __future__ import annotations

from collections.abc import Container

from probes.fabric.bad_nodes import FabricRig
from probes.fabric.judge import judge_slowest_pair
from probes.fabric.links.judge import judge_link_loss, judge_ports
from probes.fabric.node_pairs import BadSender, PairSearch, run_few_pairs
from probes.fabric.sweep import SweepResult
from reference_trainer.launch.gang import GangError
from reports.numbers import percent
from scaling.collectives.node_groups import MESSAGE_BYTES

SLOWED_BY = 2.0  # times the time of a transfer: the sender then has a third of the speed
RESENT_SHARE = 0.05  # of its packets that the bad sender reports as resent
FEW_NODES = 3  # nodes of the control: the least from which one can be identified


def control_bad_sender(rig: FabricRig, run: SweepResult, pairs: PairSearch) -> None:
    """Check that a sender that is slow and reports resent packets is located."""
    rail, measure, typical = pairs.rails[-1], rig.measure, pairs.speed.typical
    victim = [*rail.ports][:FEW_NODES][-1]
    transfer_s = MESSAGE_BYTES[run.backend] / (typical * 1e9) if typical else 1.0
    bad = BadSender(rail.ports[victim], SLOWED_BY * transfer_s, RESENT_SHARE)
    fault = (
        f"{victim} sends {bad.delay_s:.2g} s late, and counts {percent(RESENT_SHARE)} as sent again"
    )
    try:
        found = run_few_pairs(rig.gang, rail, FEW_NODES, bad=bad)
    except GangError as error:
        measure.control("bad sender", fault, None, saw=str(error))
        return
    trial = measure.trial()
    judge_slowest_pair(found.speed, trial)
    judge_link_loss(found.lost, trial)
    worst = [
        min(found.speed.speeds, key=lambda link: found.speed.speeds[link]),
        max(found.lost, key=lambda link: found.lost[link] or 0.0),
    ]
    located = all(sender == victim for sender, _ in worst)
    without: Container[str] = () if len(rail.ports) > 2 else ("slowest_pair",)
    measure.control("bad sender", fault, trial, located=located, without=without)


def control_doctored_counters(rig: FabricRig, fabric: dict[str, str]) -> None:
    """Check that a node whose ports report a lost link, and errors, is located."""
    assert rig.watch is not None
    victim, trial = [*fabric][-1], rig.measure.trial()
    unstable = judge_ports(rig.watch.growth(fabric, victim), fabric, rig.limits, trial)
    fault = f"the ports of {victim} report a lost carrier, and errors in 1 % of packets"
    located = victim in unstable
    rig.measure.control("doctored counters", fault, trial, located=located)
