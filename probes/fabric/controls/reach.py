"""Controls of reachability: a closed port, packets that are too large, a port with false values."""

from __future__ import annotations

from collections.abc import Container

from probes.acceptance.measure import Recorder
from probes.fabric.fabric_ports import DOCTORED_BYTES, DoctoredPort
from probes.fabric.reach import FabricNodes, ReachabilityResult
from probes.fabric.reach_judge import judge_reach
from reference_trainer.launch.gang import GangError

ANSWER_SECONDS = 1.0  # wait for packets that are too large: none of them is answered


def control_reach(nodes: FabricNodes, measure: Recorder) -> None:
    """Run the controls of reachability."""
    last, first = nodes.names[-1], nodes.names[0]
    control_closed_door(nodes, last, measure)
    if nodes.chosen.has_ip:
        control_large_packets(nodes, measure)
    control_doctored_port(nodes, last, first, measure)


def control_closed_door(nodes: FabricNodes, victim: str, measure: Recorder) -> None:
    """Check that a node that does not listen is found: all its pairs fail, and no other."""
    fault = f"no process listens on {victim} where the others connect"
    try:
        pairs = nodes.unreachable_pairs(closed={victim})
    except GangError as error:
        measure.control("closed door", fault, None, saw=str(error))
        return
    trial = measure.trial()
    judge_reach(ReachabilityResult(nodes.names, pairs, {}), trial)
    located = all(victim in pair for pair in pairs)
    measure.control("closed door", fault, trial, located=located)


def control_large_packets(nodes: FabricNodes, measure: Recorder) -> None:
    """Check that packets larger than the MTU do not pass."""
    fault = f"packets of {DOCTORED_BYTES} bytes more than the MTU are sent, unfragmented"
    try:
        narrow, note = nodes.narrow_pairs([], DOCTORED_BYTES, ANSWER_SECONDS)
    except GangError as error:
        measure.control("large packets", fault, None, saw=str(error))
        return
    trial = measure.trial()
    judge_reach(ReachabilityResult(nodes.names, [], {}, narrow, nodes.mtu, note), trial)
    measure.control("large packets", fault, trial)


def control_doctored_port(nodes: FabricNodes, victim: str, other: str, measure: Recorder) -> None:
    """Check that a node that reports another MTU and another node's address is found."""
    address = (nodes.chosen.ports[other] or {}).get("address")
    fault = f"{victim} reports the address of {other}, and an MTU of its own"
    doctored = DoctoredPort(nodes.chosen.names[victim], address)
    try:
        told = nodes.doctored({victim: doctored})
    except GangError as error:
        measure.control("doctored port", fault, None, saw=str(error))
        return
    trial = measure.trial()
    has_ip, duplicates = nodes.chosen.has_ip, told.duplicates({})
    result = ReachabilityResult(
        nodes.names, [], {}, mtu=told.mtu, duplicates=duplicates, has_ip=has_ip
    )
    judge_reach(result, trial)
    without: Container[str] = () if has_ip else ("mtu_mismatches",)
    if address is None:
        without = ("mtu_mismatches", "duplicate_addresses")
    measure.control("doctored port", fault, trial, without=without)
