"""What users read of every recording and of every NCCL log is what was looked at and kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recordings.generate import goldens
from tests.recordings.generate.nccl_logs import VERSIONS
from tests.support.paths import RECORDINGS

HOW = "run `python -m tests.recordings.generate`, and read `git diff` before you keep it"
RUNS = sorted(path.parent for path in RECORDINGS.glob("*/events.jsonl"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_recording_renders_to_what_was_kept(run: Path) -> None:
    texts = goldens.of_run(run)
    kept = {path.name: path.read_text() for path in (goldens.GOLDENS / run.name).iterdir()}
    assert texts == kept, HOW


@pytest.mark.parametrize("version", VERSIONS)
def test_nccl_log_says_what_was_kept(version: str) -> None:
    kept = (goldens.GOLDENS / f"nccl-{version}.txt").read_text()
    assert goldens.of_nccl_log(version) == kept, HOW


def test_no_golden_is_left_over() -> None:
    kept = {str(path.relative_to(goldens.GOLDENS)) for path in goldens.GOLDENS.rglob("*.*")}
    assert kept == set(goldens.built(RUNS))
