"""What pytest reports of a probe: its verdict and its sentences, instead of passed or failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reports.redact import redact_text
from reports.sanitize import clean

if TYPE_CHECKING:  # pydantic would load in every run of pytest, also where no probe is run
    from reports.record import ProbeResult

Status = tuple[str, str, tuple[str, dict[str, bool]]]
NOT_PROVABLE = "not provable here"  # shown of a probe where UNPROVEN would be no news
SOUND = ("PASS", "MARGINAL", NOT_PROVABLE)  # verdicts next to which pytest itself has no failure
# How pytest counts a verdict, its letter, and its word.  UNPROVEN counts as an error: pytest then
# shows its text.
STATUS: dict[str, Status] = {
    "MARGINAL": ("marginal", "m", ("MARGINAL", {"yellow": True})),
    "UNPROVEN": ("error", "U", ("UNPROVEN", {"yellow": True})),
    NOT_PROVABLE: (NOT_PROVABLE, "n", (NOT_PROVABLE.upper(), {"yellow": True})),
}


def last_line(text: str) -> str:
    """Return the last line of a traceback, without secrets."""
    return redact_text((text.strip().splitlines() or ["no reason was given"])[-1])


def end_state(report: pytest.TestReport, call: pytest.CallInfo[None]) -> tuple[str, float, str]:
    """Tell state, seconds and error sentence of a probe."""
    if report.passed:
        return "finished", report.duration, ""
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        return "skipped", report.duration, str(reason)
    if call.excinfo is None:  # pytest's own word, as of a probe that was to fail and did not
        return "error", report.duration, last_line(report.longreprtext)
    interrupted = isinstance(call.excinfo.value, KeyboardInterrupt)
    error = redact_text(call.excinfo.exconly())
    return "interrupted" if interrupted else "error", report.duration, error


def write_verdict(report: pytest.TestReport, result: ProbeResult, provable: bool) -> None:
    """Put verdict and sentences into pytest's report, which the terminal reads.

    Where this cluster cannot prove the criterion (not `provable`), a probe that came to its end and
    did not fail is no error: the table's line says why nothing is proven.
    """
    verdict = result.verdict.value
    may_inform = not provable and result.state == "finished" and verdict != "FAIL"
    report.seatrial = NOT_PROVABLE if may_inform else verdict  # type: ignore[attr-defined]
    if not may_inform and verdict in ("UNPROVEN", "FAIL"):
        _write_problems(report, result)


def _write_problems(report: pytest.TestReport, result: ProbeResult) -> None:
    lines = [f"{result.criterion} {result.verdict.value}", *result.problems()]
    lines += [f"{f.code}: {f.statement}" for f in result.findings]
    text = "\n".join(lines)
    if report.failed and report.longrepr:
        text += f"\n\n{report.longreprtext}"
    report.outcome = "failed"
    report.longrepr = "\n".join(clean(line) for line in redact_text(text).splitlines())


def is_sound(report: pytest.TestReport) -> bool:
    """Whether the verdict stands for no failure: one that pytest reports is another's."""
    return getattr(report, "seatrial", SOUND[0]) in SOUND


def status_words(report: pytest.CollectReport | pytest.TestReport) -> Status | None:
    """Return how pytest counts and shows a verdict that it has no word for."""
    return STATUS.get(getattr(report, "seatrial", ""))
