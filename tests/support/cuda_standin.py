"""A stand-in for torch with GPUs: its tensors are on the CPU, and its calls are recorded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

UUID = "5b4d7c1e-0000-1111-2222-333344445555"


class StandInTorch:
    """Torch, of which every GPU computes on the CPU."""

    def __init__(self, gpus: int = 1, capability: tuple[int, int] = (9, 0)) -> None:
        self.waits: list[Any] = []
        self.pinned: list[int] = []
        self.__version__: str = torch.__version__
        self.version = SimpleNamespace(cuda="13.0", hip=None)
        self.backends = SimpleNamespace(
            cuda=SimpleNamespace(matmul=SimpleNamespace()), cpu=torch.backends.cpu
        )
        board = SimpleNamespace(
            name="NVIDIA H100 80GB HBM3", multi_processor_count=132, major=9, minor=0, uuid=UUID
        )
        self.cuda = SimpleNamespace(
            is_available=lambda: gpus > 0,
            device_count=lambda: gpus,
            synchronize=lambda gpu=0: self.waits.append(gpu),
            get_device_capability=([capability] * gpus).__getitem__,
            get_device_properties=([board] * gpus).__getitem__,
            can_device_access_peer=lambda source, target: source < target,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, kind: str, index: int = 0) -> Any:
        return torch.device("cpu")

    def set_num_threads(self, threads: int) -> None:
        assert threads == 1

    def ones(self, *shape: Any, pin_memory: bool = False, **more: Any) -> Any:
        if pin_memory:
            self.pinned.append(shape[0])
        return torch.ones(*shape, **more)

    def _scaled_mm(self, left: Any, right: Any, scale_a: Any, scale_b: Any, out_dtype: Any) -> Any:
        assert left.dtype == right.dtype == torch.float8_e4m3fn
        assert left.is_contiguous()
        assert right.t().is_contiguous(), "the right matrix is stored by columns"
        assert scale_a.shape == scale_b.shape == ()
        return (left.float() @ right.float() * scale_a * scale_b).to(out_dtype)
