"""Tests that a user can launch a job without help, by following a guide."""

import pytest

from probes.launch.controls import (
    control_guide,
    control_job_network,
    control_missing_variable,
    control_planted_errors,
    control_user,
)
from probes.launch.judge import (
    judge_guide,
    judge_network,
    judge_ranks,
    judge_training,
    judge_user,
    keep_transcript,
)
from probes.launch.path.documented_path import GuidedCluster
from probes.launch.prepare import launch_jobs


@pytest.mark.criterion("LAUNCH")
def test_documented_path_starts_a_correct_job(cluster, terms, measure):
    """The guide's commands, typed by another user in an empty home, start a job that is all right.

    Each rank runs on a node of this cluster, on a GPU of its own where GPUs are real, with right
    variables.  All ranks begin and end with the same weights, each sample has one rank, the logged
    loss is the mean of all and falls, rank 0 alone exports the model and another rank loads it.
    The job's own bytes take the agreed fabric.  The same job with errors must be caught.
    """
    jobs = launch_jobs(cluster, terms, measure)
    path = GuidedCluster(cluster, terms, jobs.guide)
    judge(path, jobs, measure)
    control(path, jobs, measure)
    if jobs.stop_error:
        pytest.fail(jobs.stop_error, pytrace=False)


def judge(path, jobs, measure):
    """Judge the guide, its user, and the job that came of it; keep the evidence."""
    cluster, terms, guide = path.cluster, path.terms, jobs.guide
    whose = "seatrial's own guide" if guide.own else f"the guide {guide.name}"
    caption = f"{whose}, sha256 {guide.sha256[:16]}, as it was followed"
    measure.keep("guide.md", guide.text, kind="log", caption=caption)
    keep_transcript(jobs.said, measure, "transcript.txt", "the guide, as typed")
    judge_guide(guide, host_names(cluster), measure)
    if judges_user(cluster, terms):
        judge_user(jobs.identity, jobs.why_same, measure)
    job = judge_ranks(path, jobs.said, measure)
    judge_training(job, jobs.said, measure)
    if judges_network(cluster, terms):
        judge_network(job, terms.fabric, jobs.sent, jobs.said, measure)
    measure.covered(f"{whose}: one job of {len(job.rows)} ranks; {jobs.describe_user()}")


def control(path, jobs, measure):
    """Judge the jobs with errors, each with its own evidence."""
    cluster, terms = path.cluster, path.terms
    for name, said, caption in (
        ("transcript-control.txt", jobs.doctored, "without MASTER_PORT, one rank less: must fail"),
        ("transcript-planted.txt", jobs.planted, "with planted errors: must be judged wrong"),
    ):
        keep_transcript(said, measure, name, caption)
    control_guide(path.guide, host_names(cluster), measure)
    if judges_user(cluster, terms):
        control_user(jobs.us, jobs.why_same, measure)
    control_missing_variable(path, jobs.doctored, measure)
    control_planted_errors(path, jobs.planted, measure)
    if judges_network(cluster, terms):
        control_job_network(path, jobs.astray, jobs.planted, measure)


def judges_user(cluster, terms):
    """Return whether another user must have followed the guide."""
    return terms.launch.user != "own" and cluster.kind != "local"


def judges_network(cluster, terms):
    """Return whether a job's bytes leave its nodes, and over what is agreed."""
    return bool(terms.fabric) and len(cluster.nodes) > 1 and cluster.kind != "local"


def host_names(cluster):
    """List the names of the cluster's hosts."""
    return sorted({node["host"] for node in cluster.known_nodes()})
