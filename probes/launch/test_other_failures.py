"""Tests what a user learns from other failures: memory, a missing module, no room, silence."""

import pytest

from probes.cluster.room.free_room import busy_accelerators
from probes.findings import finding
from probes.launch.job.failing_job import failure_of
from probes.launch.job.job_processes import wait_until_free
from probes.launch.judge import keep_transcript, read_job
from probes.launch.prepare import prepare_path
from probes.launch.test_failing_job import SWALLOWS, host_of, judge_failure

NO_MEMORY = r"out of memory|OutOfMemory|can't allocate memory|not enough memory|Cannot allocate"
NO_ROOM = r"no free resources|not enough|insufficient|infeasible|no room|cannot be scheduled"
SILENT = r"stayed in|no progress|not answer|did not end|stuck|hangs?\b|time ?out|timed out"
FREE_S = 15  # within this time a user expects the accelerators back
ROOM_S = 10  # a job that cannot start says so after this time, in which it holds nothing


@pytest.mark.criterion("LAUNCH")
@pytest.mark.tier("standard")
def test_other_failures_say_why_and_hold_nothing(cluster, terms, measure):
    """Each job fails in its own way, says why in its last 40 lines, and holds nothing afterwards.

    Out of memory and silence name rank and host; a missing module, a wrong entry point and a lack
    of room are the whole job's.
    """
    rank, size = cluster.size - 1, cluster.size
    with prepare_path(cluster, terms, measure) as path:
        idle = busy_accelerators(cluster)
        for name, error, located, options, change in (
            ("out of memory", NO_MEMORY, True, ["--plant", "memory"], {}),
            ("silence", SILENT, True, ["--plant", "silence"], {}),
            ("missing module", "No module named", False, [], module("reference_trainr")),
            ("wrong entry point", "No such command", False, [], entry("lunch")),
            ("no room", NO_ROOM, False, ["--workers", str(size + 1), "--wait", str(ROOM_S)], {}),
        ):
            measure.progress(f"launch: {name}")
            with path.start([*options, "--restarts", "0"], change) as running:
                said = running.wait()
            held = wait_until_free(cluster, idle, FREE_S)
            file = f"transcript-{name.replace(' ', '-')}.txt"
            keep_transcript(said, measure, file, f"a job with this fault: {name}")
            host = host_of(read_job(path, said), str(rank))
            failure = failure_of(name, error, rank if located else None, host)
            judge_failure(failure, said, measure)
            judge_held(held, measure, name)
        swallowed = path.ask(SWALLOWS)
    trial = measure.trial()
    judge_failure(failure_of("exception", "KeyError", rank, "nowhere"), swallowed, trial)
    measure.control("swallowed error", "a script fails and ends with 0, without a word", trial)
    measure.covered("jobs that ran out of memory, fell silent, had no module, entry point or room")


def module(wrong):
    """Return the change of a user who writes the module's name wrongly."""
    return {"-m reference_trainer": f"-m {wrong}"}


def entry(wrong):
    """Return the change of a user who writes the module's command wrongly."""
    return {"reference_trainer launch": f"reference_trainer {wrong}"}


def judge_held(held, measure, name):
    """Judge the accelerators that a failed job still holds."""
    measure("held_accelerators", held, on=name)
    if held:
        statement = f"{name}: the failed job still holds {held} accelerators. Expected: none."
        measure.explain(finding("LAUNCH-LEFT", statement))
