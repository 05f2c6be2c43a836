"""What earlier runs left: looked for on each node once, and removed there (a mock of a cluster)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from probes import leftovers
from probes.cluster.cluster import Cluster
from probes.leftovers import FILE, JOB, LeftOver, find_left, remove_left

Answers = dict[str, Any]


class Nodes:
    """A head, a worker and a dead node; those in `answers` answer."""

    dashboard = "http://head:8265"
    head_node_id = "head"
    node_names: Mapping[str, str] = {"head": "node0", "worker": "node1"}

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: dict[str, Any] = {}

    def known_nodes(self) -> list[dict[str, Any]]:
        return [{"id": id, "alive": id != "dead"} for id in ("head", "worker", "dead")]

    def on_each_node(self, function: Callable[..., Any], each: Answers, nodes: Any) -> Answers:
        assert [node["id"] for node in nodes] == [*each]
        self.asked = each
        return {id: self.answers[id] for id in each if id in self.answers}


TOKEN = "seatrial-0123456789ab"
OURS = {
    "submission_id": TOKEN, "entrypoint": f"echo {TOKEN}", "metadata": {"seatrial": "stranger"},
    "status": "RUNNING",
}  # fmt: skip
LAUNCHED = {
    "submission_id": "raysubmit_x", "metadata": {}, "status": "RUNNING",
    "entrypoint": f"python -m reference_trainer launch --workers all --name {TOKEN}",
}  # fmt: skip


@pytest.fixture(autouse=True)
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Jobs that the cluster knows."""
    known: list[dict[str, Any]] = []

    def list_jobs(address: str) -> list[dict[str, Any]]:
        assert address == "http://head:8265"
        return known

    monkeypatch.setattr(leftovers, "list_jobs", list_jobs)
    return known


def find(cluster: Nodes, shared: str | None = "/shared") -> tuple[list[LeftOver], list[str]]:
    return find_left(cast(Cluster, cluster), shared)


def test_each_living_node_is_searched_and_the_shared_folder_once(jobs: list[Answers]) -> None:
    jobs.append(LAUNCHED)
    files = {"/tmp/seatrial-0123456789ab": 70.0}
    cluster = Nodes(head={}, worker=files)
    temporary = ["/tmp", tempfile.gettempdir()]
    left, silent = find(cluster)
    assert cluster.asked == {"head": [*temporary, "/shared"], "worker": temporary}
    assert left == [
        LeftOver(FILE, "worker", "node1", "/tmp/seatrial-0123456789ab", 70.0),
        LeftOver(JOB, "", "http://head:8265", "raysubmit_x", is_sure=False),
    ]
    assert silent == []
    find(cluster, None)
    assert cluster.asked == {"head": temporary, "worker": temporary}


def found_jobs(jobs: list[Answers], *known: Answers) -> list[tuple[str, bool]]:
    jobs[:] = known
    return [(one.name, one.is_sure) for one in find(Nodes(head={}, worker={}))[0]]


def test_a_job_that_is_ours_in_all_is_sure(jobs: list[Answers]) -> None:
    assert found_jobs(jobs, OURS) == [(TOKEN, True)]


@pytest.mark.parametrize(
    "change",
    [
        {"submission_id": "raysubmit_x"},
        {"submission_id": "seatrial-ba9876543210"},
        {"metadata": {}},
        {"metadata": None},
        {"metadata": {"seatrial": "trial"}},
        {"metadata": {"seatrial": "stranger", "owner": "joe"}},
        {"entrypoint": f"python train.py --like {TOKEN}"},
        {"entrypoint": f"echo {TOKEN}; python train.py"},
    ],
    ids=str,
)
def test_a_job_that_has_but_a_word_of_ours_is_not_sure(
    jobs: list[Answers], change: Answers
) -> None:
    (found,) = found_jobs(jobs, {**OURS, **change})
    assert found[1] is False


def test_a_job_of_launch_is_not_sure_for_anybody_may_type_its_command(jobs: list[Answers]) -> None:
    assert found_jobs(jobs, LAUNCHED) == [("raysubmit_x", False)]


@pytest.mark.parametrize(
    "change",
    [
        {"entrypoint": "python train.py", "submission_id": "raysubmit_x"},
        {"entrypoint": "python -m probes.submit.entry seatrial-submit-0123456789ab",
         "submission_id": "seatrial-submit-0123456789ab", "metadata": {"seatrial": "trial"}},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_left_over_is_not_listed(jobs: list[Answers], change: Answers) -> None:
    assert found_jobs(jobs, {**OURS, **change}) == []


def test_what_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Nodes(head={})
    assert find(cluster) == ([], ["node1 does not answer"])
    monkeypatch.setattr(Nodes, "dashboard", "")
    silent = ["node1 does not answer", "jobs cannot be listed: the cluster has no dashboard"]
    assert find(cluster) == ([], silent)


@pytest.mark.parametrize(
    ("name", "kept_s"),
    [("/tmp/seatrial-submit-0123456789ab", 7 * 24 * 3600.0), ("/tmp/seatrial-0123456789ab", 0.0)],
)
def test_a_submission_is_kept_for_a_week(name: str, kept_s: float) -> None:
    assert LeftOver(FILE, "head", "node0", name).kept_s == kept_s


def test_each_is_removed_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[tuple[str, str]] = []
    monkeypatch.setattr(leftovers, "stop_resource", lambda *asked: stopped.append(asked))
    cluster = Nodes(head={"/tmp/b": "Permission denied"})
    items = [
        LeftOver(FILE, "head", "node0", "/tmp/a"),
        LeftOver(FILE, "head", "node0", "/tmp/b"),
        LeftOver(JOB, "", "http://head:8265", "raysubmit_x"),
        LeftOver(FILE, "worker", "node1", "/tmp/c"),
    ]
    errors = remove_left(cast(Cluster, cluster), items)
    assert cluster.asked == {"head": ["/tmp/a", "/tmp/b"], "worker": ["/tmp/c"]}
    assert stopped == [("job", "http://head:8265 raysubmit_x")]
    assert errors == {"/tmp/b": "Permission denied", "/tmp/c": "the node does not answer"}


def test_a_job_that_cannot_be_stopped_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: str) -> None:
        raise OSError("connection refused")

    monkeypatch.setattr(leftovers, "stop_resource", refuse)
    cluster = Nodes()
    job = LeftOver(JOB, "", "http://head:8265", "raysubmit_x")
    assert remove_left(cast(Cluster, cluster), [job]) == {"raysubmit_x": "connection refused"}
    assert cluster.asked == {}, "no node is asked for nothing"
