"""Judges which nodes reach each other on each rail, and finds cables of rails that are swapped."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from probes.acceptance.measure import Recorder
from probes.fabric.rails.cables import find_swapped, hear_rails, swapped_findings
from probes.fabric.rails.ranks import ranks_by_node
from probes.fabric.reach import ReachabilityResult
from probes.fabric.reach_judge import find_unreachable, judge_reach, reach_series
from reference_trainer.launch.gang import Gang, GangError

HEAR_SECONDS = 3.0  # all nodes send and listen; a busy node begins late
FIRST_PORT, PORTS = 40_000, 20_000  # one of these ports for a run's datagrams


def judge_rails_reach(
    gang: Gang,
    node_names: dict[str, str],
    reach: Mapping[str | None, ReachabilityResult],
    measure: Recorder,
) -> None:
    """Judge the reach of each rail, by its interface; name swapped cables instead of dead ports."""
    if len(reach) == 1:
        judge_reach(next(iter(reach.values())), measure)
        return
    swapped: dict[str, dict[str, str]] = {}
    if any(find_unreachable(one) for one in reach.values()):
        swapped = hear_swapped(gang, node_names, [*filter(None, reach)])
    for rail, one in reach.items():
        explained = [node for node, rails in swapped.items() if rail in rails]
        judge_reach(one, measure, str(rail), explained)
    measure.explain(swapped_findings(swapped))


def record_reach(reach: Mapping[str | None, ReachabilityResult], measure: Recorder) -> None:
    """Record the chart's map of the rail on which most pairs cannot connect."""
    measure.series("pairs", reach_series(max(reach.values(), key=lambda one: len(one.pairs))))


def hear_swapped(
    gang: Gang, node_names: dict[str, str], interfaces: list[str]
) -> dict[str, dict[str, str]]:
    """Find swapped rails; none if a rank does not answer, for then its node is named anyhow."""
    try:
        return find_swapped(listen(gang, node_names, interfaces))
    except GangError:
        return {}


def listen(
    gang: Gang, node_names: dict[str, str], interfaces: list[str]
) -> dict[str, dict[str, list[tuple[str, str]]]]:
    """Let each node note whom it hears on which interface; by node.

    Anyone on the link can send such a datagram: only names that are known here are kept.
    """
    nodes = [node_names[place.node] for place in gang.places]
    first = {node: ranks[0] for node, ranks in ranks_by_node(nodes).items()}
    port = FIRST_PORT + secrets.randbelow(PORTS)
    arguments = interfaces, port, secrets.token_hex(8), HEAR_SECONDS
    each: list[list[object]] = [[name] for name in nodes]
    groups = [[rank] for rank in first.values()]
    heard = gang.run(hear_rails, *arguments, timeout=60, each=each, groups=groups)
    return {
        node: {
            name: [(peer, rail) for peer, rail in others if peer in first and rail in interfaces]
            for name, others in by_interface.items()
        }
        for node, by_interface in zip(first, heard, strict=True)
    }
