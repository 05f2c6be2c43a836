"""The device that a worker computes on: one GPU, or one thread of a CPU in a rehearsal.

Torch is imported only in a worker.  The part for GPUs has run on one H200.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

MIB = 2**20
PCI_DEVICES = "/sys/bus/pci/devices"
CPU_INFO = "/proc/cpuinfo"
# Packages that bring cuBLAS: another one may round otherwise.
CUBLAS = ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12")
# Variables of cuBLAS and torch, read at their start: all workers then use the same kernels.
SAME_SUMS = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "PYTORCH_TUNABLEOP_ENABLED": "0",
    "TORCH_BLAS_PREFER_CUBLASLT": "0",
}
FP8_CAPABILITY = (8, 9)  # first GPUs with fp8 tensor cores: Ada; then Hopper


@dataclass(frozen=True)
class WorkSizes:
    """Sizes of the work: rows of square matrices, bytes of copies, and calls between two waits.

    `gemm` is timed; `sums` is the matrix whose sums are compared on the host.
    """

    dtype: str
    gemm: int
    sums: int
    repeats: int  # of the sums
    copy_bytes: int
    host_bytes: int
    calls: int


# A GEMM of 8192 rows fills every GPU (1.1 TFLOP: 2 ms of an H100).  Copies are far larger than the
# caches.  Waits come every few ms, so that they cost nothing.
GPU_SIZES = WorkSizes("bfloat16", 8192, 4096, 8, 1024 * MIB, 256 * MIB, 4)
# Calls of about 1 ms on one thread: nodes of a rehearsal share cores.
CPU_SIZES = WorkSizes("float32", 256, 256, 2, 8 * MIB, 2 * MIB, 1)


class WorkDevice:
    """Device of this worker.  Raises RuntimeError if the worker owns no GPU that torch can use."""

    def __init__(self, on_gpu: bool) -> None:
        if on_gpu:
            os.environ |= SAME_SUMS
        import torch

        self.torch, self.on_gpu = torch, on_gpu
        self.sizes = GPU_SIZES if on_gpu else CPU_SIZES
        self.dtype = getattr(torch, self.sizes.dtype)
        torch.set_num_threads(1)  # sums on a CPU depend on the number of threads
        if on_gpu:
            if not torch.cuda.is_available():
                raise RuntimeError("torch finds no GPU that it can use")
            # Sums of several parts are then added in float32.
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        self.device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")

    def wait_for_work(self) -> None:
        """Wait until all calls so far have been computed."""
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def make_random(self, *shape: int) -> Any:
        """Make normally distributed values: the power that a GEMM takes depends on its data."""
        return self.torch.randn(*shape, device=self.device, dtype=self.torch.float32).to(self.dtype)

    def make_bytes(self, size: int) -> Any:
        """Make so many bytes on the device."""
        return self.torch.ones(size, dtype=self.torch.uint8, device=self.device)

    def make_host_bytes(self, size: int) -> Any:
        """Make so many bytes of the host; for a GPU they are pinned, so that it copies them."""
        return self.torch.ones(size, dtype=self.torch.uint8, pin_memory=self.on_gpu)

    def has_fp8(self) -> bool:
        """Return whether the device has fp8 arithmetic, and torch a call for it."""
        return (
            self.on_gpu
            and hasattr(self.torch, "_scaled_mm")
            and self.torch.version.hip is None
            and self.torch.cuda.get_device_capability(0) >= FP8_CAPABILITY
        )

    def describe(self) -> dict[str, Any]:
        """Describe the device: model, UUID ("" if it has none), and `build`.

        Two devices of one build give the same sums, to the last bit.
        """
        return self._describe_gpu() if self.on_gpu else self._describe_cpu()

    def _describe_gpu(self) -> dict[str, Any]:
        torch = self.torch
        board = torch.cuda.get_device_properties(0)
        kind = [f"{board.multi_processor_count} units", f"{board.major}.{board.minor}"]
        versions = [torch.__version__, str(torch.version.cuda or torch.version.hip)]
        return {
            "model": board.name,
            "uuid": gpu_uuid(board),
            "build": [board.name, *kind, *versions, *package_versions(CUBLAS)],
        }

    def _describe_cpu(self) -> dict[str, Any]:
        model = cpu_model()
        build = [model, self.torch.backends.cpu.get_cpu_capability(), self.torch.__version__]
        return {"model": model, "uuid": "", "build": build}


def gpu_uuid(board: Any) -> str:
    """Return the UUID as NVML writes it, from torch's properties; "" where torch has none."""
    text = str(getattr(board, "uuid", ""))
    return text if not text or text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"


def package_versions(packages: Sequence[str]) -> list[str]:
    """List the versions of the packages that are installed, as `name 1.2`."""
    found = []
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{package} {metadata.version(package)}")
    return found


def cpu_model(path: str = CPU_INFO) -> str:
    """Read the name of the CPU; "CPU" where the kernel gives none."""
    match = re.search(r"(?m)^model name\s*:\s*(\S.*)$", Path(path).read_text(errors="replace"))
    return match[1].strip() if match else "CPU"


def bind_to_slot(slot: str, root: str = PCI_DEVICES) -> list[int]:
    """Run on the CPUs that are near to a PCI slot: pinned memory is then near to it as well.

    `slot` is as NVML writes it, 00000000:1B:00.0.  Returns these CPUs; [] where they are not known
    or not allowed, and nothing changes.
    """
    domain, _, place = slot.lower().partition(":")
    try:
        near = parse_cpu_list((Path(root) / f"{domain[-4:]}:{place}/local_cpulist").read_text())
        if chosen := near & os.sched_getaffinity(0):
            os.sched_setaffinity(0, chosen)
        return sorted(chosen)
    except (OSError, ValueError):
        return []


def parse_cpu_list(text: str) -> set[int]:
    """Parse the kernel's list of CPUs, as `0-3,8`."""
    cpus = set[int]()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return cpus
