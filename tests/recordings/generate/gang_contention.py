"""Invented stories of gangs that compete, in the shape of the gang probe's series."""

from __future__ import annotations

import random
from typing import Any

Change = tuple[float, dict[str, dict[str, int]], dict[str, int]]


def series(
    title: str, capacity: dict[str, int], changes: list[Change], end: float
) -> dict[str, Any]:
    """Changes as (t, held per node and job, waited for per job)."""
    return {
        "title": title,
        "unit": "GPU",
        "capacity": capacity,
        "samples": samples(changes),
        "end": end,
        "taken": int(end * 40),
        "marks": [],
    }


def samples(changes: list[Change]) -> list[dict[str, Any]]:
    """As the probe writes them."""
    return [{"t": t, "nodes": nodes, "waits": waits} for t, nodes, waits in changes]


def two_gangs(
    names: list[str], each: int, partial: bool = False, pace: float = 1.0
) -> dict[str, Any]:
    """Two gangs of 75 %: B waits whole until A lets go; `partial`: B holds a third of it."""
    count = len(names) * 3 // 4
    need = count * each
    mine = dict.fromkeys(names[:count], each)
    rest = dict.fromkeys(names[count:], each)
    a = {name: {"A": held} for name, held in mine.items()}
    b = {name: {"B": held} for name, held in mine.items()}
    both = {**a, **{name: {"B": held} for name, held in rest.items()}}
    half = sum(rest.values())
    changes: list[Change] = [
        (0.0, {}, {}),
        (2 * pace, {}, {"A": need}),
        (4 * pace, a, {}),
        (6 * pace, a, {"B": need}),
        *(
            [(20 * pace, both, {"B": need - half}), (33.5 * pace, a, {"B": need})]
            if partial
            else []
        ),
        (44 * pace, {}, {"B": need}),
        (46 * pace, b, {}),
        (88 * pace, {}, {}),
    ]
    capacity = dict.fromkeys(names, each)
    told = series("two gangs of 75 %", capacity, changes, 95 * pace)
    told |= {"taken": 190, "marks": [[6 * pace, "B asks"], [44 * pace, "A lets go"]]}
    if partial:
        told["half"] = [[20 * pace, 33.5 * pace, "B", half, need]]
    return told | {"control": control(a, both, need, half, pace)}


def control(
    a: dict[str, dict[str, int]],
    both: dict[str, dict[str, int]],
    need: int,
    half: int,
    pace: float,
) -> dict[str, Any]:
    """Single workers instead of a gang: B takes what is left, and holds it."""
    changes: list[Change] = [
        (0.0, {}, {}),
        (1 * pace, a, {"B": need}),
        (6 * pace, both, {"B": need - half}),
    ]
    return {
        "samples": samples(changes),
        "end": 20 * pace,
        "marks": [[1 * pace, "single workers"]],
        "half": [[6 * pace, 20 * pace, "B", half, need]],
    }


def deadlock() -> dict[str, Any]:
    """Two groups per job: each job has one, and waits for the other for ever."""
    names = [f"node{at}" for at in range(4)]
    first = {"node0": {"A": 1}, "node1": {"A": 1}}
    held = {**first, "node2": {"B": 1}, "node3": {"B": 1}}
    changes: list[Change] = [
        (0.01, {}, {}),
        (0.4, first, {"B": 2}),
        (0.43, held, {}),
        (1.5, held, {"A": 2, "B": 2}),
        (5.1, {"node0": {"A": 1}, "node1": {"A": 1}}, {"A": 2}),
        (5.3, {name: {"A": 1} for name in names}, {}),
        (7.0, {}, {}),
    ]
    told = series("two groups per job: hold and wait", dict.fromkeys(names, 1), changes, 7.2)
    marks: list[list[Any]]
    marks = [[1.5, "both ask for a second group"], [5.1, "B is killed", True], [5.2, "A goes on"]]
    return told | {"marks": marks, "half": [[1.5, 5.2, "A", 2, 4], [1.5, 5.1, "B", 2, 4]]}


def storm(nodes: int = 8, each: int = 8, gangs: int = 50, end: float = 60.0) -> dict[str, Any]:
    """Many gangs of two jobs, placed and removed at random; the same ones each time."""
    draw = random.Random(7)
    names = [f"atlas{at + 1:02d}" for at in range(nodes)]
    changes: list[Change] = [(0.0, {}, {})]
    held: list[tuple[float, str, dict[str, int]]] = []
    asked: list[tuple[float, str, int]] = sorted(
        (draw.uniform(0, end * 0.9), draw.choice("AB"), draw.randint(1, nodes * each * 3 // 4))
        for _ in range(gangs)
    )
    waiting: list[tuple[str, int]] = []
    for tick in range(int(end * 40)):
        t = tick / 40
        held = [one for one in held if one[0] > t]
        waiting += [(job, need) for at, job, need in asked if t <= at < t + 1 / 40]
        for job, need in list(waiting):
            free = {n: each - sum(one[2].get(n, 0) for one in held) for n in names}
            if sum(free.values()) >= need:
                waiting.remove((job, need))
                held.append((t + draw.uniform(0.05, end * 0.08), job, packed(free, need)))
        now: dict[str, dict[str, int]] = {}
        for _, job, where in held:
            for name, count in where.items():
                now.setdefault(name, {})
                now[name][job] = now[name].get(job, 0) + count
        waits: dict[str, int] = {}
        for job, need in waiting:
            waits[job] = waits.get(job, 0) + need
        if changes[-1][1:] != (now, waits):
            changes.append((t, now, waits))
    marks = [[round(at, 2), f"{job} asks for {need}"] for at, job, need in asked]
    return series("a storm", dict.fromkeys(names, each), changes, end) | {"marks": marks}


def packed(free: dict[str, int], need: int) -> dict[str, int]:
    """A gang on the nodes with the most room first."""
    taken = {}
    for name in sorted(free, key=lambda one: -free[one]):
        count = min(need, free[name])
        if count:
            taken[name] = count
        need -= count
    return taken
