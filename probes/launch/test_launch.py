"""Tests that a user can launch a job without help, by following the documented path."""

import os
import shutil

import pytest

from probes.acceptance.criteria.criterion import exactly
from probes.cluster.dashboard import ignored_address
from probes.findings import finding, join_names
from probes.launch.documented_path import follow_path, make_user_home
from probes.launch.ranks import (
    AnnouncedJob,
    all_lack,
    announced_ranks,
    group_by_problem,
    identify_nodes,
    wrong_ranks,
)


@pytest.mark.criterion("LAUNCH")
def test_documented_path_starts_a_correct_job(cluster, measure):
    """The documented commands, typed into a clean shell, start a job whose ranks are all right.

    Each rank runs on a node of this cluster, on a GPU of its own where GPUs are real, and its
    RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are right and consistent.  The same
    job with one variable taken away must be caught.
    """
    if not cluster.dashboard:
        pytest.fail("the cluster has no dashboard, so no job can be submitted", pytrace=False)
    if ignored := ignored_address(cluster.dashboard):
        measure.progress(f"launch: {ignored}")
        measure.covered(ignored)
    home = make_user_home("/tmp")
    cluster.cleanup.register("folder", str(home))
    try:
        measure.progress("launch: the documented path in a clean shell")
        transcript = follow_path(cluster, home)
        shutil.rmtree(home / "myjob", ignore_errors=True)
        measure.progress("launch: the same with a missing variable")
        doctored = follow_path(cluster, home, extra=doctored_options(cluster.size))
    except FileNotFoundError as error:
        pytest.fail(
            f"a user who logs in here finds no command {error.filename!r}. Install seatrial into "
            "the environment of this Python: pip install -e .",
            pytrace=False,
        )
    finally:
        cluster.cleanup.remove_now(home)
    judge_transcript(cluster, transcript, measure)
    control_missing_variable(cluster, doctored, measure)
    if refused := transcript.stop_error or doctored.stop_error:
        pytest.fail(refused, pytrace=False)


def doctored_options(size):
    """Make the control's options: no MASTER_PORT and, of several ranks, one rank less."""
    fewer = ["--workers", str(size - 1)] if size > 1 else []
    return ["--unset", "MASTER_PORT", *fewer]


def judge_transcript(cluster, transcript, measure):
    """Judge the ranks, the exit code, and the time to the first step."""
    job = read_job(cluster, transcript)
    wrong, ranks = wrong_ranks(job), len(job.rows)
    note = "the job announced no rank"
    measure("wrong_ranks", len(wrong) if ranks else None, samples=ranks, note=note)
    measure("exit_code", transcript.exit_code)
    measure("ranks", ranks, limit=exactly(cluster.size, "ranks", "one rank per accelerator"))
    measure("time_to_first_step", transcript.first_step, note="no step was seen")
    measure.keep(
        "transcript.txt",
        transcript.text,
        kind="log",
        caption="the documented path, as a terminal showed it",
    )
    measure.covered(
        f"one job of {ranks} ranks, submitted through the dashboard by user id {os.getuid()}"
    )
    if transcript.exit_code != 0:
        last = next((line for line in reversed(transcript.lines) if line.strip()), "")
        statement = f"`{transcript.failed_command}` ended with {transcript.exit_code}: {last[:200]}"
        measure.explain(finding("LAUNCH-FAILED", statement))
    if ranks:
        explain_wrong_ranks(wrong, measure)


def read_job(cluster, transcript):
    """Read the ranks that the job announced, and the nodes of the cluster under test."""
    nodes = identify_nodes(cluster.known_nodes(), cluster.facts)
    on_gpu = cluster.on_gpu and transcript.exit_code == 0  # a job that failed names no device
    return AnnouncedJob(announced_ranks(transcript.text), cluster.size, nodes, on_gpu)


def explain_wrong_ranks(wrong, measure):
    """Make one finding for each problem, with all ranks that have it."""
    for problem, ranks in group_by_problem(wrong).items():
        names = [f"rank {each.rank}" for each in ranks]
        hosts = list(dict.fromkeys(each.host for each in ranks if each.host))
        where = f"{join_names(names)} on {join_names(hosts)}" if hosts else join_names(names)
        statement = f"{where}: {problem.found}. Expected: {problem.expected}."
        known = {"rank": ranks[0].rank}
        measure.explain(finding(problem.code, statement, [*names, *hosts], names=known))


def control_missing_variable(cluster, doctored, measure):
    """Check that the job without MASTER_PORT, by one rank less, fails for that reason alone."""
    job, trial = read_job(cluster, doctored), measure.trial()
    wrong = wrong_ranks(job) if job.rows else []
    caption = "the same without MASTER_PORT and with one rank less: it must fail"
    measure.keep("transcript-control.txt", doctored.text, kind="log", caption=caption)
    problems = [problem.found for problem in group_by_problem(wrong)]
    judge_transcript(cluster, doctored, trial)
    announced = [each for each in wrong if each.rank not in job.missing]
    ended = doctored.exit_code is not None and doctored.exit_code > 0  # below 0: it was killed
    measure.control(
        "missing variable",
        "the same job is launched without MASTER_PORT and with one rank less",
        trial if job.rows else None,
        located=ended and all_lack(announced, "MASTER_PORT", len(job.rows)),
        saw=f"{len(wrong)} ranks: {join_names(problems)}; exit code {doctored.exit_code}"
        if wrong
        else "no rank",
        without=() if cluster.size > 1 else ("ranks",),
    )
