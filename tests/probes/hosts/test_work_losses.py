"""What is taken away from sound accelerators never leaves their probe with a PASS."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from probes.contract.contract import load
from reports.measurement import Verdict
from tests.support.simulated_work import RATES, SimulatedWork, agree, run_work

AGREED = {"gemm_tflops": "gemm", "fp8_tflops": "fp8", "hbm_gbs": "hbm", "h2d_gbs": "h2d"}


@st.composite
def losses(draw: st.DrawFn) -> tuple[SimulatedWork, dict[str, float]]:
    """A fleet that was sound, of which something is missing, and the rates that are agreed."""
    cluster = SimulatedWork(draw(st.integers(1, 4)), draw(st.integers(1, 8)))
    gpu = draw(st.sampled_from(cluster.every))
    agreed = draw(st.lists(st.sampled_from([*AGREED]), unique=True))
    kind = draw(st.sampled_from(["silent", "error", "rate", "no rates", "hashes", "sum", "bad"]))
    if kind == "silent":
        gpu.silent.add(draw(st.sampled_from(["prepare", "check_sums", "measure_speed"])))
    elif kind == "error":
        gpu.errors[draw(st.sampled_from(["prepare", "check_sums", "measure_speed"]))] = "CUDA"
    elif kind in ("rate", "bad"):
        needed = ["gemm", "hbm", "h2d", "d2h", *(AGREED[name] for name in agreed)]
        operation = draw(st.sampled_from(needed))
        if kind == "rate":
            del gpu.rates[operation]
        else:
            gpu.rates[operation] = draw(st.sampled_from([0.0, float("nan"), float("inf"), -1.0]))
            if operation == "fp8":
                gpu.rates.pop("gemm")
    elif kind == "no rates":
        gpu.rates = {}
    elif kind == "hashes":
        gpu.hashes = []
    else:
        gpu.wrong = draw(st.integers(1, 4096**2))
    return cluster, {name: RATES[AGREED[name]] * 0.9 for name in agreed}


@settings(max_examples=100, deadline=None)  # each writes a run folder
@given(losses())
def test_what_is_taken_away_never_leaves_a_pass(
    lost: tuple[SimulatedWork, dict[str, Any]],
) -> None:
    cluster, agreed = lost
    contract = agree(load("h100-ndr400"), **agreed)
    assert run_work(cluster, contract).verdict is not Verdict.PASS
