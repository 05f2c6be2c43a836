"""LAUNCH's probes as a whole, on what their jobs came to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probes.contract.terms import ClusterTerms, LaunchTerms
from probes.launch import controls, test_launch
from probes.launch.controls import LaunchedJobs, prepare_path
from probes.launch.guide import own_guide
from probes.launch.shell import Transcript
from reports.measurement import Verdict
from tests.support.controls import recorder
from tests.support.launched_job import cluster_of, launched

LAB = ClusterTerms(accelerators="emulated", fabric="fab0", management="eth0")


def run(
    monkeypatch: pytest.MonkeyPatch,
    jobs: LaunchedJobs,
    terms: ClusterTerms = LAB,
    kind: str = "ray",
) -> Any:
    monkeypatch.setattr(test_launch, "launch_jobs", lambda *_: jobs)
    cluster, measure = cluster_of(on_gpu=False), recorder("LAUNCH")
    cluster.kind = kind
    test_launch.test_documented_path_starts_a_correct_job(cluster, terms, measure)
    return measure.result("finished", 1.0)


def test_a_sound_cluster_passes_all_that_is_owed_and_all_controls_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = run(monkeypatch, launched())
    assert result.problems() == []
    judged = [one for one in result.measurements if one.judged]
    assert {one.verdict for one in judged} == {Verdict.PASS}
    assert [one.caught for one in result.controls] == [True] * 5
    assert len(judged) == 14


def test_an_embedded_cluster_judges_neither_user_nor_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = launched(uid=None, why_same="only root can")
    result = run(monkeypatch, jobs, ClusterTerms(accelerators="emulated"), "local")
    assert result.problems() == []
    names = {one.name for one in result.measurements}
    assert not names & {"rights_of_user", "share_on_agreed_network"}
    assert {one.name for one in result.controls} == {
        "wrong guide", "missing variable", "planted errors"
    }  # fmt: skip


def test_the_same_user_proves_nothing_unless_it_was_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = launched(uid=None, why_same="only root can run commands as another user")
    result = run(monkeypatch, jobs)
    [rights] = [one for one in result.measurements if one.name == "rights_of_user"]
    assert rights.verdict is Verdict.UNPROVEN
    assert rights.note.endswith("only root can run commands as another user")
    agreed = LAB.model_copy(update={"launch": LaunchTerms(user="own")})
    assert run(monkeypatch, jobs, agreed).problems() == []


@pytest.mark.parametrize("which", ["said", "doctored", "planted"])
def test_a_job_that_could_not_be_stopped_fails_the_probe_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    jobs = launched()
    getattr(jobs, which).stop_error = "HTTP 401: Unauthorized"
    with pytest.raises(pytest.fail.Exception, match=r"^HTTP 401: Unauthorized$") as failed:
        run(monkeypatch, jobs)
    assert not failed.value.pytrace


@pytest.mark.parametrize(
    ("dashboard", "document", "says"),
    [
        ("", None, "has no dashboard"),
        ("http://10.0.0.1:8265", "/nowhere/guide.md", "the guide /nowhere/guide.md cannot be read"),
    ],
)
def test_without_dashboard_or_guide_the_probe_fails_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, dashboard: str, document: str | None, says: str
) -> None:
    cluster: Any = SimpleNamespace(dashboard=dashboard)
    values = {"x": "{command}"} if document else {}
    terms = ClusterTerms(launch=LaunchTerms(document=document, values=values))
    monkeypatch.setattr(controls, "ignored_address", lambda dashboard: "")
    monkeypatch.setattr(controls, "describe_busy", lambda cluster: "")
    with (
        pytest.raises(pytest.fail.Exception, match=says) as failed,
        prepare_path(cluster, terms, recorder("LAUNCH")),
    ):
        pass
    assert not failed.value.pytrace


def test_a_cluster_that_others_use_is_not_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "describe_busy", lambda cluster: "1 GPU on n0 is held by a task")
    cluster: Any = SimpleNamespace(dashboard="http://10.0.0.1:8265")
    with (
        pytest.raises(
            pytest.fail.Exception, match="no job can start now: 1 GPU on n0 is held by a task"
        ),
        prepare_path(cluster, LAB, recorder("LAUNCH")),
    ):
        pass


@pytest.mark.parametrize(
    ("nodes", "workers", "order"),
    [
        (1, None, ["begin", "end", "begin --unset", "end", "begin --plant", "end"]),
        (3, "2", ["begin", "end", "begin --unset", "end", "begin --plant", "end"]),
        (5, "2", ["begin", "end", "begin --unset", "begin --plant", "end", "end"]),
    ],
    ids=["one", "three", "five at once"],
)
def test_the_jobs_are_one_sound_one_doctored_and_one_with_planted_errors(
    nodes: int, workers: str | None, order: list[str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
) -> None:  # fmt: skip
    typed: list[str] = []
    fewer: list[str | None] = []

    class Running:
        """A script that is over when somebody waits for it."""

        def __init__(self, extra: Any) -> None:
            typed.append(" ".join(["begin", *extra[:1]]))
            if "--unset" in extra:
                fewer.append(extra[extra.index("--workers") + 1] if "--workers" in extra else None)

        def __enter__(self) -> Running:
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing is left."""

        def wait(self) -> Transcript:
            typed.append("end")
            return Transcript(["done"], 0)

    monkeypatch.setattr("probes.launch.guide.LaunchPath.start", lambda _, extra: Running(extra))
    monkeypatch.setattr("probes.launch.guide.LaunchPath.ask", lambda *_: Transcript())
    monkeypatch.setattr(controls, "HOMES", str(tmp_path))
    monkeypatch.setattr(controls, "ignored_address", lambda dashboard: "")
    monkeypatch.setattr(controls, "describe_busy", lambda cluster: "")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    cluster = cluster_of(nodes)
    cluster.dashboard, cluster.on_each_node = "http://10.0.0.1:8265", lambda function: {}

    def nothing(*_: Any) -> None:
        """Neither register nor remove anything."""

    cluster.cleanup = SimpleNamespace(register=nothing, unregister=nothing, remove_now=nothing)
    jobs = controls.launch_jobs(cluster, LAB, recorder("LAUNCH"))
    assert (typed, fewer) == (order, [workers])
    assert (jobs.guide, jobs.uid) == (own_guide(), None)
    assert jobs.describe_user().startswith(
        "the user who runs seatrial followed the guide (only root"
    )
