"""Does a gang lie where it was asked for, and do others not suffer where a node is lost?"""

import pytest

from probes.acceptance import component_placement as components
from probes.findings import finding, listed
from probes.gang import invariants as checks
from probes.gang.controls import one_early, passed_off
from probes.gang.invariants import placed
from probes.gang.judge import PENDING_SECONDS, handed_off, passes, undisturbed
from probes.gang.node_loss import beside_a_waiting_gang, spare_raylets, under_a_gang
from probes.gang.placement import layouts, one_astray, torn, where
from probes.gang.scenario import NoRoom

pytestmark = [pytest.mark.criterion("GANG"), pytest.mark.tier("standard")]


def test_fragments_are_not_mistaken_for_room(scene, measure):
    """A gang for one node waits with nothing while free accelerators lie on several nodes.

    A PACK gang of the same size is placed on them at once.
    """
    with scene("fragments", nodes=2) as at:
        largest, crumbs = max(at.room.values()), ""
        if largest > 1 and at.total - len(at.room) < largest:
            raise NoRoom(f"fragments need {largest} free beside one of each node, see {at.room}")
        if largest > 1:  # one accelerator of each node is taken, so that no node is whole
            crumbs = at.ask("A", len(at.room), strategy="STRICT_SPREAD")
            if at.placed(crumbs) is None:
                raise NoRoom("no fragments: a gang of one on each node was not placed")
        strict = at.ask("B", max(largest, 2), strategy="STRICT_PACK")
        at.watch.dwell(PENDING_SECONDS)
        lies = at.watch.samples[-1]["gangs"][strict]["nodes"]
        said = f"STRICT_PACK of {max(largest, 2)} lies on {listed(lies)}, which had no such room"
        wrong = finding("GANG-MISPLACED", said, ["job B"])
        at.owe("placed_in_fragments", len(lies), wrong, ours=len(lies) > 1)
        begun = at.watch.mark("A asks for the same, PACK")
        loose = at.ask("A", max(largest, 2))
        passes(at, loose, begun)
        passed_off(measure, "PACK", at.watch.samples[-1]["gangs"].get(loose, {}).get("nodes", {}))
        if crumbs:
            at.drop(crumbs)
            handed_off(at, at.drop(loose), strict, "no node became whole again")


def test_strategies_hold(scene, measure):
    """PACK, SPREAD, STRICT_PACK and STRICT_SPREAD put a gang where they say."""
    with scene("placement strategies", nodes=2) as at:
        nodes, largest = len(at.room), max(at.room.values())
        wanted = {"PACK": largest, "STRICT_PACK": largest, "STRICT_SPREAD": nodes, "SPREAD": nodes}
        seen = {strategy: where(at, strategy, size) for strategy, size in wanted.items()}
        wrong = [checks.misplaced(strategy, lies, at.room) for strategy, lies in seen.items()]
        wrong += [f"{strategy} was not placed" for strategy, lies in seen.items() if not lies]
        one_more = at.ask("B", nodes + 1, strategy="STRICT_SPREAD")
        at.watch.dwell(PENDING_SECONDS)
        if placed(at.watch.samples[-1], one_more):
            wrong.append(f"STRICT_SPREAD of {nodes + 1} was placed on {nodes} nodes")
        wrong = [said for said in wrong if said]
        ours = any(said.startswith("STRICT") for said in wrong)  # the others are wishes
        why = [finding("GANG-MISPLACED", said) for said in wrong]
        at.owe("misplaced", len(wrong), *why, samples=len(wanted) + 1, ours=ours)
        passed_off(measure, "SPREAD", seen["SPREAD"])


def test_components_lie_where_they_were_put(scene, cluster, terms, measure):
    """Collocated components of a job see the same accelerators, disaggregated ones see others.

    The contract's own placement is taken where it has one.
    """
    if cluster.resource != "GPU":
        pytest.fail("components are told apart by their GPU, and this cluster has none")
    terms.placement(cluster.size)
    with scene("components", sampled=False) as at:
        wrong, missed = [], []
        for parts, split in layouts(terms, cluster.size, at.total):
            places = at.seated(parts)
            wrong += components.layout_faults(parts, places) + torn(parts, places, split)
            missed.append(components.layout_faults(parts, one_astray(places)))
        measure("misplaced", len(wrong), samples=len(missed))
        measure.explain(finding("GANG-MISPLACED", said) for said in wrong[:3])
        measure.control(
            "one rank astray",
            "a rank reports the accelerator of another component's rank",
            caught=all(missed),
            saw=missed[0][0] if missed[0] else "nothing wrong",
        )


def test_a_lost_node_harms_its_own_gang_only(scene):
    """A gang that lost a node is in nobody's way once its launcher has removed it.

    Four spare raylets join the cluster and two are killed: one while a gang waits, one under a
    gang that runs.  Ray 2.60 places nobody else while the harmed gang stands; that is reported.
    """
    with scene("a node is lost", alone=True) as at, spare_raylets(at, 4) as berths:
        one_early(at)
        two = {"strategy": "STRICT_SPREAD", "resource": berths.resource}
        running = at.ask("A", 2, **two)
        at.placed(running)
        # What the harmed gang will want again is there, and taken: it is not infeasible.
        taken = at.ask("B", 1, **two)
        at.placed(taken)
        waiting = at.ask("B", 2, **two)
        at.watch.dwell(PENDING_SECONDS)
        gangs = at.watch.samples[-1]["gangs"]
        mine = gangs[running]["nodes"]
        empty = set(berths.names.values()) - {*mine, *gangs[taken]["nodes"]}
        beside_a_waiting_gang(at, berths, waiting, min(empty))
        undisturbed(at, running)
        under_a_gang(at, berths, running, next(iter(mine)))
