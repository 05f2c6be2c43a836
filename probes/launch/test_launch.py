"""Tests that the documented path starts a correct job, every time, by each launcher."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from probes.check.judging import condition_holds, plant
from probes.cluster.ask import make_unique_token
from probes.cluster.room import busy_accelerators
from probes.cluster.shared_folder import find_folder_problem
from probes.launch import controls, judge
from probes.launch import criterion as check
from probes.launch import job_processes as processes
from probes.launch.controls import control_missing_rank, launch_jobs, prepare_path
from probes.launch.guide import SKIP, GuidedCluster, new_name
from probes.launch.job_processes import JobState, NodeNotFree, hold_node
from probes.launch.judge import judge_job, keep_transcript
from probes.launch.ranks import all_lack, wrong_ranks
from probes.launch.test_failing_job import PATIENCE_S, judge_left
from probes.launch.training import announced_ranks, removed_coordinator
from probes.session.config import RUN
from probes.session.fixtures import shared_folder
from reports.numbers import quantity


@pytest.mark.criterion("LAUNCH")
def test_documented_path_starts_a_correct_job(cluster, terms, measure):
    """The guide's commands, typed in an empty home folder, start a correct training job.

    Each rank runs on a node of this cluster, on a GPU of its own where GPUs are real, with right
    variables.  All ranks begin and end with the same weights, each sample has one rank, the logged
    loss is the mean of all and falls, rank 0 alone exports the model and another rank loads it.
    The job's own bytes take the agreed fabric.  The same job with errors must be caught.
    """
    jobs = launch_jobs(cluster, terms, measure)
    path = GuidedCluster(cluster, terms, jobs.guide)
    judge_jobs(path, jobs, measure)
    control_jobs(path, jobs, measure)
    if jobs.stop_error:
        pytest.fail(jobs.stop_error, pytrace=False)


def judge_jobs(path, jobs, measure):
    """Judge the guide, its user, and the job that came of it; keep the evidence."""
    cluster, terms, guide = path.cluster, path.terms, jobs.guide
    whose = "seatrial's own guide" if guide.own else f"the guide {guide.name}"
    caption = f"{whose}, sha256 {guide.sha256[:16]}, as it was read; transcript.txt has it as typed"
    measure.keep("guide.md", guide.text, kind="log", caption=caption)
    keep_transcript(jobs.said, measure, "", "the guide, as typed")
    settings = judge.find_harmful_settings(path, jobs.said, controls.plain_options(path), measure)
    judge.judge_guide(guide, host_names(cluster), measure, terms.launch.values, settings)
    if guide.skipped:
        lines = ", ".join(f"{first} to {last}" for first, last in guide.skipped)
        blocks = f"{quantity(len(guide.skipped), 'blocks')} of the guide, marked with `{SKIP}`"
        measure.covered(f"seatrial did not type {blocks}: lines {lines}")
    if condition_holds(check.RIGHTS_OF_USER, cluster, terms):
        judge.judge_user(jobs.identity, jobs.why_same, measure)
    job = judge.judge_ranks(path, jobs.said, measure)
    judge.judge_training(job, jobs.said, measure)
    if condition_holds(check.SHARE_ON_AGREED_NETWORK, cluster, terms):
        judge.judge_network(job, terms.fabric, jobs.sent, jobs.said, measure, jobs.idle)
    ranks = quantity(len(job.rows), "ranks")
    measure.covered(f"{whose}: one job of {ranks}; {jobs.describe_user()}")


def control_jobs(path, jobs, measure):
    """Judge the jobs with errors, each with its own evidence."""
    cluster, terms = path.cluster, path.terms
    caption = "the job without MASTER_PORT and with fewer ranks, which must fail"
    keep_transcript(jobs.doctored, measure, "control", caption)
    caption = "the job with planted errors, which must be judged wrong"
    keep_transcript(jobs.planted, measure, "planted", caption)
    controls.control_guide(path, host_names(cluster), measure)
    if condition_holds(check.RIGHTS_OF_USER, cluster, terms):
        controls.control_user(jobs.us, jobs.why_same, measure)
    controls.control_missing_variable(path, jobs.doctored, measure)
    controls.control_planted_errors(path, jobs.planted, measure)
    if condition_holds(check.SHARE_ON_AGREED_NETWORK, cluster, terms):
        controls.control_job_network(path, jobs.astray, jobs.planted, measure)


def host_names(cluster):
    """List the names of the cluster's hosts."""
    return sorted({node["host"] for node in cluster.known_nodes()})


