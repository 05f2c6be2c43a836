"""Find nodes that are slow in groups only, which pairs are too small to show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain

from scaling.collectives.fault_search import MIN_EFFECT, MeasureGroups, typical_speed, valid_speed


def grid_groups(nodes: Sequence[str]) -> tuple[list[list[str]], list[list[str]]]:
    """Part the nodes in two ways into groups of about sqrt(n); two nodes share one at most.

    Rows and columns of a grid whose holes lie on a diagonal, so that no row or column has two.
    Every group has two nodes or more from 6 nodes on, and with 4.
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

    `measure_groups` takes disjoint groups, lets all of them work at once and returns the GB/s of
    each, in their order.  Every node is in two groups that share only it; where both stay slow, it
    is tried once more among proven good nodes, so that no other suspect can spoil its group.  Slow
    is what `search_faults` calls slow.  Meant for 12 nodes or more: fewer make pairs of groups.
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
    """Find (groups that were slow twice, nodes of a fast group, GB/s below which one is slow)."""
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
        # All of it: the load may be the fault.
        repeated = measure_groups(partition) if doubtful else speeds
        for group, *both in zip(partition, speeds, map(valid_speed, repeated), strict=True):
            if max(both) < limit:
                slow.append(group)
            else:
                good.update(group)
    return slow, good, limit


def _suspect_batches(suspects: list[str], good: list[str], nodes: int) -> Iterator[list[list[str]]]:
    """Make disjoint groups, each of one suspect and good nodes only, as large as the first were."""
    partners = min(len(good), math.ceil(math.sqrt(nodes)) - 1)
    batch_size = len(good) // partners if partners else 0
    for start in range(0, len(suspects) if batch_size else 0, batch_size or 1):
        batch = suspects[start : start + batch_size]
        yield [
            [suspect, *good[i * partners : (i + 1) * partners]] for i, suspect in enumerate(batch)
        ]
