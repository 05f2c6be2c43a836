"""What a user learns from a job that fails or is stopped, and what is left of it."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.check.recorder import Recorder
from probes.cluster.room import busy_accelerators
from probes.launch import job_processes
from probes.launch.job_processes import JobState, running_processes, still_running
from probes.launch.shell import Transcript
from probes.launch.test_failing_job import (
    host_of,
    judge_again,
    judge_failure,
    judge_left,
    judge_stop,
)
from probes.launch.test_launch import judge_places, left_after, merged
from probes.launch.training import failure_of
from reports.measurement import Verdict

ERROR = "Error: 1 attempts failed: rank 3 on node3 failed: KeyError: 'planted error'"
RANKS = [f"attempt=1 node=id{rank} host=node{rank} RANK={rank}" for rank in range(4)]


def verdicts(recorder: Recorder) -> dict[str, Verdict | None]:
    result = recorder.finish("finished", 1.0)
    return {one.name: one.verdict for one in result.measurements}


@pytest.mark.near_miss(
    "LAUNCH.facts_missing_from_error", "LAUNCH.hidden_errors", "LAUNCH.time_to_error"
)
def test_an_error_in_the_last_40_lines_is_useful(recorder: Recorder) -> None:
    said = Transcript([*RANKS, ERROR, *["Ray says goodbye"] * 39], 1, seconds=299.0)
    judge_failure(failure_of("exception", "KeyError", 3, "node3.cluster.example"), said, recorder)
    assert {*verdicts(recorder).values()} == {Verdict.PASS}


@pytest.mark.parametrize(
    ("lines", "missing"),
    [
        ([ERROR, *["Ray says goodbye"] * 40], "the error, the rank, the host"),
        (
            [*RANKS, "KeyError: 'planted error'"],
            "the rank, the host",
        ),
        (["rank 13 on node31 failed: KeyError"], "the rank, the host"),
        (["rank 3 on node3 failed"], "the error"),
        ([], "the error, the rank, the host"),
    ],
)
def test_an_error_that_does_not_say_where_or_what_is_not(
    recorder: Recorder, lines: list[str], missing: str
) -> None:
    judge_failure(failure_of("exception", "KeyError", 3, "node3"), Transcript(lines, 1), recorder)
    result = recorder.finish("finished", 1.0)
    assert [f.statement for f in result.findings] == [
        f"the last 40 lines of the failing test job 'exception' do not name {missing}. "
        "Expected: the error, the rank, the host."
    ]


def test_an_error_that_is_swallowed_is_found(recorder: Recorder) -> None:
    judge_failure(failure_of("x", "KeyError", 3, "node3"), Transcript([ERROR], 0), recorder)
    result = recorder.finish("finished", 1.0)
    assert [one.verdict for one in result.measurements] == [
        *(Verdict.FAIL, Verdict.PASS, Verdict.UNPROVEN)
    ]
    assert result.findings[0].statement == (
        "the failing test job 'x' ended with exit code 0. Expected: above 0."
    )


def test_a_failure_of_the_whole_job_names_no_rank() -> None:
    assert failure_of("no room", "no free").missing(["no free resources"]) == []
    rows: Any = SimpleNamespace(rows=[{"RANK": "3", "host": "n3"}])
    assert (host_of(rows, "3"), host_of(rows, "4")) == ("n3", "unknown-host")


# What is left.


def test_a_process_and_what_it_started_are_seen_until_they_end() -> None:
    code = "import subprocess as s; s.Popen(['sleep', '60']); print(flush=True); s.run('cat')"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as parent:
        assert parent.stdout
        parent.stdout.readline()
        seen = running_processes([], [parent.pid])
        assert parent.pid in seen
        assert len(seen) in (2, 3)
        assert still_running(seen) == seen
        assert still_running({**seen, parent.pid: 1}).keys() == seen.keys() - {parent.pid}
        parent.kill()
        parent.wait()
        child = seen.keys() - {parent.pid}
        assert still_running(seen).keys() == child  # it outlives its parent
        subprocess.run(["kill", "-9", *map(str, child)], check=True)
    assert running_processes([], [parent.pid]) == {}


def cluster_that(left: list[dict[str, Any]], free: float) -> Any:
    answers = iter(left)
    return SimpleNamespace(
        nodes=[{"id": "a"}, {"id": "b"}],
        node_names={"a": "n0", "b": "n1"},
        on_each_node=lambda function, *words, **options: next(answers),
        ray_gpu_count=4,
        resource="GPU",
    )


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    import ray

    available = {"GPU": 4.0}
    monkeypatch.setattr(ray, "available_resources", lambda: available)
    monkeypatch.setattr(job_processes, "POLL_SECONDS", 0.0)
    return available


def test_what_is_left_is_waited_for(free: dict[str, float]) -> None:
    before = JobState({"a": {7: 1}, "b": {8: 2}}, 4)
    cluster = cluster_that([{"a": {7: 1}, "b": {}}, {"a": {}, "b": {}}], 4)
    left = job_processes.wait_until_gone(lambda: job_processes.what_is_left(cluster, before), 60)
    assert left is not None
    assert left.empty


def test_a_node_that_does_not_answer_keeps_what_it_had(free: dict[str, float]) -> None:
    before = JobState({"a": {7: 1}, "b": {8: 2}}, 4)
    left = job_processes.what_is_left(cluster_that([{"a": {}}], 4), before)
    assert left.processes == {"a": {}, "b": {8: 2}}


def test_a_rank_whose_process_was_not_seen_is_known(free: dict[str, float]) -> None:
    """With other processes of its node in its place, which would hide it in a count."""
    rows = [{"RANK": "0", "node": "a", "pid": "7"}, {"RANK": "1", "node": "b", "pid": "8"}]
    seen = job_processes.observe_job(cluster_that([{"a": {7: 1, 9: 1, 10: 1}}], 4), rows)
    assert (seen.unseen, seen.count) == (("1",), 3)


def test_a_process_whose_parent_ended_is_known_by_its_jobs_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_JOB_ID", "ffffffff")  # as Ray's workers that wait for any job
    monkeypatch.delenv("TRAINING_JOB", raising=False)
    with subprocess.Popen(["sleep", "60"]) as rank:
        monkeypatch.setenv("TRAINING_JOB", "job-1")
        subprocess.run(["sh", "-c", "sleep 61 > /dev/null 2>&1 &"], check=True)
        monkeypatch.setenv("TRAINING_JOB", "job-2")
        other = subprocess.Popen(["sleep", "62"])
        seen = running_processes(["job-1", ""], [rank.pid])
        assert len(seen) == 2
        assert other.pid not in seen
        for process in (rank, other):
            process.kill()
        other.wait()
    (orphan,) = still_running(seen).keys() - {rank.pid}
    subprocess.run(["kill", "-9", str(orphan)], check=True)


def test_a_process_that_starts_a_program_this_moment_is_read_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Meanwhile its environment is empty, as that of a thread of the kernel always is."""
    with subprocess.Popen(["sleep", "60"]) as starts, subprocess.Popen(["sleep", "61"]) as none:
        read = {starts.pid: [None, "job-1"], none.pid: [None, None]}
        monkeypatch.setattr(job_processes, "job_name_of", lambda pid: read.get(pid, [""]).pop(0))
        seen = running_processes(["job-1"], [])
        starts.kill()
        none.kill()
    assert seen.keys() == {starts.pid}


