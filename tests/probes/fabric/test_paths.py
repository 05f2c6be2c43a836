"""Runs that test the pairs of nodes which earlier runs did not test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.contract.contract import load, parse
from probes.fabric import node_pairs
from probes.fabric.addresses import RailRanks
from probes.fabric.judge import find_bad_nodes, judge_slowest_pair, record_paths
from probes.fabric.node_pairs import PairSearch, run_pair_search
from probes.session.options import BY_KEY
from probes.session.rejudge import read_paths
from probes.session.session import RunSession
from probes.session.settings import read_settings
from reference_trainer.launch.gang import GangError
from reports.measurement import Verdict
from reports.run_folder.event_log import UnreadableRun
from reports.run_folder.integrity import load as read_record
from scaling.collectives.fault_search import near_round, plan_rounds
from scaling.collectives.paths import PathsBefore, pack_pairs, read_pairs, unmet_rounds
from tests.probes.fabric.links.test_judge import Gang
from tests.probes.fabric.test_bad_nodes import rig_of, run_over
from tests.support.controls import recorder
from tests.support.sound_run import write_sound_run

NODES, ROUNDS = 40, 10
NAMES = [f"n{number}" for number in range(NODES)]
FACTS = [{"name": name, "gpus": [{"uuid": f"GPU-{name}"}]} for name in NAMES]
PAIRS = NODES * (NODES - 1) // 2
NEAR = near_round([NAMES])
FAR = next(iter(plan_rounds([NAMES])))


class Chain:
    """Runs on one cluster, each of which carries on the one before."""

    def __init__(self, speed: dict[tuple[str, str], float] | None = None) -> None:
        self.speed, self.series = speed or {}, dict[str, Any]()
        self.before: PathsBefore | None = None
        self.result: Any = None

    def run(self) -> tuple[PairSearch, set[tuple[str, str]]]:
        """Run the pairs of nodes once more; return what was found, and the pairs that met."""
        gang = Gang(NODES, lambda a, b: 0.0, speed=self.speed)
        first = unmet_rounds([NAMES], self.before.met, ROUNDS) if self.before else None
        found = run_pair_search(cast(Any, gang), gang.names, first=first)
        measure: Any = recorder("FABRIC")
        self.series, measure.series = {}, lambda name, values: self.series.update({name: values})
        judge_slowest_pair(found.speed, measure)
        record_paths(found, self.before, measure)
        self.result = measure.result("finished", 1.0)
        self.said = "; ".join(measure._coverage)
        if "paths" in self.series:
            met = read_pairs(self.series["paths"], FACTS, FACTS)
            self.before = PathsBefore(f"hash{len(met)}", met)
        return found, {(min(link), max(link)) for link in gang.met}


def test_pairs_of_one_new_node_alone_are_compared_with_others() -> None:
    """They alone would make the speed of this node the typical one."""
    every = {(a, b) for a in NAMES for b in NAMES if a < b}
    new = {pair for pair in every if NAMES[3] in pair}
    near, far, *rest = unmet_rounds([NAMES], every - new, ROUNDS)
    assert near == NEAR
    assert is_alike(far, FAR)
    assert {(min(pair), max(pair)) for pairs in rest for pair in pairs} <= new


def is_alike(one: list[tuple[str, str]], other: list[tuple[str, str]]) -> bool:
    """Whether both have the same pairs."""
    return {*map(frozenset, one)} == {*map(frozenset, other)}


def test_a_new_node_at_half_speed_is_found_by_a_run_that_carries_on() -> None:
    """All pairs that are left have it: they are compared with pairs that met before."""
    slow = {(a, b): 0.05 for pair in NAMES for a, b in ((NAMES[3], pair), (pair, NAMES[3]))}
    chain = Chain(slow)
    every = {(a, b) for a in NAMES for b in NAMES if a < b}
    chain.before = PathsBefore("hash", {pair for pair in every if NAMES[3] not in pair})
    found, _ = chain.run()
    assert found.speed.slow_nodes.keys() == {NAMES[3]}


def test_one_slow_path_that_is_left_is_found() -> None:
    chain = Chain({("n7", "n30"): 0.03})
    every = {(a, b) for a in NAMES for b in NAMES if a < b}
    chain.before = PathsBefore("hash", every - {("n30", "n7")})
    found, _ = chain.run()
    assert found.speed.slow_links == [("n7", "n30")]


def test_each_run_meets_other_pairs_until_all_have_met() -> None:
    chain, met = Chain(), set[tuple[str, str]]()
    counts: list[int] = []
    while not counts or "paths" in chain.series:
        named = chain.before.head if chain.before else ""
        found, now = chain.run()
        assert not found.speed.slow_links
        again = {(min(pair), max(pair)) for pair in [*NEAR, *FAR]}
        assert met & now <= (again if met else set())
        met |= now
        counts.append(len(met))
        assert named in chain.said
        if counts[1:]:
            assert f"{len(met)} of {PAIRS} pairs met, in this run or before" in chain.said
    assert counts[-1] == PAIRS
    assert len(counts) <= 6  # 39 rounds: one, and then ten in each run; all meet near pairs
    assert "is missed" not in chain.said


def test_the_chance_to_miss_a_path_counts_all_runs() -> None:
    chain = Chain()
    chain.run()
    assert "missed with a chance of 94.9 %" in chain.said
    assert "--paths-from tests other pairs" in chain.said
    chain.run()
    assert "missed with a chance of 70 %" in chain.said
    assert chain.said.count("fingerprint hash40") == 1


def test_a_bad_path_that_a_run_missed_is_found_by_one_that_carries_on() -> None:
    chain = Chain({("n7", "n30"): 0.03})
    found, _ = chain.run()
    assert not found.speed.slow_links
    for _ in range(5):
        found, met = chain.run()
        if ("n30", "n7") in met:
            break
    assert found.speed.slow_links == [("n7", "n30")]
    (slowest,) = chain.result.measurements
    assert slowest.verdict is Verdict.FAIL


@pytest.mark.parametrize(("speed", "is_left"), [(0.03, False), (0.08, False), (0.09, True)])
def test_nothing_is_carried_on_from_a_run_with_a_slow_pair(speed: float, is_left: bool) -> None:
    """A slow pair stays slow, however many others meet in later runs."""
    chain = Chain({("n0", "n39"): speed})
    chain.run()
    assert ("paths" in chain.series) is is_left
    assert "is missed with a chance" in chain.said


def test_few_pairs_that_are_left_meet_after_the_near_ones() -> None:
    """Two slow pairs alone would be as fast as each other."""
    every = {(a, b) for a in NAMES for b in NAMES if a < b}
    left = {("n1", "n2"), ("n3", "n4")}
    rounds = unmet_rounds([NAMES], every - left, ROUNDS)
    assert rounds[0] == NEAR
    assert is_alike(rounds[1], FAR)
    assert {pair for pairs in rounds[2:] for pair in pairs} == left


@pytest.mark.parametrize(
    ("tier", "nodes", "rounds"),
    [("standard", 64, 32), ("quick", 64, 2), ("standard", 32, None), ("soak", 64, None)],
)
def test_the_tier_decides_how_many_rounds_carry_on(
    tier: str, nodes: int, rounds: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[Any] = []

    def search(*call: Any) -> None:
        planned.append(call)
        raise GangError("the plan is enough")

    monkeypatch.setattr(node_pairs, "run_pair_search", search)
    names = [f"n{number}" for number in range(nodes)]
    gang: Any = SimpleNamespace(places=[SimpleNamespace(node=name) for name in names], size=nodes)
    rig = replace(rig_of(gang, tier)[0], before=PathsBefore("hash", {("n0", "n1")}))
    with pytest.raises(GangError, match="enough"):
        find_bad_nodes(rig, replace(run_over(nodes), rank_nodes=names), [])
    (*_, full, _, _, first), matrix = planned[0], rounds is None
    assert (full, first is None) == (matrix, matrix)
    if first:
        assert len(first) == rounds
        assert not any(pair in (("n0", "n1"), ("n1", "n0")) for pairs in first for pair in pairs)


def test_which_pairs_met_is_kept_for_each_rail() -> None:
    rails = [[f"fab{rail} on n{node}" for node in range(9)] for rail in range(2)]
    met = {("fab0 on n0", "fab0 on n3"), ("fab1 on n2", "fab1 on n8"), ("fab1 on n0", "fab1 on n1")}
    packed = pack_pairs(rails, met)
    assert read_pairs(packed, FACTS, FACTS) == met
    again = [{**fact, "gpus": [{"uuid": "GPU-new"}]} if fact["name"] == "n0" else fact
             for fact in FACTS]  # fmt: skip
    assert read_pairs(packed, FACTS, again) == {("fab1 on n2", "fab1 on n8")}
    assert read_pairs(packed, FACTS, FACTS[:8]) == met - {("fab1 on n2", "fab1 on n8")}


def test_pairs_of_all_rails_count() -> None:
    rails = [
        RailRanks(name, {f"{name} on n{node}": 0 for node in range(9)}, None)
        for name in ("fab0", "fab1")
    ]
    chain = Chain()
    found, _ = chain.run()
    speeds = {("fab0 on n1", "fab0 on n0"): 0.1, ("fab0 on n0", "fab0 on n1"): 0.1}
    found = replace(found, rails=rails, speed=replace(found.speed, speeds=speeds))
    measure: Any = recorder("FABRIC")
    record_paths(found, PathsBefore("hash", {("fab1 on n0", "fab1 on n1"), ("a", "b")}), measure)
    assert measure._coverage[0].startswith("2 of 72 pairs met, in this run or before")


# The run that is named.

PATHS = [[["node0", "node1", "node2", "node3"], "20"]]


def test_a_sound_run_that_left_pairs_can_be_carried_on(tmp_path: Path) -> None:
    run = write_sound_run(tmp_path / "first", paths=PATHS)
    assert read_paths(run, load("lab")).head == read_record(run).head
    given = {**dict.fromkeys(BY_KEY), "cluster": "auto", "contract": "lab"}
    assert read_settings({**given, "paths_from": str(run)}).paths is not None
    assert read_settings(given).paths is None


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"paths": None}, "found a slow pair of nodes, or left none to test"),
        ({"values": {"slowest_pair": (0.3, 0.0)}}, "has a FABRIC that failed or is not complete"),
        ({"values": {"wrong_elements": (1, 0.0)}}, "has a FABRIC that failed or is not complete"),
        ({"values": {"busbw": (None, None)}}, "has a FABRIC that failed or is not complete"),
        ({"end": False}, "cannot be verified"),
        ({"contract": "other"}, "is not of this contract"),
    ],
)
def test_any_other_run_is_refused(more: dict[str, Any], reason: str, tmp_path: Path) -> None:
    other = parse(load("lab").text + b"# another", "lab.toml")
    more = {**more, "contract": other} if "contract" in more else more
    run = write_sound_run(tmp_path / "first", **{"paths": PATHS, **more})
    with pytest.raises(UnreadableRun, match=f"--paths-from .*: the run {reason}"):
        read_paths(run, load("lab"))


def test_without_a_contract_and_from_no_run_nothing_is_carried_on(tmp_path: Path) -> None:
    run = write_sound_run(tmp_path / "first", paths=PATHS)
    with pytest.raises(UnreadableRun, match="is not of this contract"):
        read_paths(run, None)
    with pytest.raises(UnreadableRun):
        read_paths(tmp_path, load("lab"))
    (run / "events.jsonl").write_bytes((run / "events.jsonl").read_bytes()[:-40])
    with pytest.raises(UnreadableRun, match="does not verify"):
        read_paths(run, load("lab"))


@pytest.mark.parametrize("name", ["node0", "another"])
def test_a_run_of_another_cluster_is_refused_and_the_cluster_is_left(
    name: str, tmp_path: Path
) -> None:
    before = read_paths(write_sound_run(tmp_path / "first", paths=PATHS), load("lab"))
    closed: list[bool] = []
    facts = [{"name": f"node{number}"} for number in range(4)]
    cluster = SimpleNamespace(facts=facts, paths_before=None, close=lambda: closed.append(True))
    session: Any = SimpleNamespace(cluster=cluster, name=name)
    if name == "node0":
        RunSession._carry_on(session, before)
        assert cluster.paths_before == PathsBefore(before.head, {("node0", "node1")})
        assert not closed
        return
    with pytest.raises(UnreadableRun, match="is of cluster node0"):
        RunSession._carry_on(session, before)
    assert closed
    assert cluster.paths_before is None
