"""What FABRIC makes of latency, of medium sizes, and of what shows in some meetings only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probes.fabric import controls, judge, links
from probes.fabric.sweep import SweepResult
from reports.measurement import Verdict
from tests.support.controls import recorder
from tests.support.public_series import ring_rate
from tests.support.sweep_results import sweep_result

RANKS, NODES = 64, 8
SIZES = [1 << power for power in range(10, 35)]
NAMES = "latency_against_expected", "medium_against_expected"


def ring(*, slow_below: int = 0, factor: float = 1.0, latency_s: float = 0.0) -> SweepResult:
    """Model a sweep of eight nodes of eight GPUs; smaller sizes may be slow, each call late."""
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        rate = ring_rate(RANKS, size) / (factor if size < slow_below else 1.0)
        seconds = 2 * (RANKS - 1) / RANKS * size / rate / 1e9 + latency_s
        busbw = 2 * (RANKS - 1) / RANKS * size / seconds / 1e9
        row = {"size": size, "seconds": seconds, "busbw": busbw, "calls": 9, "samples": 9}
        rows.append(row | {"rank_seconds": [seconds] * RANKS})
    sent: dict[str, dict[str, int | None]] = {f"n{at}": {"rdma": 1 << 60} for at in range(NODES)}
    return SweepResult(RANKS, "nccl", rows, sent)


def verdicts(run: SweepResult) -> list[Verdict]:
    measure = recorder("FABRIC")
    judge.judge_sizes(run.rows, run, measure)
    found = [measure.worst(name).verdict for name in NAMES]
    codes = [one.code for one in measure.result("finished", 1.0).findings]
    assert codes == ["FAB-SLOW-COLLECTIVE"] * (Verdict.FAIL in found)
    return found


@pytest.mark.near_miss("FABRIC.latency_against_expected", "FABRIC.medium_against_expected")
def test_a_ring_of_a_public_series_is_sound() -> None:
    assert verdicts(ring()) == [Verdict.PASS, Verdict.PASS]
    assert verdicts(ring(slow_below=2 << 30, factor=1.3)) == [Verdict.PASS, Verdict.PASS]


def test_sizes_below_the_plateau_at_a_tenth_of_their_speed_fail() -> None:
    run = ring(slow_below=2 << 30, factor=10.0)
    assert run.plateau["busbw"] > 350
    assert verdicts(run) == [Verdict.FAIL, Verdict.FAIL]


def test_latency_alone_fails_where_large_messages_hide_it() -> None:
    assert verdicts(ring(latency_s=4e-3))[0] is Verdict.FAIL
    assert verdicts(ring(latency_s=3e-4))[0] is not Verdict.FAIL


def test_ranks_that_begin_late_break_both_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ring()

    def late(gang: Any, size: int, *_: Any, delay: Any) -> dict[str, Any]:
        (row,) = [row for row in run.rows if row["size"] == size]
        waited = delay.seconds * (RANKS - len(delay.ranks)) / RANKS
        return {"all_reduce": [row | {"seconds": row["seconds"] + waited}]}

    monkeypatch.setattr(controls, "check_ops", late)
    measure = recorder("FABRIC")
    rig: Any = SimpleNamespace(measure=measure, gang=SimpleNamespace(size=RANKS))
    controls.control_late_ring(rig, run)
    (found,) = measure.result("finished", 1.0).controls
    assert (found.caught, found.proves) == (True, [*NAMES])
    controls.control_late_ring(rig, sweep_result(0.1))  # gloo's is not judged
    assert len(measure.result("finished", 1.0).controls) == 1


@pytest.mark.parametrize(("ports", "proves"), [(4, ["rails", "slowest_rail"]), (1, ["rails"])])
def test_doctored_rails_are_found(ports: int, proves: list[str]) -> None:
    sound: dict[str, int | None] = {f"mlx5_{at}/1": 1000 for at in range(ports)}
    run = sweep_result(100, "rdma", rails={"n0": sound, "n1": dict(sound)})
    measure = recorder("FABRIC")
    rig: Any = SimpleNamespace(measure=measure, models={})
    rig.terms = measure.contract.cluster.model_copy(update={"fabric": "rdma", "rails": None})
    controls.control_doctored_rails(rig, run)
    (found,) = measure.result("finished", 1.0).controls
    assert (found.caught, found.proves) == (True, proves)


@pytest.mark.parametrize(("seconds", "fails"), [(0.6, True), (0.2, False)])
def test_a_pair_that_stalls_is_named(seconds: float, fails: bool) -> None:
    measure = recorder("FABRIC")
    links.judge_link_stalls({("n0", "n1"): 0.0, ("n1", "n2"): seconds}, False, measure)
    assert (measure.worst("longest_stall").verdict is Verdict.FAIL) is fails
    suspects = [one.suspects for one in measure.result("finished", 1.0).findings]
    assert suspects == ([["n1", "n2"]] if fails else [])


@pytest.mark.parametrize(
    ("tier", "nodes", "one_pass", "all_meet"),
    [
        ("standard", 32, True, True),
        ("standard", 33, True, False),
        ("standard", 32, False, False),
        ("quick", 16, True, False),
        ("soak", 64, False, True),
    ],
)
def test_the_tier_decides_how_many_pairs_meet(
    tier: str, nodes: int, one_pass: bool, all_meet: bool
) -> None:
    assert judge.meets_all(tier, nodes, one_pass) is all_meet
