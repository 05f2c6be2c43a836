"""Whom each node hears: only ranks and rails that are known here count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probes.fabric import rails
from probes.fabric.rails import hear_swapped, judge_rails_reach, listen, record_reach
from probes.fabric.reach import ReachabilityResult
from reference_trainer.launch.gang import GangError
from tests.support.controls import MemoryRecorder, recorder

NAMES = {f"id{at}": f"n{at}" for at in range(4)}
NODES = [*NAMES.values()]
RAILS = ["fab0", "fab1"]
SWAP = {"fab0": "fab1", "fab1": "fab0"}


class Gang:
    """Two ranks for each node; the cables of n2 are swapped."""

    def __init__(self, forged: tuple[tuple[str, str], ...] = (), fails: bool = False) -> None:
        self.places = [SimpleNamespace(node=f"id{rank // 2}") for rank in range(8)]
        self.forged, self.fails = forged, fails
        self.asked: list[Any] = []

    def run(self, _: Any, *arguments: Any, timeout: float, each: Any, groups: Any) -> list[Any]:
        if self.fails:
            raise GangError("rank 4 does not answer")
        self.asked.append((arguments, groups))
        return [self.hears(each[rank][0]) for (rank,) in groups]

    def hears(self, node: str) -> dict[str, list[tuple[str, str]]]:
        def switch(at: str, rail: str) -> str:
            return SWAP[rail] if at == "n2" else rail

        return {
            rail: [
                *((n, r) for n in NODES for r in RAILS
                  if n != node and switch(n, r) == switch(node, rail)),
                *self.forged,
            ]
            for rail in RAILS
        }  # fmt: skip


def reach(*bad: str, dead: dict[str, str] | None = None) -> ReachabilityResult:
    """What was tested on one rail: these nodes reach nobody."""
    pairs = [(a, b) for at, a in enumerate(NODES) for b in NODES[at + 1 :] if {a, b} & {*bad}]
    return ReachabilityResult(NODES, pairs, dead or {}, mtu=dict.fromkeys(NODES, 1500))


def judged(gang: Any, first: ReachabilityResult, second: ReachabilityResult) -> MemoryRecorder:
    measure = recorder("FABRIC")
    judge_rails_reach(gang, NAMES, {"fab0": first, "fab1": second}, measure)
    return measure


def told(measure: MemoryRecorder) -> list[tuple[str, list[str]]]:
    return [(one.code, one.suspects) for one in measure.result("finished", 1.0).findings]


def test_swapped_cables_are_named_instead_of_two_dead_ports() -> None:
    gang: Any = Gang()
    assert told(judged(gang, reach("n2"), reach("n2"))) == [
        ("FAB-RAILS-SWAPPED", ["n2", "fab0 on n2", "fab1 on n2"])
    ]
    ((interfaces, port, token, seconds), groups) = gang.asked[0]
    assert (interfaces, groups) == (RAILS, [[0], [2], [4], [6]])
    assert 40_000 <= port < 60_000
    assert len(token) == 16
    assert seconds < 60


@pytest.mark.parametrize(("draw", "port"), [(0, 40_000), (-1, 59_999)])
def test_each_run_draws_a_port_that_no_other_run_waits_at(
    monkeypatch: pytest.MonkeyPatch, draw: int, port: int
) -> None:
    monkeypatch.setattr(rails.secrets, "randbelow", lambda count: draw % count)
    gang: Any = Gang()
    listen(gang, NAMES, RAILS)
    ((arguments, _),) = gang.asked
    assert arguments[1] == port


def test_sound_rails_send_nothing() -> None:
    gang: Any = Gang()
    assert told(judged(gang, reach(), reach())) == []
    assert gang.asked == []


def test_another_node_that_reaches_nobody_keeps_its_finding() -> None:
    found = told(judged(Gang(), reach("n2"), reach("n2", "n3")))
    assert ("FAB-LINK-DOWN", ["n3", "fab1 on n3"]) in found
    assert [code for code, _ in found].count("FAB-LINK-DOWN") == 1


def test_ranks_that_fail_leave_the_ports_that_reach_nobody() -> None:
    gang: Any = Gang(fails=True)
    assert hear_swapped(gang, NAMES, RAILS) == {}
    assert told(judged(gang, reach("n2"), reach("n2"))) == [
        ("FAB-LINK-DOWN", ["n2", "fab0 on n2"]),
        ("FAB-LINK-DOWN", ["n2", "fab1 on n2"]),
    ]


def test_names_that_nobody_here_has_are_ignored() -> None:
    forged = tuple((f"stranger{at}", "evil\nname") for at in range(50))
    gang: Any = Gang(forged)
    heard = listen(gang, NAMES, RAILS)
    assert {
        rail for rails in heard.values() for others in rails.values() for _, rail in others
    } == {*RAILS}
    assert hear_swapped(gang, NAMES, RAILS) == {"n2": SWAP}


def test_the_map_is_of_the_rail_on_which_most_pairs_fail() -> None:
    charts: dict[str, Any] = {}
    measure: Any = SimpleNamespace(series=charts.__setitem__)
    record_reach({"fab0": reach(), "fab1": reach("n1")}, measure)
    assert [speed for *_, speed in charts["pairs"]["cells"]] == [0.0] * 6
