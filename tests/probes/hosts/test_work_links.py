"""HOSTS on the PCIe link of each GPU under load."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from probes.cluster.gpus import watch_link
from probes.contract.contract import load
from reports.measurement import Verdict
from tests.support.simulated_hosts import findings, not_passed
from tests.support.simulated_work import (
    LINK,
    SimulatedWork,
    agree,
    emulated,
    gpu_of,
    run_work,
    statement_of,
)


@pytest.mark.near_miss("HOSTS.slow_pcie")
@pytest.mark.parametrize("links", [{}, {"generation": 4, "most_generation": 4}])
def test_links_at_what_their_slots_can_do_pass(links: dict[str, int]) -> None:
    """Slots of an older machine hold all GPUs to generation 4, where a rate of copies is agreed."""
    cluster = SimulatedWork()
    for gpu in cluster.every:
        gpu.link |= links
    result = run_work(cluster, agree(load("h100-ndr400"), h2d_gbs=20.0) if links else None)
    assert result.verdict is Verdict.PASS
    (old,) = [one for one in result.controls if one.name == "old link"]
    assert (old.caught, old.proves) == (True, ["slow_pcie"])


@pytest.mark.near_miss("HOSTS.slow_pcie")
def test_a_link_is_judged_where_no_clock_is_told() -> None:
    cluster = SimulatedWork()
    for gpu in cluster.every:
        gpu.link = {k: v for k, v in gpu.link.items() if not k.endswith("sm_mhz")}
    result = run_work(cluster)
    assert result.verdict is Verdict.PASS
    assert "sm_clock" not in {one.name for one in result.measurements}


@pytest.mark.parametrize(
    ("link", "told"),
    [
        ({"generation": 4}, "PCIe 4 x16 under load. Expected: PCIe 5 x16"),
        ({"width": 8}, "PCIe 5 x8 under load. Expected: PCIe 5 x16"),
        ({"generation": 1, "width": 1}, "PCIe 1 x1 under load. Expected: PCIe 5 x16"),
        # A BIOS limits this slot.
        ({"generation": 3, "most_generation": 3}, "PCIe 3 x16 under load. Expected: PCIe 5 x16"),
        ({"width": 8, "most_width": 8}, "PCIe 5 x8 under load. Expected: PCIe 5 x16"),
    ],
)
def test_a_slow_link_is_named(link: dict[str, int], told: str) -> None:
    cluster = SimulatedWork()
    gpu_of(cluster).link |= link
    result = run_work(cluster)
    assert not_passed(result) == {"slow_pcie n1": "FAIL"}
    assert findings(result) == [("HOST-PCIE", ["n1"])]
    assert statement_of(result) == f"GPU 3 (GPU-1-3) on n1: {told}"


def test_links_that_are_slow_on_every_gpu_fail() -> None:
    cluster = SimulatedWork()
    for gpu in cluster.every:
        gpu.link["generation"] = 1
    assert not_passed(run_work(cluster)) == {f"slow_pcie n{i}": "FAIL" for i in range(3)}


@pytest.mark.near_miss("HOSTS.slow_pcie")
def test_of_two_kinds_of_slots_none_is_the_usual_one() -> None:
    """A GPU is held to what most of its model have; of equal numbers the lower is taken."""
    cluster = SimulatedWork(2)
    for gpu in cluster.gpus[1]:
        gpu.link |= {"generation": 4, "most_generation": 4}
    agreed = agree(load("h100-ndr400"), h2d_gbs=20.0)
    assert run_work(cluster, agreed).verdict is Verdict.PASS


@pytest.mark.near_miss("HOSTS.slow_pcie")
def test_other_models_have_other_links() -> None:
    cluster = SimulatedWork(4)
    for gpu in cluster.gpus[3]:
        gpu.model = "NVIDIA L4"
        gpu.link |= {"generation": 4, "most_generation": 4, "board_generation": 4}
        gpu.link |= {"width": 8, "most_width": 8}
    assert "slow_pcie n3" not in not_passed(run_work(cluster))


@pytest.mark.parametrize("lacking", ["generation", "most_generation", "width", "most_width"])
def test_a_link_that_nvml_does_not_tell_is_not_proven(lacking: str) -> None:
    cluster = SimulatedWork()
    del gpu_of(cluster).link[lacking]
    result = run_work(cluster)
    assert not_passed(result) == {"slow_pcie n1": "UNPROVEN"}
    (note,) = [one.note for one in result.measurements if one.verdict is Verdict.UNPROVEN]
    assert note == "GPU 3 (GPU-1-3) on n1: NVML does not support a query of its PCIe link"


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("errors", "GPU 3 (GPU-1-3) on n1: GPU is lost"),
        ("silent", "GPU 3 (GPU-1-3) on n1 does not answer: no answer within 60 s"),
    ],
)
def test_a_gpu_that_does_not_answer_is_not_proven(how: str, why: str) -> None:
    cluster = SimulatedWork()
    gpu = gpu_of(cluster)
    if how == "errors":
        gpu.errors["read_link"] = "GPU is lost"
    else:
        gpu.silent.add("read_link")
    result = run_work(cluster)
    assert not_passed(result) == {"slow_pcie n1": "UNPROVEN"}
    (note,) = [one.note for one in result.measurements if one.verdict is Verdict.UNPROVEN]
    assert note == why


def test_the_control_is_of_the_last_gpu_that_answers() -> None:
    cluster = SimulatedWork()
    cluster.gpus[2][7].silent.add("read_link")
    (old,) = [one for one in run_work(cluster).controls if one.name == "old link"]
    assert old.fault == "NVML reports PCIe 1 under load for GPU 6 (GPU-2-6) on n2"
    assert old.caught


def test_a_control_that_nvml_does_not_answer_is_not_caught() -> None:
    cluster = SimulatedWork()
    del cluster.gpus[2][7].link["width"]
    (old,) = [one for one in run_work(cluster).controls if one.name == "old link"]
    assert not old.caught


def test_emulated_accelerators_have_no_link() -> None:
    result = run_work(emulated())
    names = {one.name for one in result.measurements} | {one.name for one in result.controls}
    assert not names & {"slow_pcie", "sm_clock", "old link"}


def test_the_lowest_clock_of_each_node_is_noted() -> None:
    cluster = SimulatedWork()
    gpu_of(cluster).link["sm_mhz"] = 990
    gpu_of(cluster, 2).link |= {"most_sm_mhz": 0}
    notes = {
        one.subject: (one.value, one.unit, one.judged)
        for one in run_work(cluster).measurements
        if one.name == "sm_clock"
    }
    assert notes == {
        "n0": (0.75, "ratio", False),
        "n1": (0.5, "ratio", False),
        "n2": (0.75, "ratio", False),
    }


# What a worker asks NVML.


class NvmlError(Exception):
    """NVML's error; `value` is its code."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class LinkNvml:
    """NVML of one GPU, whose link is at its idle speed until calls have been made."""

    NVMLError, NVML_CLOCK_SM = NvmlError, 1

    def __init__(self, calls: list[str], fails: dict[str, int] | None = None) -> None:
        self.calls, self.fails = calls, fails or {}
        self.clocks = [1000, 1500, 1400]

    def __getattr__(self, name: str) -> Any:
        def ask(gpu: str, *kind: int) -> int:
            assert gpu == "board"
            assert not kind or kind == (1,)
            if name in self.fails:
                raise NvmlError(self.fails[name])
            if name == "nvmlDeviceGetClockInfo":
                return self.clocks.pop(0) if self.clocks else 1400
            idle = name.startswith("nvmlDeviceGetCurr") and len(self.calls) < 8
            answers = {"Generation": 5, "Width": 16, "MaxClockInfo": 1980}
            (value,) = [value for part, value in answers.items() if name.endswith(part)]
            return 1 if idle else value

        return ask


def watch(fails: dict[str, int] | None = None, seconds: float = 0.05) -> tuple[Any, list[str]]:
    calls: list[str] = []
    nvml = LinkNvml(calls, fails)
    work, wait = partial(calls.append, "work"), partial(calls.append, "wait")
    return watch_link(nvml, "board", work, wait, seconds), calls


def test_a_link_is_read_while_the_gpu_works() -> None:
    link, calls = watch()
    assert link == {**LINK, "sm_mhz": 1400}
    assert calls == ["work", "wait"] * (len(calls) // 2)


def test_a_link_is_read_once_at_least() -> None:
    link, calls = watch(seconds=0)
    assert calls == ["work", "wait"]
    assert (link["generation"], link["sm_mhz"]) == (1, 1000)


@pytest.mark.parametrize("code", [3, 13])
def test_a_query_that_is_not_supported_is_left_out(code: int) -> None:
    link, _ = watch({"nvmlDeviceGetMaxPcieLinkWidth": code})
    assert link.keys() == LINK.keys() - {"most_width"}


def test_another_error_of_nvml_is_raised() -> None:
    with pytest.raises(NvmlError, match="error 15"):
        watch({"nvmlDeviceGetCurrPcieLinkWidth": 15})
