"""Groups what has a key in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item")


def group_pairs(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """Group the second of each pair by the first; both keep their order."""
    groups: dict[Key, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups
