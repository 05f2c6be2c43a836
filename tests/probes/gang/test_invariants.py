"""What samples of competing gangs mean: each rule seen red and green."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster.room import other_jobs
from probes.gang import invariants as checks
from probes.gang.scenario_checks import (
    control_misplaced_rank,
    default_placements,
    find_splits,
    judge_gpu_use,
)
from probes.gang.test_gang_queue import halving_sizes
from reports.measurement import Verdict
from tests.support.controls import recorder

Sample = dict[str, Any]


def sample(t: float, free: int = 0, actors: dict[str, int] | None = None, **gangs: Any) -> Sample:
    """`A_1=(placed, size[, state])` is gang A-1; its bundles lie on node n."""
    entries = {}
    for name, (placed, size, *state) in gangs.items():
        usual = "CREATED" if placed == size else "PENDING"
        entries[name.replace("_", "-")] = {
            "job": name[0],
            "placed": placed,
            "size": size,
            "state": state[0] if state else usual,
            "nodes": {"n": placed} if placed else {},
            "spare": len(state) > 1,
        }
    return {"t": t, "took": 0.001, "free": free, "gangs": entries, "actors": actors or {}}


def test_a_part_of_a_gang_is_seen_with_its_span() -> None:
    seen = [
        sample(0.0, A_1=(3, 3), B_2=(0, 3)),
        sample(0.1, A_1=(3, 3), B_2=(1, 3)),
        sample(0.2, A_1=(3, 3), B_2=(1, 3)),
        sample(0.3, A_1=(3, 3), B_2=(0, 3)),
    ]
    (span,) = checks.find_partial_holds(seen)
    assert (span.start, span.end, span.gang, span.placed, span.size) == (0.1, 0.3, "B-2", 1, 3)
    assert "job B held 1 of 3 accelerators while it waited" in span.describe()
    assert sum(bool(checks.partial_gangs(one)) for one in seen) == 2
    assert checks.find_partial_holds(seen[:1]) == []


def test_actors_that_run_while_their_gang_waits_are_a_part() -> None:
    waits = sample(0.0, actors={"B": 2}, A_1=(3, 3), B_2=(0, 3))
    assert checks.partial_gangs(waits) == {"B-2": ("B", 2, 3)}
    assert checks.partial_gangs(sample(0.0, actors={"A": 3}, A_1=(3, 3), B_2=(0, 3))) == {}


def test_a_gang_that_lost_a_node_is_not_half_placed() -> None:
    assert checks.partial_gangs(sample(0.0, A_1=(1, 2, "RESCHEDULING"))) == {}
    all_lost = sample(0.0, actors={"A": 1}, A_1=(0, 2, "RESCHEDULING"))  # one actor still ends
    assert checks.partial_gangs(all_lost) == {}


def test_spare_accelerators_are_not_counted() -> None:
    assert checks.count_held(sample(0.0, A_1=(2, 2, "CREATED", "spare"), B_2=(1, 1))) == 1


def test_more_held_on_a_node_than_there_is() -> None:
    seen = [sample(0.0, A_1=(3, 3)), sample(0.1, A_1=(3, 3), B_2=(3, 3))]
    assert checks.find_overcommitted(seen, {"n": 4, "m": 9}) == [{"n": "6 of 4"}]
    assert checks.find_overcommitted(seen, {"n": 6}) == []
    assert checks.find_overcommitted(seen, {"m": 9}) == [{"n": "3 of 0"}, {"n": "6 of 0"}]


@pytest.mark.parametrize(
    ("free", "lost"),
    [([1] * 40, 0), ([0] * 40, 1), ([0] * 10 + [1] * 30, 0), ([2] * 40, 1)],
    ids=["right", "leaked", "late", "promised twice"],
)
def test_accelerators_neither_free_nor_held(free: list[int], lost: int) -> None:
    seen = [sample(at / 10, free=count, A_1=(3, 3)) for at, count in enumerate(free)]
    assert checks.count_leaked(seen, 4) == lost


def test_a_leak_that_changes_its_sign_is_lag() -> None:
    flips = [sample(at / 10, free=at % 3, A_1=(3, 3)) for at in range(60)]
    assert checks.count_leaked(flips, 4) == 0


def test_a_leak_counts_with_what_was_missing_all_the_time() -> None:
    """Three are on their way back at first; one of them never comes."""
    seen = [sample(at / 10, free=1 if at < 5 else 3) for at in range(40)]
    assert checks.count_leaked(seen, 4) == 1


def test_hold_and_wait_needs_two_jobs_that_hold_and_wait_long_enough() -> None:
    both = [sample(at / 10, A_1=(2, 4), B_2=(2, 4)) for at in range(20)]
    assert {span.job for span in checks.find_deadlocks(both, 1.0)} == {"A", "B"}
    assert checks.find_deadlocks(both[:5], 1.0) == []
    one_waits_empty = [sample(at / 10, A_1=(4, 4), B_2=(0, 4)) for at in range(20)]
    assert checks.find_deadlocks(one_waits_empty, 1.0) == []
    one_half = [sample(at / 10, A_1=(2, 4), B_2=(2, 2)) for at in range(20)]
    assert checks.find_deadlocks(one_half, 1.0) == []


@pytest.mark.parametrize(
    ("strategy", "nodes", "wrong"),
    [
        ("STRICT_PACK", {"a": 4}, ""),
        ("STRICT_PACK", {"a": 3, "b": 1}, "is on 2 nodes. Expected: 1"),
        ("STRICT_SPREAD", {"a": 1, "b": 1}, ""),
        ("STRICT_SPREAD", {"a": 2}, "is on 1 node. Expected: 2"),
        ("PACK", {"a": 2, "b": 2}, "Expected: 1 node (one node had room"),
        ("PACK", {"a": 8, "b": 8}, ""),  # no node has room for 16
        ("SPREAD", {"a": 2}, "Expected: 2 nodes (3 nodes had room"),
        ("SPREAD", {"a": 2, "b": 1, "c": 1}, ""),  # four on three nodes
    ],
)
def test_a_strategy_that_was_not_kept(strategy: str, nodes: dict[str, int], wrong: str) -> None:
    said = checks.explain_misplaced(strategy, nodes, {"a": 8, "b": 8, "c": 8})
    assert (wrong in said) if wrong else said == ""


def test_a_node_with_one_free_accelerator_has_room_for_a_part() -> None:
    wrong = checks.explain_misplaced("SPREAD", {"a": 2}, {"a": 2, "b": 1})
    expected = "Expected: 2 nodes (2 nodes had room)"
    assert wrong == f"SPREAD gang of 2 accelerators is on 1 node. {expected}"


def test_the_required_rate_itself_is_enough() -> None:
    assert checks.sample_rate([0.5, 0.5], 2.0) == (2.0, "")
    rate, reason = checks.sample_rate([0.5, 0.75], 2.0)
    assert rate is None
    assert reason == (
        "seatrial took 1.6 samples a second, and the longest pause was 0.8 s. "
        "Expected: 2 samples a second or more, and no pause above 1 s. "
        "Reduce the load on Ray's head node, and test again"
    )


def test_without_two_samples_no_rate_is_claimed() -> None:
    rate, reason = checks.sample_rate([], 20.0)
    assert rate is None
    said = "seatrial took 0.0 samples a second, and the longest pause was 0.0 s. Expected: 20 "
    assert reason.startswith(said)


def test_the_picture_has_every_change_and_no_more() -> None:
    seen = [sample(at / 10, A_1=(3, 3), B_2=(0 if at < 5 else 3, 3)) for at in range(10)]
    first, second = checks.sample_changes(seen)
    assert (first["t"], first["waits"]) == (0.0, {"B": 3})
    assert (second["t"], second["nodes"]) == (0.5, {"n": {"A": 3, "B": 3}})


def test_lag_and_gaps() -> None:
    seen = [sample(0.0), sample(0.1), sample(0.4)]
    assert checks.sample_gaps(seen) == [pytest.approx(0.1), pytest.approx(0.3)]
    assert checks.sample_gaps([]) == []
    assert checks.percentile_95([one["took"] for one in seen]) == 0.001
    assert checks.percentile_95([*range(100)]) == 94
    assert checks.percentile_95([]) is None


@pytest.mark.parametrize("total", [2, 3, 4, 7, 8, 64])
def test_mixed_sizes_are_twice_the_cluster(total: int) -> None:
    sizes = halving_sizes(total)
    assert sum(sizes) == 2 * total
    assert all(1 <= size <= max(total // 2, 1) for size in sizes)


@pytest.mark.parametrize("total", [2, 3, 8])
def test_usual_placements_fit_and_a_rank_astray_is_seen(total: int) -> None:
    from probes.contract.placement import layout_errors, parse

    for spec in default_placements(total):
        parts = parse(spec, total)
        places = {name: [("n", str(number)) for number in ns] for name, ns in parts.items()}
        assert layout_errors(parts, places) == []
        assert layout_errors(parts, control_misplaced_rank(places))


def test_a_tensor_parallel_group_over_two_nodes_is_named() -> None:
    parts = {"actor": (0, 1, 2, 3)}
    whole = {"actor": [("a", "0"), ("a", "1"), ("b", "0"), ("b", "1")]}
    assert find_splits(parts, whole, {"tp": 2, "pp": 1, "dp": 2}) == []
    (said,) = find_splits(parts, whole, {"tp": 4, "pp": 1, "dp": 1})
    assert "0-3" in said
    assert find_splits(parts, whole, None) == []


def used(t: float, free: int, gpus: int) -> Sample:
    """`gpus` of node n's are in use while Ray counts `free` of its 8 as free."""
    uses = {f"GPU-{at}": [100 + at] for at in range(gpus)}
    return sample(t) | {"free_on": {"n": free}, "in_use": {"n": uses}}


