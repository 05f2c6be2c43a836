"""Ranks are in one order on every start, and nodes and GPUs are counted as people do."""

from __future__ import annotations

import random

from reference_trainer.launch.worker import RankLocation


def location(address: str, *gpus: str, pid: int = 1) -> RankLocation:
    return RankLocation(node=address, address=address, host=address, pid=pid, gpus=[*gpus])


def test_the_order_is_that_of_addresses_and_then_of_gpus_by_number() -> None:
    """A machine of MIG slices has more than ten; an address has no order as text."""
    ordered = [
        *(location("10.0.0.9", str(gpu)) for gpu in (0, 2, 9, 10, 11, 55)),
        location("10.0.0.10", "0"),
        location("10.0.0.10", "1"),
    ]
    shuffled = random.Random(1).sample(ordered, len(ordered))
    assert sorted(shuffled, key=lambda place: place.sort_key) == ordered


def test_ranks_without_gpus_are_in_the_order_of_their_processes() -> None:
    first, second = location("10.0.0.1", pid=7), location("10.0.0.1", pid=30)
    assert sorted([second, first], key=lambda place: place.sort_key) == [first, second]
