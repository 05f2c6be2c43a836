"""NVLink between nodes has a sweep of its own, with new ranks; SIMULATED, no GPU was there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from probes.contract.contract import load
from probes.fabric import speeds
from probes.fabric.speeds import (
    find_domains,
    has_nvlink_between,
    measure_nvlink,
    read_domain,
    record_nvlink,
)
from probes.fabric.sweep import SweepResult
from reference_trainer.launch.gang import GangError
from reports.measurement import Measurement, Verdict
from tests.support.controls import MemoryRecorder, recorder
from tests.support.sweep_results import sweep_result

RACK = load("gb200-nvl72")
NODES = [f"n{at}" for at in range(4)]


RACKS = "a1" * 16, "b2" * 16  # clusterUuid
WHERE = "NVLink of n0 to n3"


def board(uuid: str = RACKS[0], clique: int = 1, state: int = 3, status: int = 0) -> dict[str, Any]:
    fabric = {"state": state, "status": status, "health": 0, "cluster": uuid, "clique": clique}
    return {"fabric": fabric}


def facts(*models: str) -> list[dict[str, Any]]:
    return [
        {
            "node": f"id{at}",
            "gpus": [{"name": model}] * 4 if model else [],
            "gpu_health": {"boards": [board()] * 4},
        }
        for at, model in enumerate(models)
    ]


def domains(*nodes: tuple[str, int] | None) -> SimpleNamespace:
    """The domains of nodes of two ranks each, n0, n1 and so on, by their uuids and cliques."""
    known = {f"n{at}": domain for at, domain in enumerate(nodes)}
    ranks, problems, alone = find_domains([node for node in known for _ in range(2)], known)
    return SimpleNamespace(ranks=ranks, problems=problems, alone=alone)


@pytest.mark.parametrize(
    ("boards", "domain"),
    [
        ([board()] * 4, (RACKS[0], 1)),
        ([board(clique=0)] * 4, (RACKS[0], 0)),  # a clique may have the number 0
        ([board(state=2)] * 4, None),  # in progress
        ([board(state=0)] * 4, None),  # not supported
        ([board(status=999)] * 4, None),
        ([board(uuid="0" * 32)] * 4, None),
        ([{"unsupported": ["fabric"]}] * 4, None),
        ([], None),
        ([board()] * 3 + [board(state=1)], None),
        ([board()] * 3 + [board(clique=2)], None),  # its GPUs are in two
    ],
)
def test_a_node_is_in_the_domain_that_all_its_gpus_registered_with(
    boards: list[dict[str, Any]], domain: tuple[str, int] | None
) -> None:
    assert read_domain({"gpu_health": {"boards": boards}}) == domain


def test_one_rack_is_one_domain_and_two_are_two() -> None:
    one, two = (RACKS[0], 1), (RACKS[1], 1)
    found = domains(*[one] * 18)
    assert found.ranks == {"NVLink of n0 to n17": [*range(36)]}
    found = domains(*[one] * 18, *[two] * 18)
    racks = {"NVLink of n0 to n17": [*range(36)], "NVLink of n18 to n35": [*range(36, 72)]}
    assert (found.ranks, found.problems, found.alone) == (racks, {}, [])
    found = domains(one, two, one, two)
    assert found.ranks == {"NVLink of n0, n2": [0, 1, 4, 5], "NVLink of n1, n3": [2, 3, 6, 7]}


def test_a_node_in_another_clique_of_the_rack_is_not_tested_and_proves_nothing() -> None:
    found = domains((RACKS[0], 1), (RACKS[0], 1), (RACKS[0], 2))
    assert [*found.ranks] == ["NVLink of n0, n1"]
    assert found.problems["NVLink of n2"].startswith("it is alone in its clique")
    found = domains(*[(RACKS[0], 1)] * 3, *[(RACKS[0], 2)] * 3)  # a rack that is split by order
    assert [*found.ranks] == ["NVLink of n0 to n2", "NVLink of n3 to n5"]
    assert not found.problems


def test_a_node_alone_in_its_rack_has_no_other_to_reach() -> None:
    found = domains((RACKS[0], 1), (RACKS[0], 1), (RACKS[1], 1))
    assert ([*found.ranks], found.problems, found.alone) == (["NVLink of n0, n1"], {}, ["n2"])
    found = domains((RACKS[0], 1), (RACKS[1], 1))
    assert found.problems == {"NVLink between nodes": "no two nodes are in one NVLink domain"}


def test_a_node_whose_domain_is_not_known_is_in_no_others() -> None:
    found = domains((RACKS[0], 1), (RACKS[0], 1), None)
    assert found.ranks == {"NVLink of n0, n1": [0, 1, 2, 3]}
    assert found.problems["NVLink of n2"].startswith("registration with the NVLink fabric")
    assert find_domains(["n0", "n1"], {})[1].keys() == {"NVLink of n0, n1"}


@pytest.mark.parametrize(
    ("models", "has"),
    [
        (("NVIDIA GB200", "NVIDIA GB200"), True),
        (("NVIDIA GB300", "NVIDIA GB200"), True),
        (("NVIDIA GB200", "NVIDIA B200"), False),
        (("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"), False),
        (("NVIDIA GB200", ""), False),  # a node that shows none
        (("NVIDIA GB200",), False),  # one node has no other
    ],
)
def test_all_nodes_need_gpus_that_reach_other_nodes(models: tuple[str, ...], has: bool) -> None:
    assert has_nvlink_between(facts(*models)) is has


def swept(busbw: float, rdma: float = 0.0, only: int = 4) -> SweepResult:
    """A sweep that sent this share of its bytes by RDMA, on the first nodes."""
    run = sweep_result(busbw)
    sent = {node: {"rdma": int(rdma * run.expected_bytes) * (at < only), "eth0": 900}
            for at, node in enumerate(NODES)}  # fmt: skip
    return replace(run, sent=sent)


def recorded(
    runs: dict[str, SweepResult], problems: dict[str, str] | None = None, agreed: bool = True
) -> list[Measurement]:
    measure = recorder("FABRIC", RACK if agreed else load("h100-ndr400"))
    record_nvlink(runs, problems or {}, measure)
    found = measure.result("finished", 1.0).measurements
    assert {one.name for one in found} == {"nvlink_busbw"}
    return found


def test_the_agreed_figure_is_judged() -> None:
    for busbw in (590, 0.001):
        (found,) = recorded({WHERE: swept(busbw)})
        assert (found.verdict, found.subject) == (Verdict.FAIL, WHERE)


@pytest.mark.near_miss("FABRIC.nvlink_busbw")
def test_just_above_it_passes() -> None:
    measure = recorder("FABRIC", RACK)
    record_nvlink({WHERE: swept(701, rdma=0.04)}, {}, measure)
    (found,) = measure.result("finished", 1.0).measurements
    assert found.verdict is Verdict.PASS


def test_the_slowest_domain_is_judged() -> None:
    (found,) = recorded({"NVLink of n0, n1": swept(820), "NVLink of n2, n3": swept(590)})
    assert (found.verdict, found.value) == (Verdict.FAIL, 590)
    assert found.subject == "NVLink of n2, n3"


def test_without_an_agreed_figure_it_is_a_note() -> None:
    (found,) = recorded({WHERE: swept(590)}, agreed=False)
    assert (found.verdict, found.value) == (None, 590)


@pytest.mark.parametrize("only", [1, 4])
def test_bytes_that_crossed_the_network_prove_no_nvlink(only: int) -> None:
    (found,) = recorded({WHERE: swept(900, rdma=0.5, only=only)})
    assert (found.verdict, found.value) == (Verdict.UNPROVEN, None)
    assert found.note == "data between nodes used rdma, not NVLink"


def test_a_fast_domain_proves_nothing_of_another() -> None:
    runs = {"NVLink of n0, n1": swept(820), "NVLink of n2, n3": swept(900, rdma=0.5)}
    crossed, fast = recorded(runs)
    assert (crossed.verdict, crossed.subject) == (Verdict.UNPROVEN, "NVLink of n2, n3")
    assert (fast.verdict, fast.subject) == (Verdict.PASS, "NVLink of n0, n1")


def test_nodes_that_were_not_tested_hide_no_slow_domain() -> None:
    lost, slow = recorded({WHERE: swept(590)}, {"NVLink of n4": "not registered"})
    assert (lost.verdict, lost.note) == (Verdict.UNPROVEN, "not registered")
    assert slow.verdict is Verdict.FAIL


def test_a_sweep_that_failed_proves_nothing_and_says_why() -> None:
    (found,) = recorded({}, {WHERE: "rank 3 does not answer"})
    assert (found.verdict, found.note) == (Verdict.UNPROVEN, "rank 3 does not answer")


class Gang:
    """A gang; `done` is what happens to it, and what its ranks are told."""

    def __init__(self, done: list[Any]) -> None:
        self.done = done
        self.places = [SimpleNamespace(node=f"id{at // 2}") for at in range(8)]

    def remove(self) -> None:
        self.done.append("removed")

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, *_: object) -> None:
        self.done.append("left")


def run_probe(
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    on_gpu: bool = True,
    fails: bool = False,
    boards: Sequence[dict[str, Any]] = (board(),) * 4,
) -> tuple[list[Any], MemoryRecorder]:
    """Four nodes of two ranks; `boards` has one GPU of each."""
    done: list[Any] = []

    def gang(environment: dict[str, Any]) -> Gang:
        done.append(environment)
        return Gang(done)

    def sweep(*_: Any, ranks: list[int]) -> SweepResult:
        if fails:
            raise GangError("rank 3 does not answer")
        done.append(ranks)
        return swept(700 + ranks[0])

    monkeypatch.setattr(speeds, "run_sweep", sweep)
    monkeypatch.setattr(speeds, "gang_env", lambda _: {"NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO"})
    known = facts(*[model] * 4)
    for fact, one in zip(known, boards, strict=True):
        fact["gpu_health"]["boards"] = [one]
    names = {f"id{at}": f"n{at}" for at in range(4)}
    cluster = SimpleNamespace(on_gpu=on_gpu, facts=known, node_names=names, gang=gang)
    measure = recorder("FABRIC", RACK)
    rig: Any = SimpleNamespace(gang=Gang(done), measure=measure, terms=RACK.cluster)
    logs: Any = SimpleNamespace(cluster=cluster)
    measure_nvlink(rig, logs)
    return done, measure


def test_new_ranks_choose_by_themselves_after_the_old_ones_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done, measure = run_probe(monkeypatch, "NVIDIA GB200")
    own = {"NCCL_ALGO": None, "NCCL_DEBUG": "INFO", "NCCL_MNNVL_ENABLE": None}
    assert done == ["removed", own, [*range(8)], "left"]
    (found,) = measure.result("finished", 1.0).measurements
    assert (found.verdict, found.value, found.subject) == (Verdict.PASS, 700, WHERE)


def test_each_rack_has_a_sweep_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    boards = [board(RACKS[0]), board(RACKS[0]), board(RACKS[1]), board(RACKS[1])]
    done, measure = run_probe(monkeypatch, "NVIDIA GB200", boards=boards)
    assert done[2:] == [[0, 1, 2, 3], [4, 5, 6, 7], "left"]
    (found,) = measure.result("finished", 1.0).measurements
    assert (found.value, found.subject) == (700, "NVLink of n0, n1")


def test_a_node_that_is_not_registered_is_in_no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    boards = [board(), board(), board(state=2), board()]
    done, measure = run_probe(monkeypatch, "NVIDIA GB200", boards=boards)
    assert done[2:] == [[0, 1, 2, 3, 6, 7], "left"]
    lost, fast = measure.result("finished", 1.0).measurements
    assert (lost.verdict, lost.subject) == (Verdict.UNPROVEN, "NVLink of n2")
    assert (fast.verdict, fast.subject) == (Verdict.PASS, "NVLink of n0, n1, n3")


def test_ranks_that_fail_leave_it_unproven_and_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done, measure = run_probe(monkeypatch, "NVIDIA GB200", fails=True)
    assert done[-1] == "left"
    (found,) = measure.result("finished", 1.0).measurements
    assert found.verdict is Verdict.UNPROVEN


@pytest.mark.parametrize(("model", "on_gpu"), [("NVIDIA H100", True), ("NVIDIA GB200", False)])
def test_elsewhere_nothing_is_run(
    monkeypatch: pytest.MonkeyPatch, model: str, on_gpu: bool
) -> None:
    done, measure = run_probe(monkeypatch, model, on_gpu)
    assert (done, measure.result("finished", 1.0).measurements) == ([], [])
