"""Launchers as users get them wrong, and what GANG says of each: caught, named and located."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from reports.record import Verdict
from tests.faults.conftest import acceptance
from tests.faults.planted import Fault, caught, failed, findings
from tests.lab.lab import Lab

PROBE, PLUGIN = "probes/test_gang.py", "faulty_launcher"


EITHER = {"job A", "job B"}  # both asked at once: one of them is the one that waits
QUICK = [
    Fault("early", "two_gangs", {"half_held"}, {"GANG-HALF"}, EITHER, "held 1 of 3"),
]
LONGER = [
    Fault("deaf", "cancelled", {"not_withdrawn"}, {"GANG-STAYS"}, {"job B"}, "is still there"),
    Fault("leak", "cancelled", {"unaccounted", "left_behind"}, {"GANG-LEAK"}, set(), "1 of 4 GPUs"),
    Fault(
        "orphaned", "driver", {"not_withdrawn", "left_behind"}, {"GANG-STAYS", "GANG-LEAK"},
        {"job B"}, "held by A-1",
    ),
    Fault("fussy", "two_gangs", {"never_placed"}, {"GANG-STUCK"}, {"job B"}, "was not placed"),
    Fault("fussy", "blocks_nobody", {"blocked_behind"}, {"GANG-BLOCKED"}, {"job B"}, "had room"),
    Fault(
        "halves", "one_group", {"deadlocks", "half_held", "never_placed"},
        {"GANG-HALF", "GANG-STUCK"}, EITHER, "held 2 of 4",
    ),
    Fault("scattered", "fragments", {"placed_in_fragments"}, {"GANG-MISPLACED"}, {"job B"}, "node"),
    Fault("swapped", "components", {"misplaced"}, {"GANG-MISPLACED"}, set(), "'rollout' rank 0"),
    Fault(
        "careless", "mixed", {"never_placed", "left_behind"}, {"GANG-STUCK", "GANG-LEAK"}, set(),
        "were never placed",
    ),
    Fault(
        "careless", "storm", {"never_placed", "left_behind"}, {"GANG-STUCK", "GANG-LEAK"}, set(),
        "were never placed",
    ),
    Fault("endless", "big_gang", {"never_placed"}, {"GANG-STUCK"}, {"job A"}, "the stream ended"),
    Fault(
        "greedy", "ray_train", {"never_placed", "train_ended"}, {"GANG-STUCK"}, {"job B"},
        "Ray Train was not placed",
    ),
    Fault(
        "deaf", "lost_node", {"never_placed"}, {"GANG-STUCK", "GANG-NODE-LOSS"}, {"job B"},
        "RESCHEDULING",
    ),
]  # fmt: skip


@pytest.mark.parametrize("fault", QUICK, ids=lambda fault: fault.name)
def test_a_faulty_launcher_is_caught(lab: Lab, fault: Fault) -> None:
    caught(lab, "GANG", PLUGIN, fault)


@pytest.mark.soak
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


@pytest.mark.soak
def test_two_accelerators_per_node_are_healthy(pairs: Lab) -> None:
    arguments = [PROBE, "--tier", "standard", "-k", "not storm"]
    record, _ = acceptance(pairs, "healthy", *arguments)
    complaints = [line for result in record.results for line in result.complaints()]
    assert record.verdict("GANG") is Verdict.PASS, complaints
    assert {one.code for one in findings(record)} <= {"GANG-NODE-LOSS"}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("launcher", "says"),
    [("huddled", "SPREAD of 2 lies on 1 nodes"), ("scattered", "PACK of 2 lies on 2 nodes")],
)
def test_a_strategy_that_is_not_kept_is_named(pairs: Lab, launcher: str, says: str) -> None:
    arguments = [PROBE, "--tier", "standard", "-k", "strategies"]
    record, _ = acceptance(pairs, launcher, *arguments, fault=(PLUGIN, launcher))
    assert record.verdict("GANG") is Verdict.FAIL
    assert failed(record) == {"misplaced"}
    assert {one.code for one in findings(record)} == {"GANG-MISPLACED"}
    assert any(says in one.statement for one in findings(record))


@pytest.mark.soak
def test_other_peoples_jobs_are_left_alone(lab: Lab) -> None:
    script = (
        "import ray, sys; ray.init('auto', logging_level='error');"
        "g = ray.util.placement_group([{'GPU': 1}] * 3); print(g.wait(30), flush=True);"
        "sys.stdin.read()"  # it ends with its input
    )
    node, pipe = lab.nodes[1], subprocess.PIPE
    stranger = subprocess.Popen(
        node.command("python", "-c", script, cwd="/"),
        env=node.environment(), stdin=pipe, stdout=pipe, text=True,
    )  # fmt: skip
    try:
        assert stranger.stdout is not None
        assert stranger.stdout.readline().strip() == "True"
        record, _ = acceptance(lab, "stranger", PROBE)
        assert stranger.poll() is None, "the stranger's job was ended"
    finally:
        stranger.communicate(timeout=30)
    assert record.verdict("GANG") is Verdict.UNPROVEN
    assert all("needs 2 free GPUs, found 1 of 4" in result.error for result in record.results)
    assert not findings(record)
