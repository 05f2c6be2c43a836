"""Can a user launch a job without help, by following the documented path?"""

import shutil

import pytest

from probes.acceptance.criteria import exactly
from probes.findings import finding
from probes.launch.documented_path import follow_path, make_user_home, rank_variables, wrong_ranks


@pytest.mark.criterion("LAUNCH")
def test_documented_path_starts_a_correct_job(cluster, measure):
    """The documented commands, typed into a clean shell, start a job whose ranks are all right.

    RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT must be there and consistent on
    every rank.  The same job with one variable taken away must be caught.
    """
    if not cluster.dashboard:
        pytest.fail("the cluster has no dashboard, so no job can be submitted", pytrace=False)
    home = make_user_home("/tmp")
    cluster.cleanup.register("folder", str(home))
    try:
        measure.progress("launch: the documented path in a clean shell")
        transcript = follow_path(cluster, home)
        shutil.rmtree(home / "myjob", ignore_errors=True)
        measure.progress("launch: the same with a variable missing")
        doctored = follow_path(cluster, home, extra=["--unset", "MASTER_PORT"])
    finally:
        cluster.cleanup.remove_now(home)
    judge_transcript(cluster, transcript, measure)
    rows = rank_variables(doctored.text)
    wrong = wrong_ranks(rows, cluster.size) if rows else {}
    measure.control(
        "missing variable",
        "the same job is launched without MASTER_PORT",
        caught=len(wrong) == cluster.size and doctored.exit_code != 0 if rows else None,
        saw=f"{len(wrong)} ranks: {next(iter(wrong.values()))}; exit code {doctored.exit_code}"
        if wrong
        else "no rank",
    )


def judge_transcript(cluster, transcript, measure):
    """Exit code, ranks and the time to a first step."""
    rows = rank_variables(transcript.text)
    wrong = wrong_ranks(rows, cluster.size) if rows else {}
    note = "the job announced no rank"
    measure("wrong_ranks", len(wrong) if rows else None, samples=len(rows), note=note)
    measure("exit_code", transcript.exit_code)
    measure("ranks", len(rows), limit=exactly(cluster.size, "ranks", "one rank per accelerator"))
    measure("time_to_first_step", transcript.first_step, note="no step was seen")
    measure.keep(
        "transcript.txt",
        transcript.text,
        kind="log",
        caption="the documented path, as a terminal showed it",
    )
    measure.covered(f"one job of {len(rows)} ranks, submitted through the dashboard")
    if transcript.exit_code != 0:
        last = next((line for line in reversed(transcript.lines) if line.strip()), "")
        statement = f"`{transcript.failed_command}` ended with {transcript.exit_code}: {last[:200]}"
        measure.explain(finding("LAUNCH-FAILED", statement))
    for i, why in wrong.items():
        host = rows[i].get("host", "?")
        measure.explain(finding("LAUNCH-ENV", f"rank {i} on {host}: {why}", [f"rank {i}", host]))
