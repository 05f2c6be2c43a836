"""Facts that are taken away from a sound cluster never leave HOSTS with a PASS."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from probes.hosts.gpu_health import CHECKS
from reports.measurement import Verdict
from tests.support.simulated_hosts import H100, StandInHosts, findings, run_hosts, verdicts

# Answers of NVML that a check needs; an H100 that remaps rows retires no pages.
JUDGED = [check.needs[0] for check in CHECKS] + ["power_limit_mw", "power_default_mw"]
TERMS: dict[str, Any] = {
    "gpu_model": H100,
    "gpu_memory_gib": 79,
    "cpus_per_node": 192,
    "ram_gib": 2000,
    "disk_gib": 28000,
    "versions": {"driver": "570.86.15"},
    "shared": "/shared",
}


@st.composite
def losses(draw: st.DrawFn) -> tuple[StandInHosts, str, dict[str, Any]]:
    """A cluster that was sound, what was taken away from it, and its order."""
    nodes, gpus = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    cluster = StandInHosts(nodes, gpus, draw(st.integers(0, 1)))
    fact = draw(st.sampled_from(cluster.facts))
    gpu = draw(st.sampled_from(fact["gpus"]))
    kinds = ["node", "gpu", "answer", "nvml", "torch", "uuid", "boot", "ray", "board", "query"]
    kind = draw(st.sampled_from(kinds))
    boards = fact["gpu_health"]["boards"]
    board = draw(st.sampled_from(boards))
    if kind == "node":
        cluster.facts.remove(fact)
    elif kind == "gpu":
        fact["gpus"].remove(gpu)
    elif kind == "answer":
        code = draw(st.sampled_from([4, 15, 999]))
        gpu |= {"uuid": "", "name": "", "memory_gib": None, "error": {"code": code, "text": "t"}}
    elif kind == "nvml":
        code = draw(st.sampled_from([9, 10, 12, 18, 999]))
        fact |= {"gpus": [], "nvml": {"library": code != 12, "error": {"code": code, "text": "t"}}}
    elif kind == "torch":
        cluster.torch[fact["node"]].pop(draw(st.sampled_from(["all", "assigned"])))
    elif kind == "uuid":
        gpu["uuid"] = ""
    elif kind == "board":
        boards.remove(board)
    elif kind == "query":
        del board[draw(st.sampled_from(JUDGED))]
    elif kind == "boot":
        fact["boot_id"] = ""
    else:
        cluster.by_ray[fact["node"]] -= 1
    terms = draw(st.dictionaries(st.sampled_from([*TERMS]), st.none()))
    return cluster, kind, {"nodes": nodes, "gpus_per_node": gpus} | {t: TERMS[t] for t in terms}


@settings(max_examples=150, deadline=None)  # each writes a run folder
@given(losses())
def test_what_is_taken_away_never_leaves_a_pass(
    lost: tuple[StandInHosts, str, dict[str, Any]],
) -> None:
    cluster, _, terms = lost
    assert run_hosts(cluster, **terms).verdict is not Verdict.PASS


def test_nothing_taken_away_passes() -> None:
    for nodes, gpus in ((1, 1), (2, 8), (4, 3)):
        result = run_hosts(StandInHosts(nodes, gpus, 1), nodes=nodes, gpus_per_node=gpus, **TERMS)
        assert result.verdict is Verdict.PASS


def test_the_only_node_that_lost_its_gpus_in_ray_fails_and_is_named() -> None:
    cluster = StandInHosts(1, 1)
    cluster.by_ray["id0"] = 0
    result = run_hosts(cluster, nodes=1, gpus_per_node=1)
    assert verdicts(result)["nodes cluster"] is Verdict.FAIL
    assert ["n0"] in [suspects for _, suspects in findings(result)]
