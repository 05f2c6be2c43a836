"""Injects deliberate faults into real gang scheduling; the probe must detect each of them."""

from __future__ import annotations

from functools import partial
from typing import Any

from probes.check.declarations import ControlRow
from probes.check.judging import plant
from probes.check.recorder import Recorder, Trial
from probes.cluster.ask import on_node
from probes.cluster.cluster import Cluster
from probes.findings import join_names
from probes.gang import criterion as check
from probes.gang import invariants as checks
from probes.gang import judge
from probes.gang.job_driver import COMPLETE
from probes.gang.observer import UnregisteredGpuUser
from probes.gang.scenario import DRAIN_SECONDS, Scenario
from probes.gang.scenario_checks import judge_gpu_use, judge_partial_holds, judge_rate

LOOK_SECONDS = 0.3  # for an action to appear in several samples
AWAY_SECONDS = 1.2  # pause of the observer: longer than the limit MAX_GAP
LATE_BY = 1.1  # times the limit of the placement delay
FILL_SECONDS = 60  # for single actors to take all free accelerators
DEADLOCK_SECONDS = 1.0  # of hold-and-wait in both jobs, before it counts as a deadlock
GPU_CONTEXT_SECONDS = 60  # for a process to create a CUDA context
GPU_FREED_SECONDS = 2.0  # for NVML to report a killed process's GPU as free
GIVE_UP_SECONDS = 3.0  # that a job waits for its second group
OUTCOME_SECONDS = 10.0  # for a job to give up after that
NO_IDLE = "no idle node: Ray must count all GPUs of a node as free, and one GPU must be unused"


def control_release_one_early(run: Scenario, name: ControlRow = check.ONE_BUNDLE_EARLY) -> None:
    """Place one bundle of a gang before the other; the judge must find a partial hold."""
    with run.as_control() as samples:
        first = run.ask("A", max(run.total - 1, 1))
        run.wait_placed(first)
        gang = run.ask("B", 1, part=".1")
        run.ask_together(("B", 1, {"part": ".2", "gang": gang}))
        run.until(lambda sample: gang in checks.partial_gangs(sample), 10)
        run.observer.wait(0.2)
        run.rig.release()
        run.until(lambda sample: not sample["gangs"] and sample["free"] >= run.total, DRAIN_SECONDS)
    caught = [span.describe() for span in checks.find_partial_holds(samples) if span.gang == gang]
    fault = "a job gets its two accelerators one after the other"
    judge_early = partial(judge_partial_holds, [samples])
    saw = caught[0] if caught else "no partly held gang"
    plant(run.measure, name, fault, judge_early, located=bool(caught), saw=saw)


def control_unregistered_gpu(run: Scenario) -> None:
    """Use a GPU without asking Ray for it; the probe must detect it. Real GPUs only.

    By Ray, all GPUs of the node must be free. By NVML, the GPU itself must be unused.
    """
    cluster = run.rig.cluster
    if not cluster.on_gpu:
        return
    run.release_all()
    run.observer.wait(GPU_FREED_SECONDS)
    uses = [sample["in_use"] for sample in run.observer.samples if "in_use" in sample]
    gpu = find_free_gpu(cluster, run.observer.samples[-1]["free_on"], uses[-1] if uses else {})
    node, samples = gpu[0] if gpu else "", _occupy_gpu(run, *gpu) if gpu else []
    hidden = checks.find_hidden_gpus(samples, cluster.gpus_by_node)
    fault = "a process allocates memory on a GPU without asking Ray for it"
    judge_use = partial(judge_gpu_use, samples, cluster.gpus_by_node)
    name, unable = check.GPU_USED_BEHIND_RAYS_BACK, "" if gpu else NO_IDLE
    located = node in hidden
    saw = join_names(hidden.get(node, (0, []))[1]) or "nothing"
    plant(run.measure, name, fault, judge_use, unable=unable, located=located, saw=saw)


def find_free_gpu(
    cluster: Cluster, free: dict[str, int], in_use: dict[str, Any]
) -> tuple[str, str] | None:
    """Find a GPU that no process uses, on a node whose GPUs are all free.

    Returns (node name, GPU UUID), or None if there is none.
    """
    for facts in cluster.facts:
        node, uses = facts["name"], in_use.get(facts["name"])
        all_free = 0 < cluster.gpus_by_node.get(node, 0) <= free.get(node, 0)
        if not all_free or not isinstance(uses, dict):  # a text: NVML has no data
            continue
        for gpu in facts["gpus"]:
            if "error" not in gpu and gpu["uuid"] not in uses:
                return node, gpu["uuid"]
    return None