def unused(t: float) -> Sample:
    """A sample that it was not asked at GPUs for."""
    return sample(t) | {"free_on": {"n": 8}}


@pytest.mark.parametrize(
    ("seen", "hidden"),
    [
        ([used(at, 6, 2) for at in range(5)], False),
        ([used(at, 6, 3) for at in range(5)], True),
        ([used(at, 6, 0) for at in range(5)], False),  # held, and nothing runs there yet
        ([used(0, 8, 1), used(1, 8, 1), used(4, 8, 0)], False),  # given back, still on its way
        ([used(0, 8, 1), unused(1), used(2.5, 8, 1), used(5, 8, 0)], True),  # some samples have it
    ],
)
def test_gpus_in_use_behind_rays_back(seen: list[Sample], hidden: bool) -> None:
    found = checks.find_hidden_gpus(seen, {"n": 8, "head": 0})
    assert bool(found) is hidden
    if hidden:
        count, gpus = found["n"]
        assert count == 1
        assert "GPU-0 (processes 100)" in gpus


def every_second(free: list[int]) -> list[Sample]:
    """A look each second; a process uses a GPU at every second one."""
    return [used(at, one, 8 - one + at % 2) for at, one in enumerate(free)]


def test_who_uses_a_gpu_in_short_turns_is_found() -> None:
    found = checks.find_hidden_gpus(every_second([8] * 10), {"n": 8})
    assert found == {"n": (1, ["GPU-0 (processes 100)"])}
    assert checks.find_hidden_gpus(every_second([6] * 10), {"n": 8})["n"][0] == 1


