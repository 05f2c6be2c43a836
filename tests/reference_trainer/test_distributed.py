"""What a rank chooses for its device; GPUs are made up."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend

from reference_trainer.distributed import fastest_attention

CUDNN, FLASH = SDPBackend.CUDNN_ATTENTION.value, SDPBackend.FLASH_ATTENTION.value


def first_kernel(device: str) -> int:
    """The kernel of attention that torch tries first; the order is as it was afterwards."""
    before = torch._C._get_sdp_priority_order()
    with fastest_attention(torch.device(device)):
        first = torch._C._get_sdp_priority_order()[0]
    assert torch._C._get_sdp_priority_order() == before
    return int(first)


@pytest.mark.parametrize(
    ("capability", "first"), [((9, 0), CUDNN), ((10, 0), CUDNN), ((8, 9), FLASH), ((8, 0), FLASH)]
)
def test_hopper_and_later_try_cudnns_attention_first(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], first: int
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert first_kernel("cuda") == first


def test_a_cpu_is_not_asked_for_its_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cuda, "get_device_capability")
    assert first_kernel("cpu") == FLASH