def _occupy_gpu(run: Scenario, node: str, uuid: str) -> list[checks.Sample]:
    """Use this GPU from an actor; return the samples of that time."""
    import ray

    (node_id,) = (entry["id"] for entry in run.rig.cluster.nodes if entry["name"] == node)
    with run.as_control() as samples:
        run.observer.mark(f"a process on {node} uses a GPU that it did not request", fault=True)
        gpu_user = on_node(UnregisteredGpuUser, node_id).remote()
        try:
            ray.get(gpu_user.allocate.remote(uuid), timeout=GPU_CONTEXT_SECONDS)
            run.observer.wait(checks.FREE_LAG + 1)
        finally:
            run.rig.cluster.note_kill([node_id])
            ray.kill(gpu_user)
        run.observer.wait(GPU_FREED_SECONDS)  # later samples must not include this use
    return samples


def control_not_cancelled(run: Scenario, gang: str, name: str, fault: str) -> None:
    """Judge a waiting gang as removed although nothing ended it; it must be seen to stay.

    The proof is samples taken from now on, so an observer without samples does not pass.
    """
    since = len(run.observer.samples)
    gone = run.wait_gone(gang, judge.PENDING_SECONDS)
    looks = run.observer.samples[since:]
    judge_kept = partial(judge.judge_gone, gang, gone is not None, judge.PENDING_SECONDS)
    stays = bool(looks) and all(gang in sample["gangs"] for sample in looks)
    there = f"the gang still existed in all {len(looks)} samples"
    saw = there if stays else "the gang no longer exists, or no sample was taken"
    plant(run.measure, name, fault, judge_kept, located=stays, saw=saw)


def control_let_go(run: Scenario, gang: str) -> None:
    """Give a running gang back and judge it as undisturbed; the judge must find the loss."""
    run.observer.wait(LOOK_SECONDS)
    since = len(run.observer.samples)
    with run.as_control():
        run.drop(gang, "a running gang is removed")
        run.wait_gone(gang, DRAIN_SECONDS)
    fault = "a running gang is removed although its job has not ended"
    seen = run.observer.samples[max(since - 1, 0) :]
    plant(run.measure, check.GANG_GIVEN_BACK, fault, partial(judge.judge_held, gang, seen))


def control_partial_allocation(run: Scenario, need: int) -> None:
    """Let both jobs take single actors in turns, so that each holds a part and none holds all.

    The actors hold accelerators that no gang holds, and the observer pauses for AWAY_SECONDS. So
    the judge must find partial holds, leaks and a low sample rate.
    """
    jobs = run.rig.jobs
    with run.as_control():
        run.release_all()
        run.observer.single_actors = dict.fromkeys(jobs, need)
        start = run.observer.mark("single actors, in turns", fault=True)
        order = [jobs["AB"[turn % 2]] for turn in range(2 * need)]
        for job in order[: run.total]:  # all of them fit, in whatever order Ray places them
            job.call("naive", 1)
        full = run.until(lambda sample: checks.count_held(sample) >= run.total, FILL_SECONDS)
        for job in order[run.total :]:
            job.call("naive", 1)
        run.observer.look_away(AWAY_SECONDS)
        run.observer.wait(checks.FREE_LAG + LOOK_SECONDS)
        held = [sample for sample in run.observer.samples if sample["t"] >= (full or start)]
        run.rig.release()
        run.observer.single_actors = {}

    def judge_parts(trial: Trial) -> None:
        judge_partial_holds([held], trial)
        actors_only = [{**sample, "gangs": {}} for sample in held]  # as Ray's groups show it
        trial(check.LEAKED, checks.count_leaked(actors_only, run.total))
        trial(check.NOT_RELEASED, run.total - held[-1]["free"] if held else None)
        judge_rate(checks.sample_gaps(held), trial)

    parts = checks.partial_gangs(held[-1]) if held else {}
    fault = "two jobs start single actors in turns instead of a gang, and sampling pauses"
    saw = [f"job {job} held {part} of {size} accelerators" for job, part, size in parts.values()]
    located = len(parts) == len(jobs)
    plant(run.measure, check.NAIVE_ACTORS, fault, judge_parts, located=located, saw="; ".join(saw))


