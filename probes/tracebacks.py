"""Tracebacks of a run: short, and without the values that programs were called with.

pytest writes arguments and variables beside a traceback, among them whole environments.  It cuts
them anywhere, and a value whose name was cut away looks like no secret.  So none are written, and
what is left goes through the redactor.
"""

from __future__ import annotations

from typing import Any

import pytest

from reports.redact import redact_text


def shorten_tracebacks(option: Any) -> None:
    """Set pytest's options so that a traceback holds lines of source only, whatever was asked."""
    if option.tbstyle in ("auto", "long"):
        option.tbstyle = "short"
    option.showlocals = option.fulltrace = False


def hide_secrets(report: pytest.CollectReport | pytest.TestReport) -> None:
    """Take secrets out of all that pytest shows of a report: the traceback, and what was printed.

    A traceback that holds none stays as it is: pytest prints it in colours.
    """
    report.sections = [(title, redact_text(text)) for title, text in report.sections]
    if isinstance(report.longrepr, tuple):  # a skip
        file, line, reason = report.longrepr
        report.longrepr = (file, line, redact_text(reason))
    elif report.longrepr and (hidden := redact_text(report.longreprtext)) != report.longreprtext:
        report.longrepr = hidden


def hide_in_internal_error(excrepr: Any) -> None:
    """Take secrets out of the traceback of an error of pytest's own, before it is printed."""
    for entry in excrepr.reprtraceback.reprentries:
        entry.lines = [redact_text("".join(entry.lines))]
