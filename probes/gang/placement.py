"""Compares the requested with the actual placement of gangs and of a job's components."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from probes.acceptance import component_placement as components
from probes.acceptance.component_placement import Placement, Slot
from probes.acceptance.contract import ClusterTerms
from probes.gang.scenario import Scenario

DEFAULT_ACCELERATORS = 8  # at most, for the default placements


def try_strategy(run: Scenario, strategy: str, size: int) -> dict[str, int]:
    """Place a gang with this strategy, then give it back.

    Returns its bundles per node, or {} if it was not placed.
    """
    gang = run.ask("A", size, strategy=strategy)
    placed_at = run.wait_placed(gang)
    nodes = run.observer.samples[-1]["gangs"][gang]["nodes"] if placed_at else {}
    run.drop(gang)
    run.wait_idle()
    return dict(nodes)


def list_layouts(
    terms: ClusterTerms, size: int, free: int
) -> Iterator[tuple[Placement, Mapping[str, int] | None]]:
    """List component placements to try, each with its parallel sizes (None: sizes not judged).

    The contract's own placement uses all `size` accelerators. Without one, two default placements
    use some of the free accelerators. Then, if the contract has parallel sizes, one job uses all.
    """
    split = {str(key): size for key, size in terms.parallel.items()} if terms.parallel else None
    if terms.components:
        yield components.parse(terms.components, size), split
        return
    for spec in default_placements(min(free, DEFAULT_ACCELERATORS)):
        yield components.parse(spec, min(free, DEFAULT_ACCELERATORS)), None
    if split:
        yield components.parse({"job": "all"}, size), split


def default_placements(total: int) -> list[dict[str, str | int]]:
    """Build placements of two components: on the same accelerators, and on different ones."""
    half = total // 2
    return [{"actor,rollout": "all"}, {"actor": f"0-{half - 1}", "rollout": f"{half}-{total - 1}"}]


def control_misplaced_rank(places: Mapping[str, Sequence[Slot]]) -> dict[str, list[Slot]]:
    """Move the last component's first rank to the place of the first component's last rank."""
    first, *_ = places
    *_, last = places
    return {
        **{c: list(ranks) for c, ranks in places.items()},
        last: [places[first][-1], *places[last][1:]],
    }


def find_splits(
    parts: Placement, places: Mapping[str, Sequence[Slot]], parallel: Mapping[str, int] | None
) -> list[str]:
    """Describe tensor-parallel groups that do not lie inside one node, one sentence each."""
    if not parallel:
        return []
    node: dict[int, str] = {}
    for component, numbers in parts.items():
        node |= {number: pair[0] for number, pair in zip(numbers, places[component], strict=True)}
    nodes = [node[number] for number in sorted(node)]
    return [
        f"a TP group of {component}, accelerators {components.as_ranges(group)}, is split over "
        "two nodes"
        for component, numbers in parts.items()
        for group in components.split_groups(numbers, nodes, parallel["tp"])
    ]
