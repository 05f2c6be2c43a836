"""Series of pairs of nodes, from a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def cells_of(table: Sequence[Sequence[float | None]]) -> list[list[Any]]:
    """(source, target, GB/s) of each known value beside the diagonal; a row is a source."""
    return [
        [source, target, gbs]
        for source, row in enumerate(table)
        for target, gbs in enumerate(row)
        if gbs is not None and source != target
    ]
