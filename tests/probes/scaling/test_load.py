"""What SCALING trains on GPUs of each size: the same tokens, by a model that fits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from probes.contract.contract import load as load_contract
from probes.contract.terms import ClusterTerms
from probes.scaling import run_ladder
from probes.scaling.run_ladder import describe_load, least_gpu_memory, train_config
from reference_trainer.model.size import GIB, flops_per_token, peak_flops
from reports.measurement import Verdict
from scaling.collectives.operations import OPERATIONS
from scaling.loss.predict import count_calls, step_collectives

TERMS = ClusterTerms()


@pytest.mark.parametrize(
    ("gpu_gib", "ranks", "model", "says"),
    [
        (79.6, 8, (2048, False), "trained 1,137,772,544 parameters, 8192 tokens per rank and step"),
        (79.6, 1, (2048, False), "8192 tokens per rank and step"),
        (29.5, 1, (2048, True), "8192 tokens per rank and step (chosen for a GPU of 30 GiB)"),
        (15.8, 1, (768, False), "8192 tokens per rank and step (chosen for a GPU of 16 GiB)"),
        (22.5, 8, (2048, False), "8192 tokens per rank and step"),
        (2.0, 1, (768, False), "8192 tokens per rank and step (chosen for a GPU of 2 GiB)"),
        (float("inf"), 1, (2048, False), "8192 tokens per rank and step"),
    ],
)
def test_the_load_fits_the_smallest_gpu(
    gpu_gib: float, ranks: int, model: tuple[int, bool], says: str
) -> None:
    load = train_config(TERMS, 8, gpu_gib, ranks)
    assert (load.dim, load.recompute) == model
    assert load.batch * load.seq == 8192
    assert describe_load(load, gpu_gib).endswith(says)
    assert not load.deterministic, "its speed is judged: the fastest kernels run"


@pytest.mark.parametrize(("share", "dim"), [(0.9, 2048), (0.91, 768)])
def test_a_load_takes_at_most_90_percent_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, share: float, dim: int
) -> None:
    needs = SimpleNamespace(total=share * 80 * GIB)
    monkeypatch.setattr(run_ladder, "estimate_memory", lambda *_: needs)
    assert train_config(TERMS, 8, 80).dim == dim


def test_a_load_without_shares_fits_one_gpu_alone() -> None:
    assert train_config(TERMS, 8, 29.5) == train_config(TERMS, 8, 29.5, 1)
    assert train_config(TERMS, 8, 29.5) != train_config(TERMS, 8, 29.5, 2)


def test_an_emulated_load_is_no_gpus() -> None:
    load = train_config(TERMS, 8)
    assert load.dim == 64
    assert "for a GPU" not in describe_load(load, None)


def test_the_smallest_gpu_counts_and_one_that_does_not_tell_is_no_small_one() -> None:
    node = {"gpus": [{"memory_gib": 79.6}, {"memory_gib": None}, {"error": "lost"}]}
    assert least_gpu_memory([node, {"gpus": [{"memory_gib": 39.4}]}, {"gpus": []}]) == 39.4
    assert least_gpu_memory([{"gpus": [{"memory_gib": None}]}]) == float("inf")


@pytest.mark.parametrize(
    ("name", "model", "gpu_gib", "mfu"),
    [
        ("ethernet", "NVIDIA H100 80GB HBM3", 79.6, 0.42),
        ("l40s-ethernet", "NVIDIA L40S", 45.0, 0.5),
    ],
)
def test_a_fabric_that_has_the_agreed_busbw_does_not_fail_the_agreed_efficiency(
    name: str, model: str, gpu_gib: float, mfu: float
) -> None:
    """Fast GPUs, 64 ranks, and nothing overlaps: a sound cluster keeps more."""
    contract = load_contract(name)
    busbw, efficiency = contract.limit("FABRIC", "busbw"), contract.limit("SCALING", "efficiency")
    assert busbw
    assert busbw.low
    assert busbw.marginal_low
    assert efficiency
    load = train_config(contract.cluster, 1, gpu_gib, 4)
    work = flops_per_token(load) * load.batch * load.seq
    computes_s = work / (mfu * (peak_flops(model, "bf16") or 0))
    moved = sum(
        call.times * call.size * OPERATIONS[call.operation].factor(64)
        for call in count_calls(step_collectives(load, 2))
    )

    def judge(gbytes_per_s: float) -> Verdict:
        return efficiency.judge(computes_s / (computes_s + moved / gbytes_per_s / 1e9))

    assert judge(busbw.low) is Verdict.MARGINAL
    assert judge(busbw.marginal_low) is Verdict.PASS
    assert judge(busbw.low / 2) is Verdict.FAIL
