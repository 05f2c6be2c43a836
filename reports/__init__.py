"""Record of a run, its verdicts and its renderings. Imports neither ray nor torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reports.record import RunRecord


def read_run(path: str | Path) -> RunRecord:
    """Read a run folder and verify it, or read a record.json alone, which cannot be verified.

    `unverified` of the record has the reasons why it cannot be verified. A record with such a
    reason is never accepted. Raises UnreadableRun, also for a folder that was changed. For
    notebooks: `read_run("runs/2026-11-20T221703Z-atlas").frame()`.
    """
    from reports.run_folder.integrity import load

    return load(Path(path))
