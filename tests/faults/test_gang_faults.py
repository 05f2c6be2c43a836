"""Launchers as users get them wrong, and what GANG says of each: caught, named and located."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from reports.measurement import Verdict
from tests.faults.launchers.injected_faults import Fault, caught, failed, findings
from tests.lab.lab import Lab
from tests.support.paths import REPO
from tests.support.trial import acceptance

PROBE, PLUGIN = "probes/gang", "faulty_launcher"


EITHER = {"job A", "job B"}  # both asked at once: one of them is the one that waits
NODES = {f"node{number}" for number in range(4)}  # where something is not free
SPARES = {f"spare{number}" for number in range(1, 5)}
QUICK = [
    Fault("leak", "cancelled", {"leaked", "not_released"}, {"GANG-LEAK"}, NODES, "1 of 4 GPUs"),
]
LONGER = [
    Fault("deaf", "cancelled", {"not_removed"}, {"GANG-NOT-REMOVED"}, {"job B"}, "still exists"),
    Fault("early", "two_gangs", {"partially_held"}, {"GANG-PARTIAL"}, EITHER, "held 1 of 3"),
    Fault(
        "orphaned", "driver", {"not_removed", "not_released"}, {"GANG-NOT-REMOVED", "GANG-LEAK"},
        {"job B", *NODES}, "held by A-1",
    ),
    Fault("fussy", "two_gangs", {"never_placed"}, {"GANG-STUCK"}, {"job B"}, "was not placed"),
    Fault("fussy", "blocks_nobody", {"blocked_behind"}, {"GANG-BLOCKED"}, {"job B"}, "had room"),
    Fault(
        "halves", "one_group", {"deadlocks", "partially_held", "never_placed"},
        {"GANG-PARTIAL", "GANG-STUCK"}, EITHER, "held 2 of 4",
    ),
    Fault("scattered", "fragments", {"placed_in_fragments"}, {"GANG-MISPLACED"}, {"job B"}, "node"),
    Fault("swapped", "components", {"misplaced"}, {"GANG-MISPLACED"}, set(), "'rollout' rank 0"),
    Fault(
        "careless", "mixed", {"never_placed", "not_released"}, {"GANG-STUCK", "GANG-LEAK"}, NODES,
        "were never placed",
    ),
    Fault(
        "careless", "storm", {"never_placed", "not_released"}, {"GANG-STUCK", "GANG-LEAK"}, NODES,
        "were never placed",
    ),
    Fault("endless", "big_gang", {"never_placed"}, {"GANG-STUCK"}, {"job A"}, "the stream ended"),
    Fault(
        "greedy", "ray_train", {"never_placed", "ray_train_outcome"}, {"GANG-STUCK"}, {"job B"},
        "Ray Train was not placed",
    ),
    Fault(
        "deaf", "lost_node", {"never_placed", "not_removed"},
        {"GANG-STUCK", "GANG-NODE-LOSS", "GANG-NOT-REMOVED"}, {"job A", "job B", *SPARES},
        "RESCHEDULING",
    ),
    Fault(
        "shaken", "lost_node", {"blocked_behind", "never_placed"},
        {"GANG-BLOCKED", "GANG-STUCK", "GANG-NODE-LOSS"}, {"job A", "job B", *SPARES},
        "fits and was",
    ),
    Fault(
        "restless", "cancelled", {"lost_while_running"}, {"GANG-LOST-ACCELERATORS"}, {"job A"},
        "lost accelerators in",
    ),
    Fault("sluggish", "two_gangs", {"placement_delay"}, {"GANG-SLOW"}, EITHER, "s after the"),
    Fault(
        "unmanned", "two_gangs", {"actors_not_running"}, {"GANG-NO-ACTORS"}, EITHER,
        "1 of 3 actors",
    ),
    Fault(
        "modest", "two_gangs", {"placed_concurrently"}, {"GANG-PARTIAL"}, EITHER, "has 2, not 3",
    ),
    Fault("stubborn", "one_group", {"not_removed"}, {"GANG-NOT-REMOVED"}, EITHER, "still exists"),
]  # fmt: skip


@pytest.mark.parametrize("fault", QUICK, ids=lambda fault: fault.name)
def test_a_faulty_launcher_is_caught(lab: Lab, fault: Fault) -> None:
    caught(lab, "GANG", PLUGIN, fault)


@pytest.mark.soak(criterion="gang")
@pytest.mark.parametrize("fault", LONGER, ids=lambda fault: fault.name)
def test_each_scenario_sees_its_fault(lab: Lab, fault: Fault) -> None:
    caught(lab, "GANG", PLUGIN, fault)


@pytest.fixture(scope="module")
def pairs() -> Iterator[Lab]:
    """Two nodes of two accelerators, where strategies differ and fragments are real ones."""
    lab = Lab("pairs")
    lab.up(2, gpus=2)
    yield lab
    lab.down()


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
    [("huddled", "SPREAD of 2 is on 1 node"), ("scattered", "PACK of 2 is on 2 nodes")],
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
    assert all("needs 2 free GPUs, found 1 of 4" in result.error for result in record.results)
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


@pytest.mark.soak(criterion="gang")
def test_a_gang_on_fragments_is_named(pairs: Lab) -> None:
    fault = Fault(
        "scattered", "fragments", {"placed_in_fragments", "blocked_behind"},
        {"GANG-MISPLACED", "GANG-BLOCKED"}, EITHER, "which had no room for it",
    )  # fmt: skip
    caught(pairs, "GANG", PLUGIN, fault)
