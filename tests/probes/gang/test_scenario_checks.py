"""How a gang scene ends: what is judged, and what other people's jobs and queues leave open."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.contract import placement as components
from probes.contract.contract import ClusterTerms, Contract
from probes.contract.contract import load as contract
from probes.findings import finding
from probes.gang import job_driver as gang_job
from probes.gang import scenario_checks as gang_closing
from probes.gang.judge import judge_actors, judge_big_wait, judge_undisturbed, report_queue_layer
from probes.gang.scenario import Scenario
from probes.gang.scenario_checks import (
    _judge_detection,
    judge_deferred,
    kill_spare_node,
    list_layouts,
)
from reports.measurement import Verdict
from reports.record import ProbeResult
from tests.support.controls import recorder, write_control

Judged = Callable[..., Any]


class Scene(SimpleNamespace):
    """What the judging asks of a scene, without a cluster."""

    measure_at_end = Scenario.measure_at_end

    def finish(self) -> ProbeResult:
        judge_deferred(self)  # type: ignore[arg-type]  (a stand-in)
        write_control(self.measure)  # without one nothing is proven
        return self.measure.finish("finished", 1.0)


@pytest.fixture
def judged() -> Judged:
    """`judged(others="", **what)`: a scene with its recorder."""

    def make(others: str = "", terms: Contract | None = None, **what: Any) -> Scene:
        measure = recorder("GANG", terms)
        return Scene(measure=measure, deferred=[], describe_other_jobs=lambda: others, **what)

    return make


STUCK = finding("GANG-STUCK", "it was not placed", ["job B"])


def test_what_fails_on_a_cluster_of_our_own_is_the_clusters(judged: Judged) -> None:
    at = judged()
    at.measure_at_end("never_placed", 1, STUCK)
    result = at.finish()
    assert result.verdict is Verdict.FAIL
    assert [one.code for one in result.findings] == ["GANG-STUCK"]


def test_what_fails_beside_other_peoples_jobs_is_not_proven(judged: Judged) -> None:
    at = judged("other jobs use this cluster: 05000000")
    at.measure_at_end("never_placed", 1, STUCK)
    result = at.finish()
    assert result.verdict is Verdict.UNPROVEN
    assert not result.findings
    assert "05000000" in result.measurements[0].note


def test_what_only_we_could_spoil_is_judged_whoever_else_is_there(judged: Judged) -> None:
    at = judged("other jobs use this cluster: 05000000")
    at.measure_at_end("actors_not_running", 1, ours=True)
    assert at.finish().verdict is Verdict.FAIL


def test_what_holds_beside_other_peoples_jobs_still_counts(judged: Judged) -> None:
    at = judged("other jobs use this cluster: 05000000")
    at.measure_at_end("never_placed", 0)
    at.measure_at_end("placement_delay", 0.4)
    result = at.finish()
    assert [one.verdict for one in result.measurements] == [Verdict.PASS, Verdict.PASS]


def test_half_a_gang_is_ours_whoever_else_is_there(judged: Judged) -> None:
    entry = {"job": "B", "placed": 1, "size": 3, "state": "PENDING", "nodes": {"n": 1}}
    half = {"t": 0.0, "took": 0.0, "free": 0, "actors": {}, "gangs": {"B-1": entry}}
    at = judged("other jobs use this cluster: 05000000", segments=[[half, half | {"t": 0.1}]])
    gang_closing.judge_partial_holds(at.segments, at.measure)
    result = at.finish()
    assert result.verdict is Verdict.FAIL
    assert [one.code for one in result.findings] == ["GANG-PARTIAL"]


def test_accelerators_of_a_node_that_is_gone_are_missing(judged: Judged) -> None:
    last = {"gangs": {"A-1": {}}, "free_on": {"n": 2}, "actors": {"B": 1}}
    at = judged(
        observer=SimpleNamespace(samples=[last]), capacity={"n": 2, "m": 1}, total=3,
        rig=SimpleNamespace(cluster=SimpleNamespace(resource="GPU")),
    )  # fmt: skip
    gang_closing._judge_leak(at, "leaked", 1)
    (found,) = at.finish().findings
    assert found.suspects == ["m"]
    assert found.statement == "1 of 3 GPUs were held by gang A-1; actors that still ran: 1 of job B"


@pytest.mark.parametrize(
    ("times", "enough"),
    [
        ([at / 40 for at in range(200)], True),
        ([at / 5 for at in range(40)], False),  # five looks a second
        ([0.0, 0.02], True),
        ([*(at / 40 for at in range(200)), 6.5], False),  # once none for 1.5 s
        ([0.0], False),
        ([], False),
    ],
)
def test_a_scene_without_enough_looks_is_not_proven(
    judged: Judged, times: list[float], enough: bool
) -> None:
    samples = [{"t": t, "took": 0.001} for t in times]
    at = judged(segments=[samples] if samples else [], samples=samples, sampled=True)
    gang_closing._judge_sampling(at)
    result = at.finish()
    assert result.verdict is (Verdict.PASS if enough else Verdict.UNPROVEN)
    (rate,) = (one for one in result.measurements if one.name == "sample_rate")
    assert enough or "samples a second" in rate.note


def test_more_held_than_there_is_names_the_node(judged: Judged) -> None:
    entry = {"job": "A", "placed": 3, "size": 3, "state": "CREATED", "nodes": {"n": 3}}
    sample = {"t": 0.0, "gangs": {"A-1": entry | {"spare": False}}}
    at = judged(capacity={"n": 2})
    gang_closing._judge_overcommit(at, [sample])
    result = at.finish()
    assert result.verdict is Verdict.FAIL
    assert [(one.code, one.suspects) for one in result.findings] == [("GANG-OVERCOMMIT", ["n"])]
    assert "3 of 2" in result.findings[0].statement


def samples_of(*whole: bool) -> list[dict[str, Any]]:
    gangs = [{"job": "A", "placed": 2 * ran, "size": 2, "state": "CREATED"} for ran in whole]
    return [{"t": at / 10, "gangs": {"A-1": gang}} for at, gang in enumerate(gangs)]


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        ((False, True, True), Verdict.PASS),
        ((False, True, False), Verdict.FAIL),
        ((False, False), Verdict.UNPROVEN),
    ],
)
def test_a_gang_that_ran_must_go_on_running(
    judged: Judged, seen: tuple[bool, ...], verdict: Verdict
) -> None:
    samples = samples_of(*seen)
    at = judged(
        samples=samples, observer=SimpleNamespace(samples=samples, wait=lambda seconds: None)
    )
    judge_undisturbed(at, "A-1")
    result = at.finish()
    assert result.verdict is verdict
    codes = [(one.code, one.suspects) for one in result.findings]
    assert codes == ([("GANG-LOST-ACCELERATORS", ["job A"])] if verdict is Verdict.FAIL else [])


def test_a_gang_without_its_actors_is_named(judged: Judged) -> None:
    at = judged(samples=[{"actors": {"A": 1}}], until=lambda done: None)
    judge_actors(at, 3, ["A-1"])
    result = at.finish()
    assert result.verdict is Verdict.FAIL
    assert "2 of 3 actors" in result.findings[0].statement


def test_without_a_gang_nobody_is_missed(judged: Judged) -> None:
    at = judged()
    judge_actors(at, 3, [])
    assert at.finish().verdict is Verdict.UNPROVEN


QUEUED = {"queue": "kueue"}


def test_a_declared_queue_says_what_is_out_of_sight(judged: Judged) -> None:
    at = judged()
    report_queue_layer(at.measure, ClusterTerms(**QUEUED))
    assert "kueue was not tested" in at.measure._coverage[0]
    quiet = judged()
    report_queue_layer(quiet.measure, ClusterTerms())
    assert not quiet.measure._coverage


def limited(folder: Path) -> Contract:
    """A contract with a bound on a big gang's wait."""
    bound = 'at_most = 60\nunit = "s"\nbecause = "the queue promises it"\n'
    path = folder / "queued.toml"
    top = 'schema = 1\nname = "queued"\ntier = "standard"\n[cluster]\nqueue = "kueue"\n'
    path.write_text(f"{top}[GANG.large_gang_wait]\n{bound}")
    return contract(str(path))


