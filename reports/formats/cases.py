"""Builds the test cases of a run: JUnit and CTRF write the same ones.

There is one case per result, one per criterion without a result, and last the decision. Nothing
that is not proven is passed. Only what the contract does not require may be skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from reports.acceptance import AcceptanceSummary, ReportRow
from reports.measurement import Measurement, Verdict
from reports.record import ProbeResult

DECISION = "decision"
NO_PROBE = "no probe ran"
BASELINE = "baseline"  # name of the case of a measure that is worse than in an earlier run


class Outcome(Enum):
    """How a case ends for a tool that knows no verdicts."""

    PASSED = "passed"
    FAILED = "failed"
    UNPROVEN = "unproven"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class ReportCase:
    """One test case. `suite` is its criterion. `lines` say what keeps it from PASS."""

    suite: str
    name: str
    outcome: Outcome
    verdict: Verdict
    lines: list[str]
    seconds: float = 0.0
    measurements: list[Measurement] = field(default_factory=list)


def list_cases(summary: AcceptanceSummary) -> Iterator[ReportCase]:
    """Yield the cases of each criterion in the order of the contract, then the decision."""
    for row in summary.rows:
        yield from (_result_case(row, result) for result in row.results)
        if not row.results:
            yield _case(row, NO_PROBE, Verdict.UNPROVEN, [row.problem])
        for one in row.regressions:
            yield _case(row, BASELINE, one.verdict, [one.sentence])
    outcomes = {0: Outcome.PASSED, 1: Outcome.FAILED}
    yield ReportCase(
        suite=DECISION,
        name=DECISION,
        outcome=outcomes.get(summary.exit_code, Outcome.UNPROVEN),
        verdict=summary.shown_verdict,
        lines=[summary.headline, *summary.reasons],
    )


def _result_case(row: ReportRow, result: ProbeResult) -> ReportCase:
    verdict = result.verdict
    if row.criterion.not_provable:  # as in the row: what passes here proves nothing
        verdict = Verdict.worst([verdict, Verdict.UNPROVEN])
    lines = [*result.problems(), *(f"{f.code}: {f.statement}" for f in result.findings)]
    case = _case(row, result.probe, verdict, lines)
    return replace(case, seconds=result.seconds or 0.0, measurements=result.measurements)


def _case(row: ReportRow, name: str, verdict: Verdict, lines: list[str]) -> ReportCase:
    if verdict is Verdict.FAIL:
        outcome = Outcome.FAILED
    elif verdict.accepted:
        outcome = Outcome.PASSED
    else:
        outcome = Outcome.UNPROVEN if row.criterion.required else Outcome.SKIPPED
    label = [row.label] if row.label and verdict is not Verdict.PASS else []
    return ReportCase(row.criterion.id, name, outcome, verdict, [*lines, *label])
