"""The work of one device that is timed: GEMM, and copies on the device and from and to the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from probes.hosts.compute.device import WorkDevice

TERA, GIGA = 1e12, 1e9
LAUNCHES = 1000  # of an empty piece of work, for the cost of one


@dataclass(frozen=True)
class TimedCall:
    """One call of work, and how much it does, in the unit of its rate times seconds."""

    name: str
    call: Callable[[], Any]
    amount: float


def build_operations(device: WorkDevice) -> list[TimedCall]:
    """Build the operations of a device: rates are in TFLOP/s and GB/s.

    A copy on the device reads and writes: both count.
    """
    sizes, torch = device.sizes, device.torch
    left, right = (device.make_random(sizes.gemm, sizes.gemm) for _ in range(2))
    product = torch.empty_like(left)
    source, target = device.make_bytes(sizes.copy_bytes), device.make_bytes(sizes.copy_bytes)
    host, near = device.make_host_bytes(sizes.host_bytes), device.make_bytes(sizes.host_bytes)
    flop = 2 * sizes.gemm**3 / TERA
    moved, sent = 2 * sizes.copy_bytes / GIGA, sizes.host_bytes / GIGA
    operations = [
        TimedCall("gemm", lambda: torch.mm(left, right, out=product), flop),
        TimedCall("hbm", lambda: target.copy_(source), moved),
        TimedCall("h2d", lambda: near.copy_(host, non_blocking=True), sent),
        TimedCall("d2h", lambda: host.copy_(near, non_blocking=True), sent),
    ]
    if device.has_fp8():
        operations.append(TimedCall("fp8", _fp8_call(device, left, right), flop))
    return operations


def _fp8_call(device: WorkDevice, left: Any, right: Any) -> Callable[[], Any]:
    """Build a GEMM in fp8.  Its right matrix must be stored by columns."""
    torch = device.torch
    kind = torch.float8_e4m3fn
    scale = torch.ones((), dtype=torch.float32, device=device.device)
    left, right = left.to(kind), right.t().contiguous().to(kind).t()
    return lambda: torch._scaled_mm(
        left, right, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16
    )


def measure_rate(device: WorkDevice, operation: TimedCall, seconds: float, extra: int = 1) -> float:
    """Measure the rate of an operation for about so many seconds.

    `extra` is for a control: each call is made so often, and counts once.
    """
    device.wait_for_work()
    done, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        for _ in range(device.sizes.calls):
            for _ in range(extra):
                operation.call()
        device.wait_for_work()
        done += device.sizes.calls
    return done * operation.amount / elapsed


def measure_rates(
    device: WorkDevice, operations: list[TimedCall], rounds: int, seconds: float, extra: int = 1
) -> dict[str, list[float]]:
    """Measure each operation so many times, in turn: a disturbance meets all of them."""
    rates: dict[str, list[float]] = {operation.name: [] for operation in operations}
    for _ in range(rounds):
        for operation in operations:
            rates[operation.name].append(measure_rate(device, operation, seconds, extra))
    return rates


def measure_launch(device: WorkDevice) -> float:
    """Measure the time in us to launch a small piece of work."""
    one = device.torch.zeros(1, device=device.device)
    device.wait_for_work()
    began = time.perf_counter()
    for _ in range(LAUNCHES):
        one.add_(1)
    device.wait_for_work()
    return (time.perf_counter() - began) / LAUNCHES * 1e6


def usable_operations(device: WorkDevice, operations: list[TimedCall]) -> Iterator[TimedCall]:
    """Yield the operations that run once.  Only fp8 may fail: torch's call for it is not stable."""
    for operation in operations:
        try:
            operation.call()
            device.wait_for_work()
        except Exception:  # torch raises many kinds
            if operation.name != "fp8":
                raise
        else:
            yield operation
