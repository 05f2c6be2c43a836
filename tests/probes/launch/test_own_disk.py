"""A job goes on from a folder that one node alone keeps: the folder, and how it is judged."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.check.recorder import Recorder
from probes.launch import training
from probes.launch.guide import new_name
from probes.launch.judge import read_job
from probes.launch.shell import Transcript
from probes.launch.test_failing_job import SAVED, judge_resume
from probes.launch.training import is_shared, make_folder, own_folders
from reports.measurement import Verdict
from tests.support.launched_job import cluster_of, guided, transcript


def cluster(answers: Callable[..., Any]) -> Any:
    nodes = [{"id": "a", "name": "n0"}, {"id": "b", "name": "n1"}]
    return SimpleNamespace(nodes=nodes, on_each_node=answers)


def guards(path: str) -> bool:
    """Whether a process waits to remove the folder."""
    return not subprocess.run(["pgrep", "-f", f"sh {path} "], stdout=subprocess.DEVNULL).returncode


def test_the_folder_is_there_and_goes_with_what_is_in_it() -> None:
    here = cluster(lambda function, *words: {id: function(*words) for id in ("a", "b")})
    with own_folders(here, new_name()) as path:
        assert Path(path).stat().st_mode & 0o7777 == 0o1777
        (Path(path) / "step-10").mkdir()
        assert guards(path)
    assert not Path(path).exists()
    deadline = time.monotonic() + 20
    while guards(path):
        assert time.monotonic() < deadline, "a process waits for a folder that is gone"
        time.sleep(0.2)


def test_a_folder_whose_driver_died_is_removed_by_its_node() -> None:
    path = Path("/tmp") / new_name()
    assert make_folder(str(path), seconds=1) == ""
    deadline = time.monotonic() + 20
    while path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.parametrize("answers", [{"a": "", "b": "Read-only file system"}, {"a": ""}])
def test_a_node_that_cannot_make_it_stops_the_probe(answers: dict[str, str]) -> None:
    removed: list[str] = []

    def ask(function: Any, *words: Any) -> Any:
        if function is make_folder:
            return answers
        removed.append(function.__name__)
        return {}

    says = "seatrial cannot make /tmp/x on n1: (Read-only file system|no answer)"
    with pytest.raises(OSError, match=says), own_folders(cluster(ask), "x"):
        pass
    assert removed == ["remove_folder"]


def resumed(first: str, last: str | None) -> Transcript:
    """A second job of two ranks; the last one began elsewhere, or does not say where."""
    said = transcript()
    starts = iter([f" from={first}", "" if last is None else f" from={last}"])
    said.lines = [
        line + next(starts) if line.startswith("trained ") else line for line in said.lines
    ]
    return said


@pytest.mark.parametrize(
    ("first", "last", "wrong", "says"),
    [
        pytest.param(
            "10", "10", 0, "", marks=pytest.mark.near_miss("LAUNCH.ranks_not_resumed"), id="all"
        ),
        ("10", "0", 1, "rank 1 on n1: began at step 0."),
        ("10", "9", 1, "rank 1 on n1: began at step 9."),
        ("10", None, 1, "rank 1 on n1: began at an unknown step."),
        ("0", "0", 2, "rank 0, rank 1 on n0, n1: began at step 0."),
    ],
)
def test_each_rank_that_began_elsewhere_is_named(
    recorder: Recorder, first: str, last: str | None, wrong: int, says: str
) -> None:
    judge_resume(read_job(guided(cluster_of()), resumed(first, last)), recorder)
    result = recorder.finish("finished", 1.0)
    assert [one.value for one in result.measurements] == [wrong]
    assert [one.statement.split(" Expected")[0] for one in result.findings] == [says] * bool(wrong)
    assert f"step {SAVED}" in "".join(one.statement for one in result.findings) or not wrong


def test_a_folder_that_the_nodes_share_shows_nothing_of_an_own_disk(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge_resume(read_job(guided(cluster_of()), resumed("10", "10")), recorder, shared=True)
    [measured] = recorder.finish("finished", 1.0).measurements
    assert measured.verdict is Verdict.UNPROVEN
    monkeypatch.setattr(training, "find_folder_problem", lambda *_: ("", []))
    assert is_shared(cluster_of(2), "/tmp/x")
    assert not is_shared(cluster_of(1), "/tmp/x"), "one host has one disk"
    monkeypatch.setattr(training, "find_folder_problem", lambda *_: ("n1 do not see /tmp/x", []))
    assert not is_shared(cluster_of(2), "/tmp/x")


@pytest.mark.parametrize("said", [Transcript([], 1), Transcript([], 0), transcript(exit_code=1)])
def test_a_job_that_did_not_end_proves_nothing(recorder: Recorder, said: Transcript) -> None:
    judge_resume(read_job(guided(cluster_of()), said), recorder)
    [measured] = recorder.finish("finished", 1.0).measurements
    assert measured.verdict is Verdict.UNPROVEN
