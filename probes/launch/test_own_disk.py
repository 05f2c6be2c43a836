"""Tests that a job goes on from a checkpoint that no shared folder keeps."""

import pytest

from probes.findings import finding, join_names
from probes.launch.job.own_disk import is_shared, own_folders, ranks_that_began_elsewhere
from probes.launch.judge import NOT_ENDED, judge_job, keep_transcript, name_ranks
from probes.launch.path.documented_path import new_name
from probes.launch.prepare import prepare_path

SAVED, STEPS = 10, 20  # steps of the first job, and of both together


@pytest.mark.criterion("LAUNCH")
@pytest.mark.tier("standard")
def test_a_job_goes_on_from_one_nodes_own_disk(cluster, terms, measure):
    """A job saves into a folder that its nodes do not share.  Started again, all its ranks go on.

    The first job began at step 0: judged as the second, each of its ranks must be found.
    """
    with prepare_path(cluster, terms, measure) as path, own_folders(cluster, new_name()) as folder:
        shared = is_shared(cluster, folder)
        save = ["--checkpoints", folder, "--save-every", str(SAVED), "--keep-last", "1"]
        jobs = {}
        for name, steps in (("first job", SAVED), ("second job", STEPS)):
            measure.progress(f"launch: {name} of two, with checkpoints on a node's own disk")
            said = path.follow([*save, "--steps", str(steps)])
            file = f"transcript-{name.replace(' ', '-')}.txt"
            keep_transcript(said, measure, file, f"{name} of two with checkpoints on an own disk")
            jobs[name] = judge_job(path, said, measure, on=name)
        larger = measure.trial()
        judge_job(path, said, larger, size=cluster.size + 1)
    judge_resume(jobs["second job"], measure, shared=shared)
    trial = measure.trial()
    judge_resume(jobs["first job"], trial)
    ranks = {f"rank {rank}" for rank in range(cluster.size)}
    named = {suspect for one in trial.findings for suspect in one.suspects}
    fault = "a job that began at step 0 is judged as the one that was started again"
    measure.control("began anew", fault, trial, located=ranks <= named)
    measure.control("missing rank", "the job is judged as one that has a rank more", larger)
    measure.covered(f"two jobs, the second from step {SAVED} on")


def judge_resume(job, measure, *, shared=False):
    """Judge the ranks that did not go on from the checkpoint of the first job's last step.

    Where the nodes share the folder, nothing is shown of a disk of their own.
    """
    if shared:
        note = "the nodes share /tmp, so that no checkpoint is on one node alone"
        measure("ranks_not_resumed", None, note=note)
        return
    wrong = ranks_that_began_elsewhere(job.rows, SAVED) if job.ended else []
    count = len(wrong) if job.ended and job.rows else None
    measure("ranks_not_resumed", count, samples=len(job.rows), note=NOT_ENDED)
    if wrong:
        on = [row.get("host", "unknown") for row in wrong]
        names, hosts = name_ranks([row["RANK"] for row in wrong], on)
        found = ", ".join(dict.fromkeys(f"step {row.get('from', 'unknown')}" for row in wrong))
        statement = (
            f"{join_names(names)} on {join_names(hosts)}: began at {found}. "
            f"Expected: step {SAVED}, whose checkpoint is complete on one node."
        )
        measure.explain(finding("LAUNCH-RESUME", statement, [*names, *hosts]))
