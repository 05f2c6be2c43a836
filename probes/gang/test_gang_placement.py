"""Tests that gangs are placed as requested, and that a lost node harms no other gang."""

import pytest

from probes.check.judging import is_alone, plant
from probes.contract import placement as components
from probes.findings import finding, join_names
from probes.gang import controls
from probes.gang import criterion as check
from probes.gang import scenario_checks as scenes
from probes.gang.invariants import count_placed, explain_misplaced
from probes.gang.judge import PENDING_SECONDS, judge_not_blocked, judge_undisturbed, time_handoff
from probes.gang.scenario import NoRoom

pytestmark = [pytest.mark.criterion("GANG"), pytest.mark.tier("standard")]


def test_fragments_are_not_mistaken_for_room(scene, cluster, terms, measure):
    """A gang for one node waits and holds nothing, while only several nodes together have room.

    A PACK gang of the same size is placed on them at once.  Where one node was ordered, a gang
    waits for all of it, and a smaller one is placed.
    """
    if is_alone(cluster, terms):
        wait_for_whole_node(scene)
        return
    with scene("free GPUs only on several nodes", nodes=2) as run:
        largest, filler = max(run.capacity.values()), ""
        size = max(largest, 2)
        if largest > 1 and run.total - len(run.capacity) < largest:
            need = f"one free accelerator on each node and {largest} more on one of them"
            found = join_names(f"{count} on {node}" for node, count in run.capacity.items())
            raise NoRoom(f"this test needs {need}. Found: {found}")
        if largest > 1:  # take one accelerator of each node: no node is completely free
            filler = run.ask("A", len(run.capacity), strategy="STRICT_SPREAD")
            if run.wait_placed(filler) is None:
                raise NoRoom("Ray did not place the gang that takes one accelerator of each node")
        strict = run.ask("B", size, PENDING_SECONDS, strategy="STRICT_PACK")
        used = run.observer.samples[-1]["gangs"][strict]["nodes"]
        message = (
            f"Ray placed a STRICT_PACK gang of {size} on {join_names(used)}, although no node had "
            "room for all of it. Expected: it waits"
        )
        wrong = finding("GANG-MISPLACED", message)
        run.measure_at_end(check.PLACED_IN_FRAGMENTS, len(used), wrong, ours=len(used) > 1)
        packed = judge_not_blocked(run, "A", size, "A asks for as many with PACK")
        nodes = run.observer.samples[-1]["gangs"].get(packed, {}).get("nodes", {})
        controls.control_fragments(measure, nodes)
        if filler:
            run.drop(filler)
            time_handoff(
                run, run.drop(packed), strict, "the STRICT_PACK gang", "all GPUs were free"
            )


def wait_for_whole_node(scene):
    """Judge that a gang which needs the whole node waits, and blocks no smaller gang."""
    with scene("no room on the node") as run:
        controls.control_release_one_early(run, check.ONE_BUNDLE_EARLY_ON_ONE_NODE)
        taken = run.ask("A", 1)
        if run.wait_placed(taken) is None:
            raise NoRoom("Ray did not place the gang that takes one accelerator")
        strict = run.ask("B", run.total, PENDING_SECONDS, strategy="STRICT_PACK")
        rest = judge_not_blocked(run, "A", run.total - 1, "A asks for the rest")
        run.drop(taken)
        time_handoff(run, run.drop(rest), strict, "the STRICT_PACK gang", "all GPUs were free")


def test_strategies_hold(scene, cluster, terms, measure):
    """Ray places gangs as PACK, SPREAD, STRICT_PACK and STRICT_SPREAD require."""
    alone = is_alone(cluster, terms)
    with scene("placement strategies", nodes=1 if alone else 2) as run:
        nodes, largest = len(run.capacity), max(run.capacity.values())
        sizes = {"PACK": largest, "STRICT_PACK": largest, "STRICT_SPREAD": nodes, "SPREAD": nodes}
        used = {name: scenes.try_strategy(run, name, size) for name, size in sizes.items()}
        wrong = [explain_misplaced(*gang, run.capacity) for gang in used.items()]
        missed = [name for name, bundles in used.items() if not bundles]
        wrong += [f"{name} gang was not placed within 30 s" for name in missed]
        extra = run.ask("B", nodes + 1, PENDING_SECONDS, strategy="STRICT_SPREAD")
        if count_placed(run.observer.samples[-1], extra):
            gang = f"STRICT_SPREAD gang of {nodes + 1}"
            wrong.append(f"{gang} is on only {nodes} nodes. Expected: it waits")
        wrong = [message for message in wrong if message]
        ours = any(message.startswith("STRICT") for message in wrong)  # the others are preferences
        findings = [finding("GANG-MISPLACED", message) for message in wrong]
        count, used_name = len(sizes) + 1, "PACK" if alone else "SPREAD"
        run.measure_at_end(check.MISPLACED, len(wrong), *findings, samples=count, ours=ours)
        controls.control_wrong_strategy(measure, used[used_name], alone)


def test_components_lie_where_they_were_put(scene, cluster, terms, measure):
    """Components of a job that share accelerators get the same ones; other components get others.

    The contract's own placement is taken where it has one.
    """
    if cluster.resource != "GPU":
        pytest.fail("this test identifies components by their GPU, but Ray counts no GPU here")
    terms.check_placement(cluster.size)
    with scene("components of a job", sampled=False) as run:
        wrong, astray = [], []
        for parts, split in scenes.list_layouts(terms, cluster.size, run.total):
            places = run.locate_ranks(parts)
            wrong += components.layout_errors(parts, places)
            wrong += scenes.find_splits(parts, places, split)
            astray.append(components.layout_errors(parts, scenes.control_misplaced_rank(places)))
        measure(check.MISPLACED, len(wrong), samples=len(astray))
        measure.explain(finding("GANG-MISPLACED", message) for message in wrong[:3])
        fault = "a rank reports the accelerator of another component's rank"
        values = {check.MISPLACED: sum(map(len, astray))}
        saw = astray[0][0] if astray[0] else "nothing wrong"
        plant(measure, check.ONE_RANK_ASTRAY, fault, values, located=all(astray), saw=saw)


def test_a_lost_node_harms_its_own_gang_only(scene):
    """A gang that lost a node blocks no other gang after its launcher has removed it.

    Four spare raylets join the cluster and two are killed: one while a gang waits, one under a
    gang that runs.  Ray 2.60 places no other gang while the harmed gang exists; that is reported.
    """
    with scene("a node is lost", alone=True) as run, scenes.spare_raylets(run, 4) as spares:
        controls.control_release_one_early(run)
        options = {"strategy": "STRICT_SPREAD", "resource": spares.resource}
        running = run.ask("A", 2, **options)
        run.wait_placed(running)
        # The node that the harmed gang needs next exists but is taken: its request stays feasible.
        taken = run.ask("B", 1, **options)
        run.wait_placed(taken)
        waiting = run.ask("B", 2, PENDING_SECONDS, **options)
        gangs = run.observer.samples[-1]["gangs"]
        held_nodes = gangs[running]["nodes"]
        empty = set(spares.node_names.values()) - {*held_nodes, *gangs[taken]["nodes"]}
        scenes.lose_free_node(run, spares, waiting, min(empty))
        judge_undisturbed(run, running)
        scenes.lose_held_node(run, spares, running, next(iter(held_nodes)))
