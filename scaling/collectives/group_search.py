"""Searches for nodes that are slow only in groups; pairs are too small to show them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain

from scaling.collectives.fault_search import MIN_EFFECT, MeasureGroups, typical_speed, valid_speed


def grid_groups(nodes: Sequence[str]) -> tuple[list[list[str]], list[list[str]]]:
    """Split the nodes in two ways into groups of about sqrt(n) nodes.

    Any two nodes share at most one group. The groups are the rows and the columns of a grid.
    Its empty cells lie on a diagonal, so no row or column has two. With 4 nodes, and from 6
    nodes on, every group has two nodes or more.
    """
    column_count = math.ceil(math.sqrt(len(nodes)))
    row_count = math.ceil(len(nodes) / column_count) if column_count else 0
    holes = {
        (row_count - 1 - i, column_count - 1 - i)
        for i in range(row_count * column_count - len(nodes))
    }
    cells = ((row, column) for row in range(row_count) for column in range(column_count))
    grid = dict(zip((cell for cell in cells if cell not in holes), nodes, strict=True))
    across, down = (
        [[node for cell, node in grid.items() if cell[axis] == index] for index in range(count)]
        for axis, count in enumerate((row_count, column_count))
    )
    return across, down


def search_groups(
    nodes: Sequence[str], measure_groups: MeasureGroups, effect: float = MIN_EFFECT
) -> tuple[list[str], list[list[str]]]:
    """Find (nodes that make their groups slow, slow groups that no such node explains).

    `measure_groups` takes disjoint groups and runs all of them at once. It returns the GB/s of
    each group, in order. Every node is in two groups that share only this node. If both stay
    slow, the node is measured once more with proven good nodes only. So no other suspect slows
    its group. A group is slow by the rule of `search_faults`. Meant for 12 nodes or more: with
    fewer nodes some groups may be pairs.
    """
    slow, good, limit = _find_slow_groups(nodes, measure_groups, effect)
    suspects = [node for node in nodes if node not in good and any(node in g for g in slow)]
    guilty = []
    for batch in _suspect_batches(suspects, [node for node in nodes if node in good], len(nodes)):
        for group, speed in zip(batch, measure_groups(batch), strict=True):
            if valid_speed(speed) < limit:
                guilty.append(group[0])
    return guilty, [group for group in slow if not set(group) & set(guilty)]


def _find_slow_groups(
    nodes: Sequence[str], measure_groups: MeasureGroups, effect: float
) -> tuple[list[list[str]], set[str], float]:
    """Find (groups slow twice, nodes of a fast group, GB/s below which a group is slow)."""
    partitions = [
        [group for group in partition if len(group) > 1] for partition in grid_groups(nodes)
    ]
    first_speeds = [
        [valid_speed(speed) for speed in measure_groups(partition)] if partition else []
        for partition in partitions
    ]
    limit = typical_speed(chain.from_iterable(first_speeds), effect)[1]
    slow, good = [], set[str]()
    for partition, speeds in zip(partitions, first_speeds, strict=True):
        doubtful = any(speed < limit for speed in speeds)
        # Repeat all groups together: the fault may appear only under this load.
        repeated = measure_groups(partition) if doubtful else speeds
        for group, *both in zip(partition, speeds, map(valid_speed, repeated), strict=True):
            if max(both) < limit:
                slow.append(group)
            else:
                good.update(group)
    return slow, good, limit


def _suspect_batches(suspects: list[str], good: list[str], nodes: int) -> Iterator[list[list[str]]]:
    """Yield batches of disjoint groups: one suspect and good nodes only.

    The groups are as large as the first ones if there are enough good nodes. `nodes` is the
    number of all nodes.
    """
    partners = min(len(good), math.ceil(math.sqrt(nodes)) - 1)
    batch_size = len(good) // partners if partners else 0
    for start in range(0, len(suspects) if batch_size else 0, batch_size or 1):
        batch = suspects[start : start + batch_size]
        yield [
            [suspect, *good[i * partners : (i + 1) * partners]] for i, suspect in enumerate(batch)
        ]
