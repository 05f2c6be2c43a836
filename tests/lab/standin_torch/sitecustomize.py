"""Makes torch count the GPUs of a lab's node, because its own build has no CUDA to count with.

Python imports this file when it starts, on nodes with the stand-in NVML only. The count is from the
same file as NVML's answers: `torch` in it, else `gpus`, and 0 if the node has an `error`. As with
CUDA's own runtime, CUDA_VISIBLE_DEVICES limits it.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any


def count_devices() -> int:
    """Count the node's GPUs, in place of torch._C._cuda_getDeviceCount."""
    lines = Path(os.environ["SEATRIAL_LAB_NVML"]).read_text().splitlines()
    told = dict(line.split(" ", 1) for line in lines)
    devices = int(told.get("torch", 0 if "error" in told else told["gpus"]))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return devices if visible is None else min(devices, len([i for i in visible.split(",") if i]))


class TorchFinder:
    """Finder that finds torch in its usual place, and replaces its count once it is loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return torch's spec with a patched loader; None for every other module."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        if (spec := PathFinder.find_spec(name, path)) and spec.loader:
            load = spec.loader.exec_module

            def load_and_count(module: ModuleType) -> None:
                load(module)
                module._C._cuda_getDeviceCount = count_devices

            spec.loader.exec_module = load_and_count  # type: ignore[method-assign]
        return spec


if "SEATRIAL_LAB_NVML" in os.environ:
    sys.meta_path.insert(0, TorchFinder())  # type: ignore[arg-type]
