"""Where gangs and the components of a job lie: asked for, seen, and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from probes.acceptance import component_placement as components
from probes.acceptance.component_placement import Placement, Slot
from probes.acceptance.contract import ClusterTerms
from probes.gang.scenario import Scenario

DEFAULT_ACCELERATORS = 8  # accelerators that the usual placements are tried on


def try_strategy(run: Scenario, strategy: str, size: int) -> dict[str, int]:
    """Bundles per node of a gang of this strategy, which is then given back; {}: not placed."""
    gang = run.ask("A", size, strategy=strategy)
    placed_at = run.wait_placed(gang)
    nodes = run.observer.samples[-1]["gangs"][gang]["nodes"] if placed_at else {}
    run.drop(gang)
    run.wait_idle()
    return dict(nodes)


def list_layouts(
    terms: ClusterTerms, size: int, free: int
) -> Iterator[tuple[Placement, Mapping[str, int] | None]]:
    """Components to be placed, and how they are split; None: not at all.

    The contract's own, on all `size` accelerators; where it has none, the usual two on some of
    those that are free, and a job of all where the contract says how that is split.
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
    """Two components on the same accelerators, and on different ones."""
    half = total // 2
    return [{"actor,rollout": "all"}, {"actor": f"0-{half - 1}", "rollout": f"{half}-{total - 1}"}]


def control_misplaced_rank(places: Mapping[str, Sequence[Slot]]) -> dict[str, list[Slot]]:
    """The same places, but the last component's first rank is where the first one's last is."""
    first, *_ = places
    *_, last = places
    return {
        **{c: list(ranks) for c, ranks in places.items()},
        last: [places[first][-1], *places[last][1:]],
    }


def find_splits(
    parts: Placement, places: Mapping[str, Sequence[Slot]], parallel: Mapping[str, int] | None
) -> list[str]:
    """Groups of tensor parallelism that do not lie inside one node, one sentence each."""
    if not parallel:
        return []
    node: dict[int, str] = {}
    for component, numbers in parts.items():
        node |= {number: pair[0] for number, pair in zip(numbers, places[component], strict=True)}
    nodes = [node[number] for number in sorted(node)]
    return [
        f"a TP group of {component}, accelerators {components.as_ranges(group)}, lies on two nodes"
        for component, numbers in parts.items()
        for group in components.split_groups(numbers, nodes, parallel["tp"])
    ]
