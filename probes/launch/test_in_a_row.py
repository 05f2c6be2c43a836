"""Tests that jobs which are submitted one after the other leave nothing."""

import pytest

from probes.launch.job.announcements import announced_ranks
from probes.launch.job.held_nodes import NodeNotFree, hold_node
from probes.launch.job.job_processes import (
    JobState,
    busy_accelerators,
    leave_orphan,
    observe_job,
    wait_until_gone,
    what_is_left,
)
from probes.launch.judge import judge_job, keep_transcript
from probes.launch.prepare import prepare_path
from probes.launch.test_stopped_job import FIRST_STEP_S, PATIENCE_S, judge_left

JOBS = 8
PACED = ["--pace-s", "0.6"]  # twelve seconds at least: time to see its processes on a busy node
SEEN_STEP = 1  # by then each rank has its process


@pytest.mark.criterion("LAUNCH")
@pytest.mark.tier("soak")
def test_eight_jobs_in_a_row_leave_nothing(cluster, terms, measure):
    """Eight users type the same commands one after the other; each job is right, and none stays.

    What holds a node afterwards must be seen.
    """
    rows, seen, idle = [], JobState({}, 0), busy_accelerators(cluster)
    with prepare_path(cluster, terms, measure) as path:
        for number in range(1, JOBS + 1):
            measure.progress(f"launch: job {number} of {JOBS}")
            with path.start(PACED) as running:
                running.wait_for_step(SEEN_STEP, FIRST_STEP_S)
                own = announced_ranks(running.transcript.text)
                seen = seen.joined(observe_job(cluster, own, idle))
                said = running.wait()
            keep_transcript(said, measure, f"transcript-{number}.txt", f"job {number} of {JOBS}")
            judge_job(path, said, measure, on=f"job {number} of {JOBS}")
            rows += own
    left = wait_until_gone(cluster, seen, PATIENCE_S, idle)
    note = "a job ended before all of its processes were seen"
    judge_left(cluster, None if seen.unseen or not rows else left, measure, note)
    control_leftovers(cluster, idle, measure)
    measure.covered(f"{JOBS} jobs in a row, {len(rows)} ranks in all")


def control_leftovers(cluster, idle, measure):
    """Check that an orphan on the last node, and its held accelerators, are seen."""
    node, trial = cluster.nodes[-1], measure.trial()
    try:
        with hold_node(cluster, node):
            orphans = cluster.on_each_node(leave_orphan, nodes=[node])
            before = JobState(orphans, 0)
            judge_left(cluster, what_is_left(cluster, before, idle), trial)
    except NodeNotFree as error:
        pytest.fail(f"{error}: wait until no other job runs", pytrace=False)
    named = {suspect for one in trial.findings for suspect in one.suspects}
    fault = f"a process whose parent died stays on {node['name']}, whose accelerators are held"
    measure.control("leftovers", fault, trial, located=node["name"] in named)
