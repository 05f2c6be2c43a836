"""Guides that do not lead a user to a correct job: LAUNCH says which command, rank and variable."""

from __future__ import annotations

import pytest

from reports.record import Verdict
from tests.faults.launchers.injected_faults import failed, findings
from tests.faults.launchers.leftovers import nothing_left
from tests.lab.lab import Lab
from tests.support.trial import acceptance, agreed

LAUNCH = "probes/launch/test_launch.py"
# The fault, what fails, the finding, its suspects, what its sentence says.
FAULTS = [
    # The job runs to its end, and three ranks of four are there: rank 3 is missing.
    pytest.param(
        *("one-rank-fewer", {"ranks", "wrong_ranks"}, {"LAUNCH-ENV"}),
        *(["rank 0", "rank 3"], "WORLD_SIZE is 3. Expected: 4"),
        id="one-rank-fewer",
        marks=pytest.mark.soak(criterion="launch"),
    ),
    # Every rank says what it lacks, and ends.
    pytest.param(
        *("no-local-rank", {"exit_code", "wrong_ranks"}, {"LAUNCH-ENV", "LAUNCH-FAILED"}),
        *(["rank 3", "node3"], "LOCAL_RANK not set"),
        marks=pytest.mark.soak(criterion="launch"),
    ),
    # No rank is announced, so nothing is known of them.
    pytest.param(
        *("typo", {"exit_code", "ranks"}, {"LAUNCH-FAILED"}, []),
        "No module named reference_trainr",
        id="typo",
    ),
    pytest.param(
        *("first-command", {"exit_code", "ranks"}, {"LAUNCH-FAILED"}, [], "`seatrial exmaple"),
        marks=pytest.mark.soak(criterion="launch"),
    ),
]


@pytest.mark.parametrize(("fault", "fails", "codes", "suspects", "says"), FAULTS)
def test_a_guide_that_misleads_is_named(
    lab: Lab, fault: str, fails: set[str], codes: set[str], suspects: list[str], says: str
) -> None:
    record, trial = acceptance(lab, f"guide-{fault}", LAUNCH, fault=("faulty_guide", fault))
    said = [(one.code, one.suspects, one.statement) for one in findings(record)]
    assert record.verdict("LAUNCH") is Verdict.FAIL, trial.log.read_text()[-3000:]
    assert failed(record) == fails, said
    assert {one for one, *_ in said} == codes
    assert any(says in statement for *_, statement in said), said
    assert {*suspects} <= {name for _, names, _ in said for name in names}
    nothing_left(lab)


@pytest.mark.soak(criterion="launch")
def test_a_first_step_that_comes_late_fails(lab: Lab) -> None:
    """Nothing is wrong but the time: a second was agreed, and a job takes some to start."""
    late = '[LAUNCH.time_to_first_step]\nat_most = 1\nunit = "s"\nbecause = "they are in a hurry"'
    record, _ = acceptance(lab, "late", LAUNCH, contract=agreed(lab, {}, late))
    assert record.verdict("LAUNCH") is Verdict.FAIL
    assert failed(record) == {"time_to_first_step"}
