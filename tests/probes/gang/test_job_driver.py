"""Competing jobs on a real cluster: what they give back, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster.embedded import LocalCluster
from probes.gang.competing_job import Rival
from probes.gang.scenario import Stage

NODES = 2


@pytest.fixture
def jobs() -> Iterator[dict[str, Rival]]:
    """Jobs A and B on two raylets of one emulated GPU each."""
    cluster = LocalCluster(NODES)
    keeper = SimpleNamespace(keep=lambda *_: None, forget=lambda *_: None)
    where: Any = SimpleNamespace(keeper=keeper, address=cluster.started["address"], resource="GPU")
    jobs = {name: Rival(name, where) for name in "AB"}
    try:
        for job in jobs.values():
            job.ready()
        yield jobs
    finally:
        for job in jobs.values():
            job.end()
        cluster.close()


def test_who_waits_for_room_is_withdrawn_and_who_runs_is_not(jobs: dict[str, Rival]) -> None:
    jobs["A"].ask("ask", "gang", NODES)
    jobs["A"].ask("seats", "gang", {"rank": list(range(NODES))})
    jobs["B"].ask("naive", NODES + 1)
    assert jobs["A"].ask("withdraw") == 0
    assert jobs["B"].ask("withdraw") == NODES + 1
    assert jobs["B"].ask("withdraw") == 0
    jobs["A"].ask("release")
    jobs["B"].ask("ask", "next", NODES)
    assert len(jobs["B"].ask("seats", "next", {"rank": list(range(NODES))})["rank"]) == NODES


def test_no_job_gives_back_while_another_waits() -> None:
    told: list[tuple[str, str]] = []

    class Told:
        alive = True

        def __init__(self, name: str) -> None:
            self.name = name

        def signal(self, number: int) -> None:
            pass

        def ask(self, do: str) -> None:
            told.append((do, self.name))

    stage: Any = Stage.__new__(Stage)
    stage.jobs = {name: Told(name) for name in "AB"}
    stage.release()
    assert told == [("withdraw", "A"), ("withdraw", "B"), ("release", "A"), ("release", "B")]
