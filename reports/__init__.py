"""Record of a run of seatrial, its verdicts and its renderings. Imports neither ray nor torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reports.frames.compare import Comparison
    from reports.frames.history import History
    from reports.record import RunRecord


def read_run(path: str | Path) -> RunRecord:
    """Read a run folder and verify it, or read a record.json alone, which cannot be verified.

    `unverified` of the record has the reasons why it cannot be verified. A record with such a
    reason is never accepted. Raises UnreadableRun, also for a folder that was changed. For
    notebooks: `read_run("runs/2026-11-20T221703Z-atlas").frame()`.
    """
    from reports.run_folder.integrity import load

    return load(Path(path))


def read_history(folder: str | Path) -> History:
    """Read all runs below a folder: `runs` is a frame of them, `trends` one of their measures.

    A run that cannot be read is a row of `runs` with its reason.
    """
    from reports.frames.history import build_history, read_found
    from reports.run_folder.event_log import find_runs

    return build_history(map(read_found, find_runs(Path(folder))))


def read_comparison(*runs: str | Path) -> Comparison:
    """Compare runs with the first: `tables` has a frame for each.  Raises UnreadableRun."""
    from reports.acceptance import load_summary
    from reports.frames.compare import compare_runs, run_letters

    summaries = [load_summary(Path(run)) for run in runs]
    return compare_runs(summaries, run_letters(len(summaries)))
