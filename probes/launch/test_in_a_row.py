"""Tests that jobs which are submitted one after the other leave nothing."""

import pytest

from probes.cluster.room.free_room import busy_accelerators
from probes.cluster.unique_token import make_unique_token
from probes.launch.job.announcements import announced_ranks
from probes.launch.job.held_nodes import NodeNotFree, hold_node
from probes.launch.job.job_processes import (
    JobState,
    leave_orphan,
    left_of_jobs,
    names_of,
    running_processes,
    wait_until_gone,
)
from probes.launch.judge import judge_job, keep_transcript
from probes.launch.prepare import prepare_path
from probes.launch.test_stopped_job import PATIENCE_S, judge_left

JOBS = 8


@pytest.mark.criterion("LAUNCH")
@pytest.mark.tier("soak")
def test_eight_jobs_in_a_row_leave_nothing(cluster, terms, measure):
    """Eight users type the same commands one after the other; each job is right, and none stays.

    What a job's ranks start has its name.  What holds a node afterwards must be seen.
    """
    nodes, idle, left, ranks = cluster.nodes, busy_accelerators(cluster), [], 0
    with prepare_path(cluster, terms, measure) as path:
        for number in range(1, JOBS + 1):
            measure.progress(f"launch: job {number} of {JOBS}")
            said = path.follow()
            keep_transcript(said, measure, f"transcript-{number}.txt", f"job {number} of {JOBS}")
            judge_job(path, said, measure, on=f"job {number} of {JOBS}")
            rows = announced_ranks(said.text)
            patience = 0 if any(state and not state.empty for state in left) else PATIENCE_S
            left.append(left_after(cluster, nodes, rows, idle, patience))
            ranks += len(rows)
    note = "a job did not say its name and processes, or a node did not answer"
    judge_left(cluster, merged(left), measure, note)
    control_leftovers(cluster, idle, measure)
    measure.covered(f"{JOBS} jobs in a row, {ranks} ranks in all")


def left_after(cluster, nodes, rows, idle, patience):
    """Return what is left of a job after so many seconds; None if that cannot be known."""
    known = rows and names_of(rows) and all("pid" in row and "node" in row for row in rows)
    if not known:
        return None
    return wait_until_gone(lambda: left_of_jobs(cluster, nodes, rows, idle), patience)


def merged(left):
    """Join what jobs have left; None if one is not known."""
    if None in left:
        return None
    processes = {}
    for state in left:
        for id, found in state.processes.items():
            processes[id] = {**processes.get(id, {}), **found}
    return JobState(processes, max(state.busy for state in left))


def control_leftovers(cluster, idle, measure):
    """Check that an orphan of a job on the last node, which is held, is seen by the job's name."""
    node, trial, name = cluster.nodes[-1], measure.trial(), make_unique_token()
    try:
        with hold_node(cluster, node):
            cluster.on_each_node(leave_orphan, name, nodes=[node])
            seen = cluster.on_each_node(running_processes, [name], [], nodes=[node])
            judge_left(cluster, JobState(seen, busy_accelerators(cluster, idle)), trial)
    except NodeNotFree as error:
        pytest.fail(f"{error}: wait until no other job runs", pytrace=False)
    named = {suspect for one in trial.findings for suspect in one.suspects}
    fault = f"a process whose parent died stays on {node['name']}, whose accelerators are held"
    measure.control("leftovers", fault, trial, located=node["name"] in named)
