"""Runs `seatrial nccl-log` on texts."""

from __future__ import annotations

from pathlib import Path

from probes.nccl.report import NcclReport, analyse_files
from tests.recordings.generate.nccl_logs import Job


def told(folder: Path, *texts: str, whole: bool = False) -> NcclReport:
    """Return the report on these texts: one in `nccl.log`, several in `nccl.0.log` and so on."""
    names = ["nccl.log"] if len(texts) == 1 else [f"nccl.{at}.log" for at in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        (folder / name).write_text(text)
    return analyse_files([folder / name for name in names], whole=whole)


def by_rank(folder: Path, job: Job) -> NcclReport:
    """Return the report on a job whose ranks each wrote a file: only they show who is missing."""
    return told(folder, *(job.of(rank) for rank in job.ranks))


def codes(found: NcclReport) -> set[str]:
    """Return the codes of its findings."""
    return {finding.code for finding in found.findings}
