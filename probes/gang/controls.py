"""Deliberate faults of gang scheduling, run live: each must be seen."""

from __future__ import annotations

from typing import Any

from probes.acceptance.measure import Ledger
from probes.cluster.cluster import Cluster
from probes.cluster.node_affinity import pinned
from probes.findings import listed
from probes.gang import invariants as checks
from probes.gang.gpu_monitor import Squatter
from probes.gang.invariants import held
from probes.gang.job_driver import COMPLETE
from probes.gang.judge import PENDING_SECONDS, withdrawn
from probes.gang.scenario import DRAIN_SECONDS, Scene

NAIVE_SECONDS = 60  # until single actors have taken all there is
DEADLOCK_SECONDS = 1.0  # of holding and waiting on both sides, before it is called one
SQUAT_SECONDS = 60  # until a process has a GPU's context
GONE_SECONDS = 2.0  # until what a killed process held is free by NVML
PATIENCE_SECONDS = 3.0  # of a job for its second group
OUTCOME_SECONDS = 10.0  # for a job to give up after that


def one_early(at: Scene) -> None:
    """A gang takes one bundle before the rest, and must be seen as part held."""
    with at.fault() as seen:
        first = at.ask("A", max(at.total - 1, 1))
        at.placed(first)
        gang = at.ask("B", 1, part=".1")
        at.together(("B", 1, {"part": ".2", "gang": gang}))
        at.until(lambda sample: gang in checks.part_held(sample), 10)
        at.watch.dwell(0.2)
        at.stage.release()
        at.until(lambda sample: not sample["gangs"] and sample["free"] >= at.total, DRAIN_SECONDS)
    caught = [span for span in checks.halves(seen) if span.gang == gang]
    at.measure.control(
        "one bundle early",
        "a job takes one accelerator of its gang of two before the other",
        caught=bool(caught),
        saw=caught[0].said() if caught else "no part of a gang",
    )


def squat(at: Scene) -> None:
    """On real GPUs: a process uses one that it never asked for, and must be seen.

    Only on a node whose GPUs are all free by Ray, and on one that nobody uses by NVML.
    """
    cluster = at.stage.cluster
    if not cluster.on_gpu:
        return
    at.stage.release()
    at.idle()
    at.watch.dwell(GONE_SECONDS)
    looks = [sample["in_use"] for sample in at.watch.samples if "in_use" in sample]
    spot = free_gpu(cluster, at.watch.samples[-1]["free_on"], looks[-1] if looks else {})
    caught, saw = None, "no node has all its GPUs free, and one of them unused"
    if spot:
        hidden = checks.unseen(_squatted(at, *spot), cluster.counted_on)
        caught, saw = spot[0] in hidden, listed(hidden.get(spot[0], (0, []))[1]) or "nothing"
    at.measure.control(
        "a GPU used behind Ray's back",
        "a process allocates memory on a GPU without asking Ray for it",
        caught=caught,
        saw=saw,
    )


def free_gpu(
    cluster: Cluster, free: dict[str, int], in_use: dict[str, Any]
) -> tuple[str, str] | None:
    """(node, UUID) of a GPU that nobody uses, on a node that is free as a whole; None: none is."""
    for facts in cluster.facts:
        node, uses = facts["name"], in_use.get(facts["name"])
        whole = 0 < cluster.counted_on.get(node, 0) <= free.get(node, 0)
        if not whole or not isinstance(uses, dict):  # words: NVML does not tell
            continue
        for gpu in facts["gpus"]:
            if gpu["uuid"] not in uses:
                return node, gpu["uuid"]
    return None


def _squatted(at: Scene, node: str, uuid: str) -> list[checks.Sample]:
    """What was seen while a process used this GPU."""
    import ray

    (id,) = (one["id"] for one in at.stage.cluster.nodes if one["name"] == node)
    with at.fault() as seen:
        at.watch.mark(f"a process on {node} uses a GPU that it never asked for", fault=True)
        squatter = pinned(Squatter, id).remote()
        try:
            ray.get(squatter.sit.remote(uuid), timeout=SQUAT_SECONDS)
            at.watch.dwell(checks.LINGER + 1)
        finally:
            ray.kill(squatter)
        at.watch.dwell(GONE_SECONDS)  # what is judged must not meet it
    return seen


def still_there(at: Scene, gang: str, name: str, fault: str) -> None:
    """What should end a waiting gang did not happen: the gang must be seen to stay."""
    stays = at.gone(gang, PENDING_SECONDS) is None
    saw = "the gang is still there" if stays else "the gang is gone"
    at.measure.control(name, fault, caught=stays, saw=saw)


def naive(at: Scene, need: int) -> None:
    """Single actors taken in turns: each job ends up with a part, and neither with all."""
    jobs = at.stage.jobs
    with at.fault():
        at.stage.release()
        at.idle()
        at.watch.naive = dict.fromkeys(jobs, need)
        at.watch.mark("single actors, in turns", fault=True)
        for turn in range(2 * need):
            jobs["AB"[turn % 2]].ask("naive", 1)
        at.until(lambda sample: held(sample) >= at.total, NAIVE_SECONDS)
        parts = checks.part_held(at.watch.samples[-1])
        at.stage.release()
        at.watch.naive = {}
    at.measure.control(
        "naive actors",
        "two jobs take single actors in turns, without a gang",
        caught=bool(parts),
        saw="; ".join(f"job {job} held {part} of {size}" for job, part, size in parts.values()),
    )


def hold_and_wait(at: Scene, half: int) -> None:
    """Each job asks for its second group when it has its first: they wait, and must give up.

    What a job gives up must be gone.  The second to do so may find all it wants before it does.
    """
    with at.fault():
        at.idle()
        gangs = at.together(("A", half, {"part": ".1"}), ("B", half, {"part": ".1"}))
        at.watch.needs = dict.fromkeys(gangs, 2 * half)
        at.until(lambda sample: held(sample) == 2 * half)
        begun = at.watch.mark("both ask for their second group", fault=True)
        for gang in gangs:
            at.stage.jobs[gang[0]].ask("complete", at.stage.prefix + gang, half, PATIENCE_SECONDS)
        found = at.until(lambda _: bool(at.knots(begun, DEADLOCK_SECONDS)), 2 * PATIENCE_SECONDS)
        knots = at.knots(begun, DEADLOCK_SECONDS)
        outcomes = {gang: at.stage.jobs[gang[0]].ask("outcome", OUTCOME_SECONDS) for gang in gangs}
        ended = at.watch.mark("jobs that waited have given up")
        for gang in [gang for gang in gangs if outcomes[gang] != COMPLETE]:
            withdrawn(at, gang, ended)
        at.stage.release()
        at.idle()
    at.measure.note("deadlock_seen_after", at.took(begun, found), "s")
    said = "; ".join(f"{knot.said()}, {outcomes[knot.gang]}" for knot in knots)
    gave_up = any(outcome != COMPLETE for outcome in outcomes.values())
    at.measure.control(
        "two groups per job",
        "each job asks for half of its gang, then for the other half",
        caught={knot.job for knot in knots} == set(at.stage.jobs) and gave_up,
        saw=said or "no deadlock",
    )


def passed_off(measure: Ledger, strategy: str, nodes: dict[str, int]) -> None:
    """Control: a gang that lies on several nodes, judged as if it had asked for one."""
    seen = checks.misplaced("STRICT_PACK", nodes, nodes)
    measure.control(
        f"{strategy} passed off as STRICT_PACK",
        "a gang that lies on several nodes is judged as if it had asked for one",
        caught=bool(seen),
        saw=seen or f"nothing wrong with {nodes}",
    )