def test_no_environment_is_not_an_empty_name(monkeypatch: pytest.MonkeyPatch) -> None:
    text = iter([b"", b"HOME=/root\0", b"A=1\0TRAINING_JOB=job-1\0"])
    monkeypatch.setattr(Path, "read_bytes", lambda _: next(text))
    assert [job_processes.job_name_of(1) for _ in range(3)] == [None, "", "job-1"]


ROWS = [
    {"RANK": "0", "node": "a", "pid": "7", "TRAINING_JOB": "job-1"},
    {"RANK": "1", "node": "b", "pid": "8", "TRAINING_JOB": "job-1"},
]
NODES = [{"id": "a"}, {"id": "b"}]


def test_what_a_job_left_is_waited_for(free: dict[str, float]) -> None:
    cluster = cluster_that([{"a": {7: 1}, "b": {}}, {"a": {}, "b": {}}], 4)
    left = left_after(cluster, NODES, ROWS, 0, 60)
    assert left.empty


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{**ROWS[0], "TRAINING_JOB": ""}],
        [ROWS[0], {"RANK": "1", "TRAINING_JOB": "j"}],
        [ROWS[0], {"RANK": "1", "TRAINING_JOB": "j", "node": "b"}],
    ],
)
def test_a_job_that_did_not_say_its_name_and_places_may_have_left_anything(rows: Any) -> None:
    assert left_after(cluster_that([], 4), NODES, rows, 0, 60) is None


def test_a_node_that_does_not_answer_may_hold_anything(free: dict[str, float]) -> None:
    """Also one that Ray has lost since the first job: the nodes are those of the beginning."""
    assert job_processes.left_of_jobs(cluster_that([{"a": {}}], 4), NODES, ROWS) is None


def test_what_each_job_left_is_joined() -> None:
    one, two = JobState({"a": {7: 1}}, 0), JobState({"a": {9: 1}, "b": {8: 1}}, 2)
    assert merged([one, two]) == JobState({"a": {7: 1, 9: 1}, "b": {8: 1}}, 2)
    assert merged([one, None]) is None


