"""Tests that jobs which are submitted one after the other leave nothing."""

import pytest

from probes.cluster.room.free_room import busy_accelerators
from probes.launch.job.announcements import announced_ranks
from probes.launch.job.held_nodes import NodeNotFree, hold_node
from probes.launch.job.job_processes import (
    JobState,
    leave_orphan,
    left_of_jobs,
    processes_of_jobs,
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

    What a job starts has the job's id.  What holds a node afterwards must be seen.
    """
    ids, ranks, idle = [], 0, busy_accelerators(cluster)
    with prepare_path(cluster, terms, measure) as path:
        for number in range(1, JOBS + 1):
            measure.progress(f"launch: job {number} of {JOBS}")
            said = path.follow()
            keep_transcript(said, measure, f"transcript-{number}.txt", f"job {number} of {JOBS}")
            judge_job(path, said, measure, on=f"job {number} of {JOBS}")
            own = announced_ranks(said.text)
            ids.append(next((row["job"] for row in own if "job" in row), ""))
            ranks += len(own)
    known = all(ids)
    left = wait_until_gone(lambda: left_of_jobs(cluster, ids, idle), PATIENCE_S) if known else None
    judge_left(cluster, left, measure, "a node did not answer" if known else "a job has no id")
    control_leftovers(cluster, idle, measure)
    measure.covered(f"{JOBS} jobs in a row, {ranks} ranks in all")


def control_leftovers(cluster, idle, measure):
    """Check that an orphan of our own job on the last node, which is held, is seen by its id."""
    import ray

    node, trial = cluster.nodes[-1], measure.trial()
    own = ray.get_runtime_context().get_job_id()
    try:
        with hold_node(cluster, node):
            orphans = cluster.on_each_node(leave_orphan, nodes=[node]).get(node["id"], {})
            seen = cluster.on_each_node(processes_of_jobs, [own], nodes=[node])
            left = {pid: at for pid, at in seen.get(node["id"], {}).items() if pid in orphans}
            judge_left(
                cluster, JobState({node["id"]: left}, busy_accelerators(cluster, idle)), trial
            )
    except NodeNotFree as error:
        pytest.fail(f"{error}: wait until no other job runs", pytrace=False)
    named = {suspect for one in trial.findings for suspect in one.suspects}
    fault = f"a process whose parent died stays on {node['name']}, whose accelerators are held"
    measure.control("leftovers", fault, trial, located=node["name"] in named)
