"""What `seatrial nccl-log` says of one text."""

from __future__ import annotations

from pathlib import Path

from probes.nccl.report import Report, report


def told(folder: Path, text: str) -> Report:
    """The report on a log of this text."""
    path = folder / "nccl.log"
    path.write_text(text)
    return report([path])


def codes(found: Report) -> set[str]:
    """Its findings' codes."""
    return {finding.code for finding in found.findings}