def test_an_orphan_is_left_when_its_parent_is_gone() -> None:
    orphan = job_processes.leave_orphan("job-1")
    assert still_running(orphan) == orphan
    subprocess.run(["kill", "-9", *map(str, orphan)], check=True)


@pytest.mark.parametrize(("available", "busy"), [(4.0, 0), (3.6, 1), (2.0, 2), (3.9999, 0)])
def test_a_part_of_an_accelerator_is_busy(
    free: dict[str, float], available: float, busy: int
) -> None:
    free["GPU"] = available
    assert busy_accelerators(cluster_that([], 0)) == busy


def test_waiting_has_an_end(free: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    free.clear()  # Ray lists no resource of which nothing is free
    clock = SimpleNamespace(monotonic=partial(next, count(step=30.0)), sleep=lambda _: None)
    monkeypatch.setattr(job_processes, "time", clock)
    cluster = cluster_that([{}, {}], 0)
    left = job_processes.wait_until_gone(
        lambda: job_processes.what_is_left(cluster, JobState({}, 4)), 45
    )
    assert left is not None
    assert left.busy == 4
    assert job_processes.wait_until_free(cluster_that([{}], 0), 4, 1) == 0  # others had them before


def test_what_a_stopped_job_leaves_is_named_with_its_node(recorder: Recorder) -> None:
    cluster = cluster_that([], 4)
    judge_left(cluster, JobState({"a": {}, "b": {8: 2}}, 1), recorder)
    result = recorder.finish("finished", 1.0)
    assert {one.verdict for one in result.measurements} == {Verdict.FAIL}
    [finding] = result.findings
    assert (finding.code, finding.suspects) == ("LAUNCH-LEFT", ["n1"])
    assert "still has 1 process and 1 accelerator: process 8 on n1" in finding.statement


@pytest.mark.near_miss("LAUNCH.left_processes", "LAUNCH.held_accelerators")
def test_nothing_left_passes_and_nothing_known_proves_nothing(recorder: Recorder) -> None:
    judge_left(cluster_that([], 4), JobState({"a": {}, "b": {}}, 0), recorder)
    assert {*verdicts(recorder).values()} == {Verdict.PASS}
    judge_left(cluster_that([], 4), None, trial := recorder.trial(), "not seen")
    assert trial.worst("left_processes").verdict is Verdict.UNPROVEN


@pytest.mark.near_miss("LAUNCH.time_to_stop", "LAUNCH.exit_code_after_stop")
def test_a_job_that_is_gone_after_nearly_15_seconds_is_gone_in_time(recorder: Recorder) -> None:
    judge_stop(cluster_that([], 4), JobState({"a": {}}, 0), 14.9, recorder)
    judge_again(Transcript(["done"], 0), recorder)
    assert {*verdicts(recorder).values()} == {Verdict.PASS}


def test_a_job_that_goes_late_or_comes_no_more_is_found(recorder: Recorder) -> None:
    judge_stop(cluster_that([], 4), JobState({"a": {}}, 0), 15.1, recorder)
    judge_again(Transcript(["Error"], 1), recorder)
    result = recorder.finish("finished", 1.0)
    red = {one.name for one in result.measurements if one.verdict is Verdict.FAIL}
    assert red == {"time_to_stop", "exit_code_after_stop"}
    assert [one.statement for one in result.findings] == [
        "after a stopped job the same commands end with exit code 1. Expected: 0."
    ]


def test_a_job_that_was_never_seen_proves_no_stop(recorder: Recorder) -> None:
    judge_stop(cluster_that([], 4), None, 0.1, recorder)
    assert {*verdicts(recorder).values()} == {Verdict.UNPROVEN}


def test_an_error_after_more_than_five_minutes_is_late(recorder: Recorder) -> None:
    said = Transcript([ERROR], 1, seconds=301.0)
    judge_failure(failure_of("x", "KeyError", 3, "node3"), said, recorder)
    assert verdicts(recorder)["time_to_error"] is Verdict.FAIL


@pytest.mark.near_miss("LAUNCH.nodes_of_rank_0")
def test_rank_0_on_two_nodes_is_everywhere(recorder: Recorder) -> None:
    judge_places(["a", "b"], recorder)
    assert verdicts(recorder) == {"nodes_of_rank_0": Verdict.PASS}


@pytest.mark.parametrize(
    ("firsts", "verdict"),
    [(["a", "a"], Verdict.FAIL), (["a", None], Verdict.FAIL), ([None], Verdict.UNPROVEN)],
)
def test_rank_0_that_stays_where_it_was_proves_no_other_place(
    recorder: Recorder, firsts: list[str | None], verdict: Verdict
) -> None:
    judge_places(firsts, recorder)
    assert verdicts(recorder) == {"nodes_of_rank_0": verdict}
