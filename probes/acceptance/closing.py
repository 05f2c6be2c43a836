"""Closes a run: writes its last events, its renderings and its checksums.

The files on the disk decide: a later `seatrial report` of the same folder gives the same exit code,
also where the disk is full.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from reports.acceptance import AcceptanceSummary, load_summary, summarize_acceptance
from reports.baseline.choice import Baseline, choose_baseline
from reports.exports import render_all, write_all
from reports.formats.github import report_to_github
from reports.run_folder.integrity import read_run

if TYPE_CHECKING:
    from probes.acceptance.session import RunSession


def close_run(
    run: RunSession,
    state: str,
    problems: Iterable[tuple[str, str, str]],
    loaded: list[str],
    baseline: Path | None = None,
    junit: str = "",
) -> AcceptanceSummary:
    """Write the end of a run and every rendering; return the run's summary.

    `problems` are kind, place and text of what failed outside the probes.  `junit` is a second path
    for junit.xml.  Where the end or a rendering cannot be written, the summary is of what was
    written.
    """
    folder = run.store.path
    try:
        for problem in problems:
            run.report_problem(*problem)
        before = choose_baseline(baseline, run.store.save()) if baseline else Baseline()
        run.store.event("run_updated", loaded=loaded, **before.event(run.contract.baseline))
        run.finish(state)
        summary = summarize_acceptance(*read_run(folder))
        write_all(folder, render_all(folder, summary, before.summary))
        _copy_junit(folder, junit)
        run.store.close()
    except Exception as error:  # noqa: BLE001 - after any error, the run must not end in 0
        summary = _close_broken(run, error, junit)
    report_to_github(summary)
    return summary


def _copy_junit(folder: Path, junit: str) -> None:
    if junit:
        Path(junit).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / "junit.xml", junit)


def _close_broken(run: RunSession, error: Exception, junit: str) -> AcceptanceSummary:
    """Record that the end could not be written; the missing checksums show it, too."""
    text, folder = f"{type(error).__name__}: {error}", run.store.path
    with suppress(OSError, ValueError):
        run.report_problem("rendering", "the end of the run", text)
        run.store.save()
    with suppress(Exception):
        run.leave()
    summary = load_summary(folder)
    with suppress(OSError):
        Path(junit or folder / "junit.xml").unlink()  # no file is better than a wrong one
    with suppress(Exception):
        write_all(folder, render_all(folder, summary))
        _copy_junit(folder, junit)
    return summary
