"""Deliberate faults of gang scheduling, run live: each must be seen."""

from __future__ import annotations

from typing import Any

from probes.acceptance.measure import Recorder
from probes.cluster.cluster import Cluster
from probes.cluster.node_affinity import on_node
from probes.findings import join_names
from probes.gang import invariants as checks
from probes.gang.gpu_monitor import UnregisteredGpuUser
from probes.gang.invariants import count_held
from probes.gang.job_driver import COMPLETE
from probes.gang.judge import PENDING_SECONDS, judge_withdrawal
from probes.gang.scenario import DRAIN_SECONDS, Scenario

FILL_SECONDS = 60  # until single actors have taken all there is
DEADLOCK_SECONDS = 1.0  # of holding and waiting on both sides, before it is called one
GPU_CONTEXT_SECONDS = 60  # until a process has a GPU's context
GPU_FREED_SECONDS = 2.0  # until what a killed process held is free by NVML
GIVE_UP_SECONDS = 3.0  # of a job for its second group
OUTCOME_SECONDS = 10.0  # for a job to give up after that


def control_release_one_early(run: Scenario) -> None:
    """A gang takes one bundle before the rest, and must be seen as part held."""
    with run.as_control() as samples:
        first = run.ask("A", max(run.total - 1, 1))
        run.wait_placed(first)
        gang = run.ask("B", 1, part=".1")
        run.ask_together(("B", 1, {"part": ".2", "gang": gang}))
        run.until(lambda sample: gang in checks.partial_gangs(sample), 10)
        run.observer.wait(0.2)
        run.rig.release()
        run.until(lambda sample: not sample["gangs"] and sample["free"] >= run.total, DRAIN_SECONDS)
    caught = [span for span in checks.find_partial_holds(samples) if span.gang == gang]
    fault = "a job takes one accelerator of its gang of two before the other"
    saw = caught[0].describe() if caught else "no part of a gang"
    run.measure.control("one bundle early", fault, caught=bool(caught), saw=saw)


def control_unregistered_gpu(run: Scenario) -> None:
    """On real GPUs: a process uses one that it never asked for, and must be seen.

    Only on a node whose GPUs are all free by Ray, and on one that nobody uses by NVML.
    """
    cluster = run.rig.cluster
    if not cluster.on_gpu:
        return
    run.rig.release()
    run.wait_idle()
    run.observer.wait(GPU_FREED_SECONDS)
    uses = [sample["in_use"] for sample in run.observer.samples if "in_use" in sample]
    gpu = find_free_gpu(cluster, run.observer.samples[-1]["free_on"], uses[-1] if uses else {})
    caught, saw = None, "no node has all its GPUs free, and one of them unused"
    if gpu:
        hidden = checks.find_hidden_gpus(_occupy_gpu(run, *gpu), cluster.gpus_by_node)
        caught, saw = gpu[0] in hidden, join_names(hidden.get(gpu[0], (0, []))[1]) or "nothing"
    fault = "a process allocates memory on a GPU without asking Ray for it"
    run.measure.control("a GPU used behind Ray's back", fault, caught=caught, saw=saw)


def find_free_gpu(
    cluster: Cluster, free: dict[str, int], in_use: dict[str, Any]
) -> tuple[str, str] | None:
    """(node, UUID) of a GPU that nobody uses, on a node that is free as a whole; None: none is."""
    for facts in cluster.facts:
        node, uses = facts["name"], in_use.get(facts["name"])
        all_free = 0 < cluster.gpus_by_node.get(node, 0) <= free.get(node, 0)
        if not all_free or not isinstance(uses, dict):  # words: NVML does not tell
            continue
        for gpu in facts["gpus"]:
            if "error" not in gpu and gpu["uuid"] not in uses:
                return node, gpu["uuid"]
    return None


def _occupy_gpu(run: Scenario, node: str, uuid: str) -> list[checks.Sample]:
    """What was seen while a process used this GPU."""
    import ray

    (node_id,) = (entry["id"] for entry in run.rig.cluster.nodes if entry["name"] == node)
    with run.as_control() as samples:
        run.observer.mark(f"a process on {node} uses a GPU that it never asked for", fault=True)
        gpu_user = on_node(UnregisteredGpuUser, node_id).remote()
        try:
            ray.get(gpu_user.allocate.remote(uuid), timeout=GPU_CONTEXT_SECONDS)
            run.observer.wait(checks.FREE_LAG + 1)
        finally:
            ray.kill(gpu_user)
        run.observer.wait(GPU_FREED_SECONDS)  # what is judged must not meet it
    return samples


