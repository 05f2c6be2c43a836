"""Runs `seatrial nccl-log` on one text."""

from __future__ import annotations

from pathlib import Path

from probes.nccl.report import NcclReport, analyse_files


def told(folder: Path, text: str) -> NcclReport:
    """Return the report on a log of this text."""
    path = folder / "nccl.log"
    path.write_text(text)
    return analyse_files([path])


def codes(found: NcclReport) -> set[str]:
    """Return the codes of its findings."""
    return {finding.code for finding in found.findings}
