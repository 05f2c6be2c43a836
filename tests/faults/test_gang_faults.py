"""Strategies, and other people's jobs: what GANG says of them, live.

Faulty launchers are in `job_faults.py`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from reports.measurement import Verdict
from tests.faults.job_faults import PAIRS
from tests.faults.launchers.injected_faults import failed, findings
from tests.lab.lab import Lab
from tests.support.paths import REPO
from tests.support.trial import acceptance, lab_of

PROBE, PLUGIN = "probes/gang", "faulty_launcher"


@pytest.fixture(scope="module")
def pairs() -> Iterator[Lab]:
    """Two nodes of two accelerators, where strategies differ and fragments are real ones."""
    with lab_of(**PAIRS) as lab:
        yield lab


@pytest.mark.soak(criterion="gang")
def test_two_accelerators_per_node_are_healthy(pairs: Lab) -> None:
    arguments = [PROBE, "--tier", "standard", "-k", "not storm"]
    record, _ = acceptance(pairs, "healthy", *arguments)
    complaints = [line for result in record.results for line in result.problems()]
    assert record.verdict("GANG") is Verdict.PASS, complaints
    assert {one.code for one in findings(record)} <= {"GANG-NODE-LOSS"}


@pytest.mark.soak(criterion="gang")
@pytest.mark.parametrize(
    ("launcher", "says"),
    [("huddled", "SPREAD gang of 2 is on 1 node"), ("scattered", "PACK gang of 2 is on 2 nodes")],
)
def test_a_strategy_that_is_not_kept_is_named(pairs: Lab, launcher: str, says: str) -> None:
    arguments = [PROBE, "--tier", "standard", "-k", "strategies"]
    record, _ = acceptance(pairs, launcher, *arguments, fault=(PLUGIN, launcher))
    assert record.verdict("GANG") is Verdict.FAIL
    assert failed(record) == {"misplaced"}
    assert {one.code for one in findings(record)} == {"GANG-MISPLACED"}
    assert any(says in one.statement for one in findings(record))


@contextmanager
def stranger(lab: Lab, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another person's job on node 1, which must be there to the end."""
    node, pipe = lab.nodes[1], subprocess.PIPE
    script = str(REPO / "tests/faults/launchers/unrelated_job.py")
    job = subprocess.Popen(
        node.command("python", script, *arguments, cwd="/"),
        env=node.environment(), stdin=pipe, stdout=pipe, text=True,
    )  # fmt: skip
    assert job.stdout is not None
    try:
        assert job.stdout.readline().strip() == "there"
        yield job
        assert job.poll() is None, "the stranger's job was ended"
    finally:
        job.communicate(timeout=30)


def state_of(job: subprocess.Popen[str]) -> str:
    """What its gang is now."""
    assert job.stdin is not None
    assert job.stdout is not None
    print(file=job.stdin, flush=True)
    return job.stdout.readline().strip()


@pytest.mark.soak(criterion="gang")
def test_without_room_beside_other_peoples_jobs_nothing_is_proven(lab: Lab) -> None:
    with stranger(lab, "3") as job:
        record, _ = acceptance(lab, "stranger", PROBE)
        assert state_of(job) == "CREATED 3"
    assert record.verdict("GANG") is Verdict.UNPROVEN
    errors = [result.error for result in record.results]
    assert all("needs 2 free GPUs, but 1 of 4 were free" in error for error in errors)
    assert not findings(record)


@pytest.mark.soak(criterion="gang")
def test_what_other_people_leave_free_is_enough(lab: Lab) -> None:
    with stranger(lab, "1") as job:
        record, _ = acceptance(lab, "beside", PROBE)
        assert state_of(job) == "CREATED 1"
    complaints = [line for result in record.results for line in result.problems()]
    assert record.verdict("GANG") is Verdict.PASS, complaints
    assert all("3 GPUs free" in result.coverage for result in record.results)


@pytest.mark.soak(criterion="gang")
def test_other_people_who_come_and_go_do_not_fail_a_cluster(lab: Lab) -> None:
    with stranger(lab, "2", "4"):
        record, _ = acceptance(lab, "coming-and-going", PROBE)
    complaints = [line for result in record.results for line in result.problems()]
    assert record.verdict("GANG") is not Verdict.FAIL, complaints
    assert not findings(record)