def test_gangs_that_come_and_go_are_not_taken_for_it() -> None:
    coming = [8, 6, 8, 6, 8, 6, 8, 6, 8, 6]
    assert checks.find_hidden_gpus(every_second(coming), {"n": 8}) == {}


def test_one_look_on_a_calm_node_is_no_proof() -> None:
    once = [used(at, 8, int(at == 5)) for at in range(10)]
    assert checks.find_hidden_gpus(once, {"n": 8}) == {}
    twice = [used(at, 8, int(at in (5, 8))) for at in range(10)]
    assert checks.find_hidden_gpus(twice, {"n": 8})["n"][0] == 1


def test_a_gpu_without_a_known_process_is_named_all_the_same() -> None:
    seen = [sample(t) | {"free_on": {"n": 8}, "in_use": {"n": {"GPU-7": []}}} for t in range(4)]
    assert checks.find_hidden_gpus(seen, {"n": 8}) == {"n": (1, ["GPU-7 (processes unknown)"])}


def test_a_node_of_which_nvml_tells_nothing_is_named() -> None:
    silent = sample(0.0) | {"free_on": {}, "in_use": {"n": {}, "m": "NVML: not found"}}
    assert checks.nvml_errors([silent], {"n": 8, "m": 8, "head": 0}) == {"m": "NVML: not found"}
    assert checks.nvml_errors([sample(0.0)], {"n": 8}) == {"n": "seatrial has no answer from NVML"}
    assert checks.find_hidden_gpus([silent], {"n": 8, "m": 8}) == {}