WAIT = ["--wait", "300"]  # the second of two jobs that do not fit at once waits


@pytest.mark.criterion("LAUNCH")
@pytest.mark.tier("standard")
def test_the_same_commands_work_every_time(cluster, terms, measure):
    """The job runs correctly while one node, then another, is in use, so that rank 0 moves.

    Who types the same commands in two homes at the same time, with the same name for the job, gets
    two correct jobs.
    """
    with prepare_path(cluster, terms, measure) as path:
        firsts = held_back(path, measure)
        judge_two_users(path, measure)
    if len(cluster.nodes) > 1:
        judge_places(firsts, measure)


def judge_places(firsts, measure):
    """Judge on how many nodes rank 0 ran, one after the other; None for a job without a rank 0."""
    known = {first for first in firsts if first}
    note = "rank 0 did not report itself in the output of any job"
    measure(check.NODES_OF_RANK_0, len(known) or None, samples=len(firsts), note=note)


def held_back(path, measure):
    """Hold back a node, and then the one where rank 0 ran; return rank 0's node each time."""
    nodes = {node["id"]: node for node in path.cluster.nodes}
    if len(nodes) < 2:
        return []
    first = run_without(path, next(iter(nodes.values())), measure)
    return [first, run_without(path, nodes[first], measure)] if first in nodes else [first]


def run_without(path, node, measure):
    """Hold a node, judge the job on the rest, and return rank 0's node; None without a rank 0."""
    name = f"without {node['name']}"
    measure.progress(f"launch: a job {name}")
    with hold_node(path.cluster, node) as ranks:
        size = path.cluster.size - ranks
        said = path.follow(["--workers", str(size), *WAIT])
    keep_transcript(said, measure, name, f"the guide, while {node['name']} is reserved")
    job = judge_job(path, said, measure, on=f"job {name}", size=size)
    return job.rank0.get("node") if job.rank0 else None