def control_two_that_fit(run: Scenario) -> None:
    """Judge two gangs that both fit as if only one could be placed.

    They fill all nodes, even if the number of accelerators is odd, and start no actors. The
    capacity of each node is judged as one less. So the judge must find two placed gangs, missing
    actors and overcommitted nodes.
    """
    half = max(run.total // 2, 1)
    with run.as_control():
        run.wait_idle()
        gangs = run.ask_together(("A", half), ("B", max(run.total - half, 1)))
        run.until(lambda sample: all(checks.is_whole(sample, gang) for gang in gangs))
        run.observer.wait(LOOK_SECONDS)
        last = run.observer.samples[-1]
        run.release_all()
    fewer = {node: count - 1 for node, count in run.capacity.items()}
    values = {
        check.PLACED_CONCURRENTLY: sum(checks.is_whole(last, gang) for gang in gangs),
        check.ACTORS_NOT_RUNNING: judge.missing_actors(last, half),
        check.OVERCOMMITTED: len(checks.find_overcommitted([last], fewer)),
    }
    fault = (
        "two gangs that fit together are judged as if they did not fit. They start no actors, and "
        "one accelerator of each node is not counted"
    )
    plant(run.measure, check.TWO_THAT_FIT, fault, values)


def control_late_release(run: Scenario) -> None:
    """Keep a gang waiting too long; it must be judged as never placed, and then as late."""
    limit = run.measure.contract.limit("GANG", check.PLACEMENT_DELAY)
    held_s = LATE_BY * (limit.high or 0.0) if limit else judge.PENDING_SECONDS
    with run.as_control():
        run.wait_idle()
        running = run.ask("A", run.total)
        run.wait_placed(running)
        since = run.observer.mark("B requests one, A keeps all", fault=True)
        waiting = run.ask("B", 1)
        placed = run.wait_placed(waiting, judge.PENDING_SECONDS)
        run.observer.wait(held_s - judge.PENDING_SECONDS)
        run.drop(running)
        delay = run.elapsed(since, run.wait_placed(waiting))
        run.release_all()
    fault = f"a gang keeps all accelerators for {held_s:.2g} s while another gang needs one of them"
    values = dict.fromkeys((check.NEVER_PLACED, check.BLOCKED_BEHIND), int(placed is None))
    plant(run.measure, check.LATE_RELEASE, fault, {**values, check.PLACEMENT_DELAY: delay})


def control_hold_and_wait(run: Scenario, half: int) -> None:
    """Make each job hold one group and ask for a second; the deadlock must be detected.

    Each job gives up after GIVE_UP_SECONDS, and what it gives up must be removed. The second job to
    give up may get its second group before it does.
    """
    with run.as_control():
        run.wait_idle()
        gangs = run.ask_together(("A", half, {"part": ".1"}), ("B", half, {"part": ".1"}))
        run.observer.gang_sizes = dict.fromkeys(gangs, 2 * half)
        run.until(lambda sample: checks.count_held(sample) == 2 * half)
        start = run.observer.mark("both ask for their second group", fault=True)
        for gang in gangs:
            run.rig.jobs[gang[0]].call("complete", run.rig.prefix + gang, half, GIVE_UP_SECONDS)
        seen_s = run.until(lambda _: bool(_deadlocks_since(run, start)), 2 * GIVE_UP_SECONDS)
        deadlocks = _deadlocks_since(run, start)
        outcomes = {gang: run.rig.jobs[gang[0]].call("outcome", OUTCOME_SECONDS) for gang in gangs}
        end = run.observer.mark("the waiting jobs gave up")
        gave_up = [gang for gang in gangs if outcomes[gang] != COMPLETE]
        for gang in gave_up:
            judge.judge_withdrawal(run, gang, end)
        run.release_all()
    run.measure.note("deadlock_seen_after", run.elapsed(start, seen_s), "s")
    saw = "; ".join(f"{hold.describe()}, outcome: {outcomes[hold.gang]}" for hold in deadlocks)
    fault = "each job requests half of its gang, then the other half as a second group"
    located = {hold.job for hold in deadlocks} == set(run.rig.jobs) and bool(gave_up)
    name, values = check.TWO_GROUPS_PER_JOB, {check.DEADLOCKS: len(deadlocks)}
    plant(run.measure, name, fault, values, located=located, saw=saw or "no deadlock")


def _deadlocks_since(run: Scenario, start: float) -> list[checks.PartialHold]:
    """Find jobs that hold and wait for each other, in the samples since `start`."""
    seen = [sample for sample in run.observer.samples if sample["t"] >= start]
    return checks.find_deadlocks(seen, DEADLOCK_SECONDS)


def control_fragments(measure: Recorder, nodes: dict[str, int]) -> None:
    """Judge a PACK gang that lies on several nodes as if it were the waiting STRICT_PACK gang."""
    fragments = {check.PLACED_IN_FRAGMENTS: len(nodes) if len(nodes) > 1 else 0}
    fault = "a PACK gang on several nodes replaces the STRICT_PACK gang"
    saw = f"the gang is on {join_names(nodes) or 'no node'}"
    plant(measure, check.PACK_PASSED_OFF_AS_STRICT_PACK, fault, fragments, saw=saw)


def control_wrong_strategy(measure: Recorder, nodes: dict[str, int], alone: bool = False) -> None:
    """Judge a SPREAD gang that lies on several nodes as if it had asked for one node.

    `alone`: on the only node, a PACK gang is judged as if it had asked for several nodes.
    """
    fault, asked = "a SPREAD gang on several nodes replaces a STRICT_PACK gang", "STRICT_PACK"
    name = check.SPREAD_PASSED_OFF_AS_STRICT_PACK
    if alone:
        fault, asked = "a PACK gang on the node replaces a STRICT_SPREAD gang", "STRICT_SPREAD"
        name = check.PACK_PASSED_OFF_AS_STRICT_SPREAD
    violation = checks.explain_misplaced(asked, nodes, nodes)
    saw = violation or f"the gang is on {join_names(nodes) or 'no node'}"
    plant(measure, name, fault, {check.MISPLACED: int(bool(violation))}, saw=saw)