def looks(*told: Any) -> list[Sample]:
    """A look each second: words where NVML does not tell, None where it was not asked."""
    return [
        sample(at) | ({} if use is None else {"in_use": {"n": use}}) for at, use in enumerate(told)
    ]


@pytest.mark.near_miss("GANG.unregistered_use")
def test_one_slow_look_is_no_blindness() -> None:
    slow = looks({}, *["NVML has not answered for 3 s"] * 8, {}, None, {})
    assert checks.nvml_errors(slow, {"n": 8}) == {}
    measure = recorder("GANG")
    judge_gpu_use([one | {"free_on": {"n": 8}} for one in slow], {"n": 8}, measure)
    assert measure.result("finished", 1.0).measurements[0].value == 0


def test_who_uses_gpus_behind_rays_back_is_named() -> None:
    measure = recorder("GANG")
    judge_gpu_use(every_second([8] * 10), {"n": 8}, measure)
    result = measure.result("finished", 1.0)
    assert [(one.value, one.verdict) for one in result.measurements] == [(1, Verdict.FAIL)]
    (found,) = result.findings
    assert (found.code, found.suspects) == ("GANG-UNREGISTERED", ["n"])
    assert found.statement == (
        "processes use GPUs that Ray counts as free: 1 GPU on n. GPUs in use there: "
        "GPU-0 (processes 100)"
    )


@pytest.mark.parametrize(
    "seen",
    [
        looks(*["NVML has not answered for 3 s"] * 12, {}),  # from the first on
        looks({}, *["NVML has not answered for 3 s"] * 12, {}),
        looks({}, *["NVML has not answered for 3 s"] * 12),  # to the last
    ],
)
def test_a_node_that_is_dark_for_too_long_proves_nothing(seen: list[Sample]) -> None:
    (reason,) = checks.nvml_errors(seen, {"n": 8}).values()
    assert reason in ("NVML did not answer for 12 s", "NVML did not answer for 13 s")


def test_an_error_of_a_dark_node_is_named() -> None:
    seen = looks({}, "NVML error 15", *["NVML has not answered for 3 s"] * 12, {})
    (reason,) = checks.nvml_errors(seen, {"n": 8}).values()
    assert reason == "NVML did not answer for 14 s (NVML error 15)"


def test_a_node_at_which_nobody_looked_for_long_proves_nothing() -> None:
    (reason,) = checks.nvml_errors(looks({}, *[None] * 12, {}), {"n": 8}).values()
    assert reason == "NVML did not answer for 13 s"


def test_the_dashboard_and_its_agent_are_no_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ray 2.60 tells of them; the agent joins with the first submitted job, and stays."""
    import ray

    here = SimpleNamespace(get_job_id=lambda: "03")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: here)
    drivers = {
        "01": "/venv/lib/python3.11/site-packages/ray/dashboard/dashboard.py --host=0.0.0.0",
        "02": 'ray::DashboardAgent "" "" ""',
        "03": "python -m pytest probes",
        "04": "python probes/gang/job_driver.py",
        "05": "python -m reference_trainer launch --workers all",
    }
    assert other_jobs(drivers, ["04"]) == ["05"]
