"""Turns pytest's report of a probe into its state, verdict and last line."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING, Any

import pytest

from reports import sanitize
from reports.redact import redact_text
from reports.sanitize import clean

if TYPE_CHECKING:
    from reports.record import Criterion, ProbeResult


Status = tuple[str, str, tuple[str, dict[str, bool]]]
NOT_PROVABLE = "not provable here"  # where the contract declares that already
SOUND = ("PASS", "MARGINAL", NOT_PROVABLE)  # verdicts that are no failure in pytest
OURS = ("probes", "reference_trainer", "reports", "scaling")  # their errors are sentences
# Errors of a disk: it is full, over a quota, read-only, broken, or its server is gone.
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)
DEAD_ACTOR = "RayActorError"  # and its kinds; Ray is not imported for their names
ACTOR_FIELD = re.compile(r"^\t(class_name|pid|ip): (.+)$", re.MULTILINE)
# pytest's category of a verdict, its letter, and its word.  UNPROVEN counts as an error, so that
# pytest prints its text.
STATUS: dict[str, Status] = {
    "MARGINAL": ("marginal", "m", ("MARGINAL", {"yellow": True})),
    "UNPROVEN": ("error", "U", ("UNPROVEN", {"yellow": True})),
    NOT_PROVABLE: (NOT_PROVABLE, "n", (NOT_PROVABLE.upper(), {"yellow": True})),
}


def last_line(text: str) -> str:
    """Return the last line of a traceback, without secrets."""
    return redact_text(sanitize.last_line(text, "no reason was given"))


def end_state(report: pytest.TestReport, call: pytest.CallInfo[None]) -> tuple[str, float, str]:
    """Return state, duration in seconds and error sentence of a probe."""
    if report.passed:
        return "finished", report.duration, ""
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        return "skipped", report.duration, str(reason)
    if call.excinfo is None:  # no exception, such as an xfail(strict) probe that passed
        return "error", report.duration, last_line(report.longreprtext)
    interrupted = isinstance(call.excinfo.value, KeyboardInterrupt)
    error = redact_text(describe_error(call.excinfo))
    return "interrupted" if interrupted else "error", report.duration, error


def describe_error(info: pytest.ExceptionInfo[BaseException]) -> str:
    """Describe an error: the sentence alone where we wrote it, else with its type."""
    if known := describe_known_cause(info.value):
        return known
    package = type(info.value).__module__.partition(".")[0]
    ours = package in OURS or isinstance(info.value, pytest.fail.Exception)
    return (str(info.value) if ours else "") or info.exconly()


def describe_known_cause(error: BaseException) -> str:
    """Describe in one sentence a disk or an actor that died under a probe; "" for other errors."""
    raised = getattr(error, "cause", error)  # Ray's error has that of the task
    if isinstance(raised, OSError) and raised.errno in DISK:
        return ": ".join(str(part) for part in (raised.strerror, raised.filename) if part)
    fields = dict(ACTOR_FIELD.findall(str(error)))
    kinds = [kind.__name__ for kind in type(error).__mro__]
    if "class_name" not in fields or DEAD_ACTOR not in kinds:
        return ""
    process = f" (process {fields['pid']})" if "pid" in fields else ""
    where = f" on {fields['ip']}" if "ip" in fields else ""
    why = sanitize.last_line(str(error), "").partition(". ")[0]
    return f"Ray actor {fields['class_name']}{process}{where} died: {why}"


def explains_itself(call: pytest.CallInfo[None]) -> bool:
    """Return whether the error is one that a user can act on without a traceback."""
    if call.excinfo is None:
        return False
    error = call.excinfo.value
    return getattr(error, "explains_itself", False) or bool(describe_known_cause(error))


def write_verdict(
    report: pytest.TestReport, result: ProbeResult, row: Criterion, *, traceback: bool = True
) -> None:
    """Write verdict and sentences into pytest's report, which the terminal prints.

    Where this cluster cannot prove the criterion (its `row` is not required), a probe that
    finished and did not fail is no error.  The acceptance table gives the reason why nothing is
    proven.
    """
    verdict = result.verdict.value
    may_inform = not row.required and result.state == "finished" and verdict != "FAIL"
    report.seatrial = NOT_PROVABLE if may_inform else verdict  # type: ignore[attr-defined]
    if may_inform or verdict not in ("UNPROVEN", "FAIL"):
        return
    lines = [f"{result.criterion} {verdict}", *result.problems(row)]
    text = "\n".join([*lines, *(f"{f.code}: {f.statement}" for f in result.findings)])
    if traceback and report.failed and report.longrepr:
        text += f"\n\n{report.longreprtext}"
    report.outcome = "failed"
    report.longrepr = "\n".join(clean(line) for line in redact_text(text).splitlines())


def is_sound(report: pytest.TestReport) -> bool:
    """Return whether the verdict is no failure: a failure in the report then has another source."""
    return getattr(report, "seatrial", SOUND[0]) in SOUND


def status_words(report: pytest.CollectReport | pytest.TestReport) -> Status | None:
    """Return category, letter and word of a verdict that pytest does not know; else None."""
    return STATUS.get(getattr(report, "seatrial", ""))


def shown_verdict(report: pytest.TestReport) -> str:
    """Return the word for a judged probe: PASS, MARGINAL, UNPROVEN, FAIL or NOT PROVABLE HERE."""
    return str(getattr(report, "seatrial", "")).upper()


def shorten_tracebacks(option: Any) -> None:
    """Limit tracebacks to lines of source, even if the user's pytest options ask for more."""
    if option.tbstyle in ("auto", "long"):
        option.tbstyle = "short"
    option.showlocals = option.fulltrace = False


def hide_secrets(report: pytest.CollectReport | pytest.TestReport) -> None:
    """Redact secrets in all that pytest shows of a report: the traceback, and what was printed.

    A traceback without secrets stays unchanged: pytest prints it in colours.
    """
    report.sections = [(title, redact_text(text)) for title, text in report.sections]
    if isinstance(report.longrepr, tuple):  # a skip
        file, line, reason = report.longrepr
        report.longrepr = (file, line, redact_text(reason))
    elif report.longrepr and (hidden := redact_text(report.longreprtext)) != report.longreprtext:
        report.longrepr = hidden


def redact_internal_error(excrepr: Any) -> None:
    """Redact secrets in the traceback of an error of pytest itself, before it is printed."""
    for entry in excrepr.reprtraceback.reprentries:
        entry.lines = [redact_text("".join(entry.lines))]