@pytest.mark.near_miss("GANG.large_gang_wait")
def test_a_big_gang_that_waits_just_so_long_is_sound(judged: Judged, tmp_path: Path) -> None:
    queued = judged(terms=limited(tmp_path))
    (bound,) = [each.high for each in [queued.measure.contract.limit("GANG", "large_gang_wait")]]
    judge_big_wait(queued, bound, ClusterTerms(**QUEUED))
    assert queued.finish().verdict in (Verdict.PASS, Verdict.MARGINAL)


def test_a_big_gangs_wait_is_judged_where_a_queue_is_declared(
    judged: Judged, tmp_path: Path
) -> None:
    plain = judged()
    judge_big_wait(plain, 500.0, ClusterTerms())
    assert plain.finish().measurements[0].judged is False
    queued = judged(terms=limited(tmp_path))
    judge_big_wait(queued, 500.0, ClusterTerms(**QUEUED))
    result = queued.finish()
    assert result.verdict is Verdict.FAIL
    assert [one.code for one in result.findings] == ["GANG-SLOW"]
    never = judged(terms=limited(tmp_path))
    judge_big_wait(never, None, ClusterTerms(**QUEUED))
    assert never.finish().verdict is Verdict.UNPROVEN


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ({}, [(["actor", "rollout"], None), (["actor", "rollout"], None)]),
        (
            {"parallel": {"tp": 8, "pp": 1, "dp": 8}},
            [(["actor", "rollout"], None)] * 2 + [(["job"], {"tp": 8, "pp": 1, "dp": 8})],
        ),
        ({"components": {"job": "all"}}, [(["job"], None)]),
        (
            {"components": {"a": "0-31", "b": "32-63"}, "parallel": {"tp": 8, "pp": 1, "dp": 8}},
            [(["a", "b"], {"tp": 8, "pp": 1, "dp": 8})],
        ),
    ],
)
def test_what_is_split_is_the_contracts_own(terms: dict[str, Any], expected: list[Any]) -> None:
    found = [(sorted(parts), split) for parts, split in list_layouts(ClusterTerms(**terms), 64, 64)]
    assert found == expected