def control_not_cancelled(run: Scenario, gang: str, name: str, fault: str) -> None:
    """What should end a waiting gang did not happen: the gang must be seen to stay."""
    stays = run.wait_gone(gang, PENDING_SECONDS) is None
    saw = "the gang is still there" if stays else "the gang is gone"
    run.measure.control(name, fault, caught=stays, saw=saw)


def control_partial_allocation(run: Scenario, need: int) -> None:
    """Single actors taken in turns: each job ends up with a part, and neither with all."""
    jobs = run.rig.jobs
    with run.as_control():
        run.rig.release()
        run.wait_idle()
        run.observer.single_actors = dict.fromkeys(jobs, need)
        run.observer.mark("single actors, in turns", fault=True)
        for turn in range(2 * need):
            jobs["AB"[turn % 2]].call("naive", 1)
        run.until(lambda sample: count_held(sample) >= run.total, FILL_SECONDS)
        parts = checks.partial_gangs(run.observer.samples[-1])
        run.rig.release()
        run.observer.single_actors = {}
    fault = "two jobs take single actors in turns, without a gang"
    saw = "; ".join(f"job {job} held {part} of {size}" for job, part, size in parts.values())
    run.measure.control("naive actors", fault, caught=bool(parts), saw=saw)


def control_hold_and_wait(run: Scenario, half: int) -> None:
    """Each job asks for its second group when it has its first: they wait, and must give up.

    What a job gives up must be gone.  The second to do so may find all it wants before it does.
    """
    with run.as_control():
        run.wait_idle()
        gangs = run.ask_together(("A", half, {"part": ".1"}), ("B", half, {"part": ".1"}))
        run.observer.gang_sizes = dict.fromkeys(gangs, 2 * half)
        run.until(lambda sample: count_held(sample) == 2 * half)
        start = run.observer.mark("both ask for their second group", fault=True)
        for gang in gangs:
            run.rig.jobs[gang[0]].call("complete", run.rig.prefix + gang, half, GIVE_UP_SECONDS)
        seen_s = run.until(lambda _: bool(_deadlocks_since(run, start)), 2 * GIVE_UP_SECONDS)
        deadlocks = _deadlocks_since(run, start)
        outcomes = {gang: run.rig.jobs[gang[0]].call("outcome", OUTCOME_SECONDS) for gang in gangs}
        end = run.observer.mark("jobs that waited have given up")
        gave_up = [gang for gang in gangs if outcomes[gang] != COMPLETE]
        for gang in gave_up:
            judge_withdrawal(run, gang, end)
        run.rig.release()
        run.wait_idle()
    run.measure.note("deadlock_seen_after", run.elapsed(start, seen_s), "s")
    saw = "; ".join(f"{hold.describe()}, {outcomes[hold.gang]}" for hold in deadlocks)
    fault = "each job asks for half of its gang, then for the other half"
    caught = {hold.job for hold in deadlocks} == set(run.rig.jobs) and bool(gave_up)
    run.measure.control("two groups per job", fault, caught=caught, saw=saw or "no deadlock")


def _deadlocks_since(run: Scenario, start: float) -> list[checks.PartialHold]:
    """Find jobs that hold and wait for each other, in what was seen since then."""
    seen = [sample for sample in run.observer.samples if sample["t"] >= start]
    return checks.find_deadlocks(seen, DEADLOCK_SECONDS)


def control_wrong_strategy(measure: Recorder, strategy: str, nodes: dict[str, int]) -> None:
    """Control: a gang that lies on several nodes, judged as if it had asked for one."""
    violation = checks.explain_misplaced("STRICT_PACK", nodes, nodes)
    fault = "a gang that lies on several nodes is judged as if it had asked for one"
    name, saw = f"{strategy} passed off as STRICT_PACK", violation or f"nothing wrong with {nodes}"
    measure.control(name, fault, caught=bool(violation), saw=saw)
