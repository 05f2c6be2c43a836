"""Samples of a long storm: equal parts are held once, and nothing that they say is lost."""

from __future__ import annotations

import copy
from typing import Any

from probes.gang.observer import share_equal_parts

GANGS, SAMPLES = 30, 400


def sample(at: int) -> dict[str, Any]:
    """Return the state at sample `at`: at each tenth, another gang is placed or goes."""
    placed = {f"A-{n}": 2 if at // 10 % GANGS > n else 0 for n in range(GANGS)}
    gangs = {
        name: {"job": "A", "size": 2, "placed": count, "nodes": {"node0": count} if count else {}}
        for name, count in placed.items()
    }
    free = 2 * GANGS - sum(placed.values())
    actors = {"A": sum(placed.values())}
    facts = {"t": at / 40, "took": 0.001, "free": free, "free_on": {"node0": free}}
    return {**facts, "gangs": gangs, "actors": actors}


def test_equal_parts_are_held_once_and_say_the_same() -> None:
    held: list[dict[str, Any]] = []
    for at in range(SAMPLES):
        held.append(share_equal_parts(sample(at), held[-1] if held else {}))
    assert held == [sample(at) for at in range(SAMPLES)]
    changes = SAMPLES // 10
    assert len({id(one["gangs"]) for one in held}) == changes
    entries = {id(entry) for one in held for entry in one["gangs"].values()}
    assert len(entries) <= GANGS + changes + GANGS  # all go at once when the last was placed
    assert len({id(one["actors"]) for one in held}) == changes


def test_a_gang_that_went_is_not_kept() -> None:
    first = share_equal_parts(sample(5), {})
    later = copy.deepcopy(first)
    del later["gangs"]["A-3"]
    assert "A-3" not in share_equal_parts(later, first)["gangs"]
    assert "A-3" in first["gangs"]


def test_a_use_of_gpus_is_of_its_own_sample() -> None:
    with_use = share_equal_parts(sample(0), {}) | {"in_use": {"node0": {}}}
    assert "in_use" not in share_equal_parts(sample(0), with_use)
