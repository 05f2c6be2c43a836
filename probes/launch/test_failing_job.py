"""Tests that a job which fails tells its user so, and why."""

import pytest

from probes.findings import finding, join_names
from probes.launch.job.failing_job import LAST_LINES, failure_of, hidden_error
from probes.launch.judge import keep_transcript, read_job
from probes.launch.prepare import prepare_path

SWALLOWS = "python3 -c 'raise KeyError(\"planted error\")' 2>/dev/null || true\n"


@pytest.mark.criterion("LAUNCH")
def test_a_failing_job_says_why(cluster, terms, measure):
    """An exception in the last rank ends the job with an exit code, and its error is readable.

    The last 40 lines name the exception, its rank and its host.  A script that swallows its error
    must be caught.
    """
    with prepare_path(cluster, terms, measure) as path:
        measure.progress("launch: a job whose last rank raises an exception")
        said = path.follow(["--plant", "error", "--restarts", "0"])
        swallowed = path.ask(SWALLOWS)
    keep_transcript(
        said, measure, "transcript-failing.txt", "a job whose last rank raises KeyError"
    )
    rank = cluster.size - 1
    host = host_of(read_job(path, said), str(rank))
    failure = failure_of("exception", "KeyError", rank, host)
    judge_failure(failure, said, measure)
    measure.covered(f"one job that failed on rank {rank} of {cluster.size}")
    trial = measure.trial()
    judge_failure(failure, swallowed, trial)
    measure.control("swallowed error", "a script fails and ends with 0, without a word", trial)


def host_of(job, rank):
    """Return the name of the host where a rank ran; a job that announced none names no host."""
    row = next((row for row in job.rows if row.get("RANK") == rank), {})
    return row.get("host", "unknown-host")


def judge_failure(failure, said, measure):
    """Judge the exit code, what the last lines name, and the time until then."""
    name, hidden, missing = failure.name, hidden_error(said), failure.missing(said.lines)
    measure("hidden_errors", int(hidden), on=name)
    measure("facts_missing_from_error", len(missing), on=name, samples=len(failure.facts))
    ended = said.seconds if said.exit_code else None
    measure("time_to_error", ended, on=name, note="no error was seen")
    if hidden:
        statement = f"{name}: the job failed and ended with 0. Expected: another exit code."
        measure.explain(finding("LAUNCH-ERROR", statement))
    if missing:
        statement = (
            f"{name}: the last {LAST_LINES} lines of the failed job do not name "
            f"{join_names(missing)}. Expected: {join_names(failure.facts)}."
        )
        measure.explain(finding("LAUNCH-ERROR", statement))
