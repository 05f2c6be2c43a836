"""FLOPs of a step, and the peak of a device."""

from __future__ import annotations

import pytest

from reference_trainer.config import TrainConfig
from reference_trainer.model.size import flops_per_token, parameter_count, peak_flops


def test_flops_follow_palm():
    config = TrainConfig(dim=48, layers=3, heads=4, vocab=100, seq=20)
    matmuls = parameter_count(config) - 100 * 48 - 7 * 48
    assert flops_per_token(config) == 6 * matmuls + 12 * 3 * 48 * 20


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H200 NVL", None),  # slower than the other, by how much is not in the source
        ("NVIDIA GB200", 2.5e15),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA A100-40C", None),  # vGPUs
        ("GRID A100D-8-80C", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA H200 MIG 1g.18gb", None),
        ("Some Future GPU", None),
    ],
)
def test_a_peak_is_that_of_just_this_device_in_bf16(name, peak):
    assert peak_flops(name, "auto") == peak_flops(name, "bf16") == peak
    assert peak_flops(name, "fp32") is None
