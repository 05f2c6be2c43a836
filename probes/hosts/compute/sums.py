"""Two GEMMs whose result is compared: one with a known answer, one whose bits must be the same.

The known answer is exact in every type that is used.  All inputs are whole numbers up to 4, and all
results are whole numbers up to 244: bfloat16 holds those up to 256, and float32 each partial sum.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
from typing import Any

from probes.hosts.compute.device import WorkDevice

SEED = 20240229  # any number; all devices must have the same
MOST_SUM = 61  # of the inner product: times 2 x 2 it stays below 256
FACTORS = (-2, -1, 1, 2)
ELEMENT, SHAPE = "element", "shape"  # faults of a control: one input element, one column too few


def balanced_factors(size: int) -> tuple[list[int], list[int], int]:
    """Draw two vectors, and their inner product: not 0, and at most MOST_SUM."""
    draw = random.Random(SEED)
    left, right = ([draw.choice(FACTORS) for _ in range(size)] for _ in range(2))
    total = sum(a * b for a, b in zip(left, right, strict=True))
    for k in range(size):
        if 0 < abs(total) <= MOST_SUM:
            break
        if left[k] * right[k] * total >= 0:
            total -= 2 * left[k] * right[k]
            right[k] = -right[k]
    return left, right, total


def build_known(torch: Any, size: int) -> tuple[Any, Any, Any]:
    """Build two matrices and their product, in float32: each element has another sum of products.

    Row i of the left one is `rows[i]` times a vector, column j of the right one `columns[j]` times
    another.  So the product is known without a GEMM, and no device computes the answer.
    """
    draw = random.Random(SEED + 1)
    rows, columns = ([draw.choice(FACTORS) for _ in range(size)] for _ in range(2))
    inner_left, inner_right, total = balanced_factors(size)
    vectors = (rows, columns, inner_left, inner_right)
    down, across, left, right = (torch.tensor(one, dtype=torch.float32) for one in vectors)
    return torch.outer(down, left), torch.outer(right, across), torch.outer(down, across) * total


def count_wrong_sums(device: WorkDevice, plant: str = "") -> int:
    """Count the wrong elements of a GEMM with a known answer; compared on the host.

    `plant` is for a control: it changes an input element, or takes a column away.
    """
    left, right, expected = build_known(device.torch, device.sizes.sums)
    left = _plant_fault(left, plant)
    left, right = (one.to(device.device, device.dtype) for one in (left, right))
    wrong = 0
    for _ in range(device.sizes.repeats):
        found = device.torch.mm(left, right).cpu().float()
        wrong = max(wrong, int((found != expected).sum()))
    return wrong


def hash_products(device: WorkDevice, plant: str = "") -> list[str]:
    """Multiply the same normal numbers several times; return the hash of each product's bits."""
    torch, size = device.torch, device.sizes.sums
    draw = torch.Generator().manual_seed(SEED)  # of the host: the same numbers everywhere
    left, right = (torch.randn(size, size, generator=draw) for _ in range(2))
    left = _plant_fault(left, plant)
    left, right = (one.to(device.device, device.dtype) for one in (left, right))
    return [hash_bits(torch.mm(left, right).cpu()) for _ in range(device.sizes.repeats)]


def _plant_fault(left: Any, plant: str) -> Any:
    if plant == SHAPE:
        return left[:, 1:]
    if plant == ELEMENT:
        left[-1, -1] += 1
    return left


def hash_bits(values: Any) -> str:
    """Hash the bits of a tensor on the host."""
    values = values.contiguous()
    size = values.numel() * values.element_size()
    return hashlib.sha256((ctypes.c_char * size).from_address(values.data_ptr())).hexdigest()