def test_the_usual_placements_fit_what_is_free() -> None:
    for free in (2, 3, 5, 8, 100):
        for parts, _ in list_layouts(ClusterTerms(), 128, free):
            assert max(max(numbers) for numbers in parts.values()) < min(free, 8)
            assert not components.layout_errors(
                parts, {c: [("n", str(i)) for i in numbers] for c, numbers in parts.items()}
            )


class Left:
    """What Ray Train leaves, and Ray's jobs, as gang_job asks for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups: list[str] = []
        self.actors: dict[str, tuple[str, bool]] = {}  # id -> (its job, shared)
        self.jobs = {"01": "", "02": ""}
        monkeypatch.setattr(gang_job, "on_cluster", lambda look, *options: look(*options))
        monkeypatch.setattr(gang_job, "living_jobs", lambda: set(self.jobs))
        monkeypatch.setattr(gang_job, "groups_of", lambda job: list(self.groups))
        monkeypatch.setattr(gang_job, "detached_ids", self.lasting)
        monkeypatch.setattr(gang_job, "kill_actors", self.kill)
        monkeypatch.setattr(gang_job, "remove_group", lambda group: self.groups.remove(group))
        monkeypatch.setattr(gang_job, "QUIET_SECONDS", 0.2)

    def lasting(self, *wanted: Any) -> list[str]:
        return [id for id, of in self.actors.items() if of == wanted]

    def kill(self, actors: list[str]) -> None:
        for id in actors:
            del self.actors[id]


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Left:
    """Job 02 will train."""
    return Left(monkeypatch)


def test_what_ray_train_left_is_ended(left: Left) -> None:
    job = gang_job.JobDriver("GPU")
    job.guard("02", alone=True)
    left.actors = {"coordinator": ("02", True), "another's": ("01", True)}
    job.clean_up()
    assert [*left.actors] == ["another's"]
    left.actors = {"coordinator": ("02", True)}
    job.clean_up()
    assert left.actors


@pytest.mark.parametrize("case", ["others lived", "others came", "never trained"])
def test_what_others_may_use_is_left_alone(left: Left, case: str) -> None:
    job = gang_job.JobDriver("GPU")
    if case != "never trained":
        job.guard("02", alone=case != "others lived")
    left.actors = {"coordinator": ("02", True)}
    if case == "others came":
        left.jobs["03"] = "python train.py"
    job.clean_up()
    assert left.actors


def test_what_a_dying_job_asks_for_is_removed_when_it_is_dead(left: Left) -> None:
    job = gang_job.JobDriver("GPU")
    job.guard("02", alone=False)
    left.groups = ["its own"]
    left.actors = {"watches over its controller": ("02", False)}
    job.clean_up()
    assert left.groups  # it lives, and gives it back itself
    assert left.actors
    job.guard("02", alone=False)
    threading.Timer(0.1, left.jobs.pop, ("02",)).start()
    threading.Timer(0.2, left.groups.append, ("asked for while it died",)).start()
    job.clean_up(ending=True)
    assert not left.groups
    assert not left.actors
    assert "02" not in left.jobs


class Harbour:
    """Spare raylets of which one is struck."""

    def __init__(self, dead: bool) -> None:
        self.dead = dead

    def kill_nodes(self, name: str) -> tuple[bool, float]:
        return self.dead, 0.0


@pytest.mark.parametrize(("dead", "verdict"), [(True, Verdict.PASS), (False, Verdict.UNPROVEN)])
def test_a_fault_that_did_not_happen_proves_nothing(
    judged: Judged, dead: bool, verdict: Verdict
) -> None:
    at = judged(observer=SimpleNamespace(mark=lambda words, fault: 1.0))
    kill_spare_node(at, Harbour(dead), "spare1", "lost")  # type: ignore[arg-type]  (a stand-in)
    assert at.finish().verdict is verdict


@pytest.mark.parametrize(("seen", "verdict"), [(3.5, Verdict.PASS), (None, Verdict.FAIL)])
def test_a_loss_that_ray_does_not_see_is_named(
    judged: Judged, seen: float | None, verdict: Verdict
) -> None:
    at = judged(elapsed=lambda since, until: until)
    _judge_detection(at, 1.0, seen, "spare1")
    result = at.finish()
    assert result.verdict is verdict
    codes = [(one.code, one.suspects) for one in result.findings]
    assert codes == ([] if seen else [("GANG-LOSS-NOT-DETECTED", ["spare1"])])
