"""Makes torch's GEMM wrong in one element, as a GPU with a faulty unit does, or lets it fail.

Python imports this file when it starts, on nodes of a lab with the fault `gemm` only.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class FaultyTorchFinder:
    """Finder that finds torch in its usual place, and replaces its GEMM once it is loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return torch's spec with a patched loader; None for every other module."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        if (spec := PathFinder.find_spec(name, path)) and spec.loader:
            load = spec.loader.exec_module

            def load_and_break(module: ModuleType) -> None:
                load(module)
                break_gemm(module)

            spec.loader.exec_module = load_and_break  # type: ignore[method-assign]
        return spec


def break_gemm(torch: Any) -> None:
    """Replace torch.mm: one element of each product is too large by one, or there is none."""
    multiply = torch.mm

    def multiply_wrongly(left: Any, right: Any, **more: Any) -> Any:
        if os.environ["SEATRIAL_LAB_GEMM"] == "fails":
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        product = multiply(left, right, **more)
        product[3, 7] += 1
        return product

    torch.mm = multiply_wrongly


sys.meta_path.insert(0, FaultyTorchFinder())  # type: ignore[arg-type]
