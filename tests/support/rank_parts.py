"""What each rank of a gang is told: its own group, or its own pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Each = Sequence[tuple[Any]]


def groups_of(each: Each) -> list[list[int]]:
    """All groups, from what each rank is told; a rank of a group is in it."""
    groups: list[list[int]] = []
    for rank, (own,) in enumerate(each):
        if own is not None:
            assert rank in own
            if own not in groups:
                groups.append(own)
    return groups


def rounds_of(each: Each) -> list[list[list[int]]]:
    """All rounds of pairs; each rank has as many rounds."""
    return [
        groups_of([(pair,) for pair in pairs])
        for pairs in zip(*(own for (own,) in each), strict=True)
    ]
