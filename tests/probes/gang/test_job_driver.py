"""Competing jobs on a real cluster: what they give back, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster.embedded import LocalCluster
from probes.gang.competing_job import CompetingJob
from probes.gang.scenario import ContentionRig

pytestmark = pytest.mark.alone

NODES = 2


@pytest.fixture
def jobs() -> Iterator[dict[str, CompetingJob]]:
    """Jobs A and B on two raylets of one emulated GPU each."""
    cluster = LocalCluster(NODES)
    cleanup = SimpleNamespace(register=lambda *_: None, unregister=lambda *_: None)
    address = cluster.info["address"]
    where: Any = SimpleNamespace(
        cleanup=cleanup, address=address, resource="GPU", note_kill=lambda: None
    )
    jobs = {name: CompetingJob(name, where) for name in "AB"}
    try:
        for job in jobs.values():
            job.wait_ready()
        yield jobs
    finally:
        for job in jobs.values():
            job.end()
        cluster.close()


def test_who_waits_for_room_is_withdrawn_and_who_runs_is_not(jobs: dict[str, CompetingJob]) -> None:
    jobs["A"].call("ask", "gang", NODES)
    jobs["A"].call("seats", "gang", {"rank": list(range(NODES))})
    jobs["B"].call("naive", NODES + 1)
    assert jobs["A"].call("withdraw") == 0
    assert jobs["B"].call("withdraw") == NODES + 1
    assert jobs["B"].call("withdraw") == 0
    jobs["A"].call("release")
    jobs["B"].call("ask", "next", NODES)
    assert len(jobs["B"].call("seats", "next", {"rank": list(range(NODES))})["rank"]) == NODES


def test_no_job_gives_back_while_another_waits() -> None:
    told: list[tuple[str, str]] = []

    class Told:
        alive = True

        def __init__(self, name: str) -> None:
            self.name = name

        def signal(self, number: int) -> None:
            pass

        def call(self, command: str) -> None:
            told.append((command, self.name))

    stage: Any = ContentionRig.__new__(ContentionRig)
    stage.jobs = {name: Told(name) for name in "AB"}
    stage.release()
    assert told == [("withdraw", "A"), ("withdraw", "B"), ("release", "A"), ("release", "B")]
