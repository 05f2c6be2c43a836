"""Defines the part of HOSTS on the work of each GPU; `hosts.py` has the criterion."""

from __future__ import annotations

from probes.acceptance.criteria.criterion import (
    Circumstances,
    Condition,
    Duty,
    Measure,
    none_of,
    wrong_data,
)

# Rates that a contract may agree on.  Without a limit they are only noted.
RATES = {
    "gemm_tflops": Measure("TFLOP/s", better="higher"),
    "fp8_tflops": Measure("TFLOP/s", better="higher"),
    "hbm_gbs": Measure("GB/s", better="higher"),
    "h2d_gbs": Measure("GB/s", better="higher"),
    "d2h_gbs": Measure("GB/s", better="higher"),
}
WORK: dict[str, Measure] = {
    "work_errors": none_of("GPUs", "a job ends when a GPU or its worker fails"),
    "gemm_wrong": wrong_data("GPUs", "a GPU that adds wrongly spoils a model, and no job notices"),
    "gemm_hash_differs": none_of(
        "GPUs", "GPUs of one model and build give the same bits, so another result is wrong"
    ),
    "slow_gpus": none_of(
        "GPUs",
        "all ranks wait for a GPU that is 5 % slower than others of its model (10 % with fewer "
        "than five), and slower than their spread explains",
    ),
    "slow_pcie": none_of(
        "GPUs", "each lost generation halves the speed to the host, as half of the lanes does"
    ),
    "slowing_gpus": none_of("GPUs", "a GPU that loses 5 % under load is not cooled or powered"),
    **RATES,
}
CONTROLS = {
    "wrong element": ("gemm_wrong", "gemm_hash_differs"),
    "failing GEMM": ("work_errors",),
    "slowed GPU": ("slow_gpus", *RATES),
    "old link": ("slow_pcie",),
    "tiring GPU": ("slowing_gpus",),
}


def has_peers(here: Circumstances) -> bool:
    """Return whether an accelerator can be compared with others: always where it is real.

    A single real GPU is then UNPROVEN.  A rehearsal on one node has nothing to compare.
    """
    return here.nodes > 1 or here.on_gpu


def _agrees_on(name: str) -> Condition:
    return lambda here: f"HOSTS.{name}" in here.agreed


CONDITIONS: dict[str, Condition] = {
    **dict.fromkeys(("gemm_hash_differs", "slow_gpus"), has_peers),
    **dict.fromkeys(("slow_pcie", "old link"), lambda here: here.on_gpu),
    **{name: _agrees_on(name) for name in RATES},
    "slowed GPU": lambda here: has_peers(here) or any(_agrees_on(name)(here) for name in RATES),
}
DUTIES = (
    Duty(
        "hosts/compute/test_work.py::test_each_gpu_computes_rightly_and_as_fast_as_the_others",
        "quick",
        ("work_errors", "gemm_wrong", "gemm_hash_differs", "slow_gpus", "slow_pcie", *RATES),
        ("wrong element", "failing GEMM", "slowed GPU", "old link"),
    ),
    Duty(
        "hosts/compute/test_work.py::test_no_gpu_slows_down_under_load",
        "standard",
        ("work_errors", "gemm_wrong", "slowing_gpus"),
        ("wrong element", "failing GEMM", "tiring GPU"),
    ),
)
