"""Runs ranks as threads of this process, for code that communicates only over a World."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any


def on_ranks(hosts: Sequence[str], job: Callable[[Any], Any], error: type[Exception]) -> list[Any]:
    """Run `job(world)` on each rank; return its results, or the `error` that it raises, by rank."""
    size = len(hosts)
    barrier, box = threading.Barrier(size, timeout=20), [None] * size

    def rank(number: int) -> Any:
        def gather(value: Any) -> list[Any]:
            box[number] = value
            barrier.wait()
            values = list(box)
            barrier.wait()
            return values

        world = SimpleNamespace(
            rank=number,
            size=size,
            host=hosts[number],
            gather=gather,
            broadcast=lambda value: gather(value)[0],
        )
        try:
            return job(world)
        except error as raised:
            return raised

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(rank, range(size)))
