"""The terminal names once what did not run."""

from __future__ import annotations

from typing import Any

import pytest

from reports.acceptance import summarize_acceptance
from reports.record import ContractFacts, Criterion, OwedProbe, ProbeResult, RunRecord
from reports.text import acceptance_table

NAMES = ("FABRIC", "GANG", "HOSTS")


def table(*ran: str, command: str = "pytest probes", required: bool = True, **more: Any) -> str:
    """The table of a run that owes two probes of each criterion; `ran` are those that ran."""
    owed = [
        OwedProbe(probe=f"{name}-{number}", criterion=name, tier="quick")
        for name in NAMES
        for number in (1, 2)
    ]
    criteria = [Criterion(id=name, title=name, how="", required=required) for name in NAMES]
    results = [
        ProbeResult(
            probe=one.probe,
            criterion=one.criterion,
            claim="c",
            state="finished" if one.probe in ran else "not run",
            error="" if one.probe in ran else "the run left this test out",
        )
        for one in owed
    ]
    record = RunRecord(
        id="r", started="2026-11-20T22:17:03Z", command=command, tier="quick", owed=owed,
        contract=ContractFacts(name="c", criteria=criteria), state="finished",
        **{"results": results, **more},
    )  # fmt: skip
    return acceptance_table(summarize_acceptance(record))


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("pytest probes", ""),
        ("pytest probes -k fabric", " (-k fabric)"),
        ("pytest probes -k 'fabric and not slow' -v", " (-k 'fabric and not slow')"),
        ("seatrial run -kfabric", " (-kfabric)"),
        ("pytest probes --key x", ""),
    ],
)
def test_what_did_not_run_is_named_once_with_its_reason(command: str, reason: str) -> None:
    text = table("FABRIC-1", "FABRIC-2", "HOSTS-2", command=command)
    assert f"\n  not run: GANG, 1 of 2 tests of HOSTS{reason}\n" in text
    assert text.count("not run") == 2, "in that line, and in the row of HOSTS"
    assert "HOSTS   1 of 2 tests did not run" in text
    assert text.count("GANG    not tested: the run left this test out") == 1


@pytest.mark.parametrize(
    ("ran", "problem"),
    [
        (["a"], "2 of 3 tests did not run"),
        ([], "not run: the run left this test out"),
        (["a", "b", "c"], "nothing was measured"),
    ],
)
def test_a_criterion_counts_its_tests_that_did_not_run(ran: list[str], problem: str) -> None:
    why = "the run left this test out"
    results = [
        ProbeResult(probe=name, criterion="GANG", state="finished" if name in ran else "not run",
                    error=why * (name not in ran))
        for name in "cba"
    ]  # fmt: skip
    facts = ContractFacts(name="c", criteria=[Criterion(id="GANG", title="t", how="h")])
    record = RunRecord(
        id="r", started="2026-11-20T22:17:03Z", command="x", tier="quick", contract=facts,
        results=results, state="finished",
    )  # fmt: skip
    (row,) = summarize_acceptance(record).rows
    assert row.problem == problem


def test_a_run_that_is_complete_has_no_such_line() -> None:
    ran = [f"{name}-{number}" for name in NAMES for number in (1, 2)]
    assert "not run" not in table(*ran)


@pytest.mark.parametrize(("required", "count"), [(True, 1), (False, 0)])
def test_a_record_without_entries_names_what_it_requires(required: bool, count: int) -> None:
    """As of a run that ended before it recorded what it owes."""
    text = table(required=required, results=[])
    assert ("  not run: FABRIC, GANG, HOSTS\n" in text) is required
    assert text.count("not run") == count
    assert text.count("no test ran for this criterion") == 3


def test_hostile_text_stays_in_the_line() -> None:
    text = table(command="x -k 'a\x1b[31m\nFORGED api_key=hunter2secret'")
    assert "\x1b" not in text
    assert "hunter2secret" not in text
    assert not [line for line in text.splitlines() if line.startswith("FORGED")]
