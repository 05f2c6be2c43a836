"""Tests that jobs which are submitted one after the other leave nothing."""

import pytest

from probes.launch.job.announcements import announced_ranks
from probes.launch.job.held_nodes import NodeNotFree, hold_node
from probes.launch.job.job_processes import observe_job, wait_until_gone
from probes.launch.judge import judge_job, keep_transcript
from probes.launch.prepare import prepare_path
from probes.launch.test_stopped_job import judge_left

JOBS = 8
PATIENCE_S = 45  # then what is left is left


@pytest.mark.criterion("LAUNCH")
@pytest.mark.tier("soak")
def test_eight_jobs_in_a_row_leave_nothing(cluster, terms, measure):
    """Eight users type the same commands one after the other; each job is right, and none stays.

    What holds a node afterwards must be seen.
    """
    with prepare_path(cluster, terms, measure) as path:
        rows = []
        for number in range(1, JOBS + 1):
            measure.progress(f"launch: job {number} of {JOBS}")
            said = path.follow()
            keep_transcript(said, measure, f"transcript-{number}.txt", f"job {number} of {JOBS}")
            judge_job(path, said, measure, on=f"job {number} of {JOBS}")
            rows += announced_ranks(said.text)
    left, _ = wait_until_gone(cluster, observe_job(cluster, rows), PATIENCE_S)
    judge_left(cluster, left if rows else None, measure, "no job announced a rank")
    control_held_node(cluster, measure)
    measure.covered(f"{JOBS} jobs in a row, {len(rows)} ranks in all")


def control_held_node(cluster, measure):
    """Check that a process which still holds accelerators of the last node is seen."""
    node, trial = cluster.nodes[-1], measure.trial()
    try:
        with hold_node(cluster, node) as held:
            rows = [{"node": node["id"], "pid": str(held.pid)}]
            judge_left(cluster, observe_job(cluster, rows), trial)
    except NodeNotFree as error:
        pytest.fail(f"{error}: wait until no other job runs", pytrace=False)
    named = {suspect for one in trial.findings for suspect in one.suspects}
    fault = f"a process holds the accelerators of {node['name']}"
    measure.control("held node", fault, trial, located=node["name"] in named)
