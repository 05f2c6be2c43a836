"""What FABRIC sends to each rank, and writes, grows with the nodes and not with their square."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest

from probes.fabric.judge import judge_pairs
from probes.fabric.node_pairs import run_group_search, run_pair_search
from probes.fabric.reach import ReachabilityResult, reach_series
from reports.charts import draw_figures
from tests.probes.fabric.links.test_judge import Gang
from tests.support.controls import recorder
from tests.support.rank_parts import Each, groups_of
from tests.support.sweep_results import sweep_result

MAX_LINE = 4 << 20  # bytes of a line of the event log
RANK_BYTES = 2048  # bytes that one rank is sent in a call


class LargeGang(Gang):
    """A rank on each node, one of which is slow; it keeps how much a rank was sent."""

    def __init__(self, nodes: int) -> None:
        slow = {(f"n{peer}", "n3"): 0.01 for peer in range(nodes)}
        super().__init__(nodes, lambda a, b: 0.0, speed=slow)
        self.most_bytes = 0

    def run(self, function: Any, *call: Any, each: Each, **more: Any) -> list[Any]:
        self.most_bytes = max(self.most_bytes, *(len(pickle.dumps(own)) for own in each))
        if function.__name__ == "pair_sweep":
            return super().run(function, *call, each=each, **more)
        slow = {rank for group in groups_of(each) if 3 in group for rank in group}
        return [(0.05 if rank in slow else 0.1, 0) for rank in range(self.size)]

    def readings(self, link: tuple[str, str]) -> list[dict[str, Any]]:
        """One set for all: thousands of links would take all memory."""
        self.kept = getattr(self, "kept", None) or super().readings(link)
        return self.kept


@pytest.mark.parametrize("nodes", [64, 512, 4096])
def test_a_rank_is_sent_its_own_pairs_and_groups_alone(nodes: int) -> None:
    gang: Any = LargeGang(nodes)
    found = run_pair_search(gang, gang.names, 1e-3)
    assert list(found.speed.slow_nodes) == ["n3"]
    groups = run_group_search(gang, gang.names)
    assert groups.nodes == ["n3"]
    assert gang.most_bytes < RANK_BYTES

    series: dict[str, Any] = {}
    measure: Any = recorder("FABRIC")
    measure.series = series.__setitem__
    run = replace(sweep_result(0.1), sent={name: {"fab0": 1} for name in gang.names})
    judge_pairs(found, found.speed, run, measure)
    assert len(json.dumps(series)) < MAX_LINE
    (figure,) = draw_figures(series)
    assert "n3" in figure.sentence


@pytest.mark.parametrize("nodes", [64, 4096])
def test_the_map_of_a_cluster_has_only_what_does_not_connect(nodes: int) -> None:
    names = [f"node{number:04}.example.com" for number in range(nodes)]
    blocked = [(names[3], name) for name in names if name != names[3]]
    series = reach_series(ReachabilityResult(names, blocked, {}))
    assert len(json.dumps(series)) < MAX_LINE
    (figure,) = draw_figures({"pairs": series})
    assert figure.sentence.startswith(f"Unreachable: {2 * (nodes - 1)} of")
