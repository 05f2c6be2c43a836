"""Ranks that do not come together: who is missing, where, and that the probe does not hang."""

from __future__ import annotations

import json

import pytest

from reports.measurement import Verdict
from tests.faults.launchers.injected_faults import findings
from tests.faults.launchers.leftovers import nothing_left
from tests.lab.lab import Lab
from tests.support.trial import acceptance


@pytest.mark.parametrize(
    ("fault", "code", "suspects", "says"),
    [
        ("never-comes", "INIT-HANG", ["rank 2 on node2"], "never_comes"),
        pytest.param(
            *("falls-behind", "INIT-HANG", ["rank 2 on node2"], "falls_behind"),
            marks=pytest.mark.soak(criterion="fabric"),
        ),
        pytest.param(
            *("gives-up", "FAB-NO-START", ["rank 2 on node2"], "fab7"),
            marks=pytest.mark.soak(criterion="fabric"),
        ),
    ],
)
def test_a_rank_that_does_not_start(
    lab: Lab, fault: str, code: str, suspects: list[str], says: str
) -> None:
    planted = ("faulty_start", fault)
    record, trial = acceptance(lab, fault, "probes/fabric/test_fabric.py", fault=planted)
    assert record.verdict("FABRIC") is Verdict.UNPROVEN
    (found,) = findings(record)
    assert (found.code, found.suspects) == (code, suspects)
    assert says in found.statement
    evidence = next(trial.folder.glob("**/*init.json"))
    ranks = json.loads(evidence.read_text())["ranks"]
    assert set(ranks) == {f"rank {rank} on node{rank}" for rank in range(4)}
    nothing_left(lab)