def judge_two_users(path, measure):
    """Let the same commands be typed twice at once, each time for half of the accelerators.

    There are two users only where others can be made; else two shells of our own user.
    """
    size = max(1, path.cluster.size // 2)
    options = ["--workers", str(size), "--name", new_name(), *WAIT]
    who = "shell" if path.user.uid is None else "user"
    measure.progress(f"launch: two {who}s at once, with the same name for their job")
    with controls.new_user(path, measure) as second, second.start(options) as running:
        transcripts = [path.follow(options), running.wait()]
    for number, said in enumerate(transcripts, 1):
        caption = f"{who} {number} of two that typed the same commands at once"
        keep_transcript(said, measure, f"user{number}", caption)
        judge_job(path, said, measure, on=f"{who} {number} of two", size=size)
    control_missing_rank(path, transcripts[0], size, measure)


JOBS = 8


@pytest.mark.criterion("LAUNCH")
@pytest.mark.tier("soak")
def test_eight_jobs_in_a_row_leave_nothing(cluster, terms, measure):
    """The same commands, typed eight times in a row, start correct jobs that leave nothing behind.

    What a job's ranks start has its name.  What holds a node afterwards must be seen.
    """
    nodes, idle, left, ranks = cluster.nodes, busy_accelerators(cluster), [], 0
    with prepare_path(cluster, terms, measure) as path:
        for number in range(1, JOBS + 1):
            measure.progress(f"launch: job {number} of {JOBS}")
            said = path.follow()
            name = f"job {number} of {JOBS}"
            keep_transcript(said, measure, str(number), name)
            judge_job(path, said, measure, on=name)
            rows = announced_ranks(said.text)
            patience = 0 if any(state and not state.empty for state in left) else PATIENCE_S
            left.append(left_after(cluster, nodes, rows, idle, patience))
            ranks += len(rows)
    note = "a job did not report its name and process ids, or a node did not answer"
    judge_left(cluster, merged(left), measure, note)
    control_leftovers(cluster, idle, measure)
    measure.covered(f"{JOBS} jobs in a row, {ranks} ranks in all")


def left_after(cluster, nodes, rows, idle, patience):
    """Return what is left of a job after so many seconds; None if that cannot be known."""
    placed = all("pid" in row and "node" in row for row in rows)
    if not (rows and processes.names_of(rows) and placed):
        return None
    left = partial(processes.left_of_jobs, cluster, nodes, rows, idle)
    return processes.wait_until_gone(left, patience)


def merged(left):
    """Join what jobs have left; None if one is not known."""
    if None in left:
        return None
    joined = {}
    for state in left:
        for id, found in state.processes.items():
            joined[id] = {**joined.get(id, {}), **found}
    return JobState(joined, max(state.busy for state in left))


def control_leftovers(cluster, idle, measure):
    """Check that an orphan of a job on the last node, which is held, is seen by the job's name."""
    node, name = cluster.nodes[-1], make_unique_token()
    try:
        with hold_node(cluster, node):
            cluster.on_each_node(processes.leave_orphan, name, nodes=[node])
            seen = cluster.on_each_node(processes.running_processes, [name], [], nodes=[node])
            state = JobState(seen, busy_accelerators(cluster, idle))
    except NodeNotFree as error:
        pytest.fail(str(error), pytrace=False)
    fault = f"a process without a parent, and held accelerators, are left on {node['name']}"
    judge_state = partial(judge_left, cluster, state)
    plant(measure, check.LEFTOVERS, fault, judge_state, suspects=[node["name"]])


# Megatron-LM does not start without it where tensors or sequences are parallel, up to Hopper
# (megatron/training/arguments.py). What DeepSpeed and Accelerate read is in REQUIRED_VARIABLES.
MEGATRON = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
NOT_INSTALLED = "Ray Train cannot be used"
ONCE = ["--restarts", "0"]


@pytest.mark.criterion("LAUNCH")
@pytest.mark.tier("soak")
def test_other_launchers_give_each_rank_what_it_needs(cluster, terms, measure, request):
    """torchrun and Ray Train start the same job: each rank has all variables that it needs.

    DeepSpeed, Accelerate and Megatron read them.  A variable of Megatron's that the job forgets
    must be found on each rank.
    """
    with (
        shared_folder(request.config.stash[RUN]) as folder,
        prepare_path(cluster, terms, measure) as path,
    ):
        open_folder(cluster, folder)
        settings = [word for pair in MEGATRON.items() for word in ("--set", "=".join(pair))]
        shown = path.show_options(MEGATRON)
        for launcher in terms.launch.launchers:
            measure.progress(f"launch: the same job, started by {launcher}")
            out = ["--launcher", launcher, "--out", str(folder / launcher)]
            with removed_coordinator(cluster):
                said = path.follow([*out, *ONCE, *settings, *shown])
            keep_transcript(said, measure, launcher, f"the guide's job, started by {launcher}")
            judge_launcher(path, launcher, said, measure)
        measure.progress("launch: the same job without a variable that Megatron needs")
        unset = [word for name in MEGATRON for word in ("--unset", name)]
        forgotten = path.follow([*ONCE, *unset, *shown])
    control_forgotten(path, forgotten, measure)
    measure.covered(f"one job with each launcher: {', '.join(terms.launch.launchers)}")


def open_folder(cluster, folder):
    """Let the job's user write into the folder; fail the probe unless each node sees it."""
    cause, _ = find_folder_problem(cluster, folder or Path())
    if cause:
        pytest.fail(f"this test needs the shared folder of the contract: {cause}", pytrace=False)
    folder.parent.chmod(0o711)
    folder.chmod(0o1777)


def judge_launcher(path, launcher, said, measure):
    """Judge a launcher's job; one that is not installed is not judged."""
    if NOT_INSTALLED in said.text:
        note = f"{launcher} is not installed in the ranks' environment"
        for name in (check.WRONG_RANKS, check.EXIT_CODE, check.RANKS):
            measure(name, None, on=launcher, note=note)
        return
    judge_job(path, said, measure, on=launcher, more=MEGATRON)


def control_forgotten(path, forgotten, measure):
    """Check that every rank is found which lacks the variable that the job forgot."""
    job = judge.read_job(path, forgotten, more=MEGATRON)
    wrong = wrong_ranks(job)
    located = all(all_lack(wrong, name, job.size) for name in MEGATRON)
    count = len(wrong) if job.rows else None
    fault = f"the job does not set {', '.join(MEGATRON)}, which Megatron needs"

    def judge_wrong(trial):
        trial(check.WRONG_RANKS, count, samples=len(job.rows))

    plant(measure, check.FORGOTTEN_VARIABLE, fault, judge_wrong, located=located)
