"""Shortens the tracebacks of a run and removes secrets from them.

pytest prints arguments and variables with a traceback, among them complete environments.  It
truncates them anywhere, and the redactor does not recognize a secret without its name.  So no
values are printed, and the redactor processes the rest.
"""

from __future__ import annotations

from typing import Any

import pytest

from reports.redact import redact_text


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
