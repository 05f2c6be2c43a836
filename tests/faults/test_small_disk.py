"""A real disk that is full: two ranks save into a small file system, until it has no room."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reference_trainer.test_train_on_ranks import hexes, run_plan
from tests.support.small_disk import needs_root, small_disk

ROOM = "512k"  # for some checkpoints of the tests' model by two ranks, and not for six


@needs_root
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_disk_without_room_costs_saves_and_not_the_run(tmp_path: Path, mode: str) -> None:
    knobs = {"steps": 6, "save_every": 1, "save_failures": 9, "keep_last": 9, "save_mode": mode}
    with small_disk(tmp_path / "small", ROOM) as small:
        plan = {
            "whole": {"steps": 6},
            "full": {**knobs, "checkpoints": small},
            "resumed": {"steps": 6, "checkpoints": small},
        }
        ran = run_plan(tmp_path, plan)
    for rank in ran:
        saved = [save["step"] for save in rank["full"]["checkpoints"]]
        missed = [save["step"] for save in rank["full"]["unsaved"]]
        assert saved
        assert missed
        assert sorted(saved + missed) == [1, 2, 3, 4, 5, 6]
        assert all("No space left" in save["error"] for save in rank["full"]["unsaved"])
        assert hexes(rank["full"]) == hexes(rank["whole"])
        assert rank["resumed"]["start_step"] == max(saved)
        assert hexes(rank["resumed"]) == hexes(rank["whole"])[max(saved) :]
        assert rank["resumed"]["digest"] == rank["whole"]["digest"]
    assert ran[0]["full"]["unsaved"] == ran[1]["full"]["unsaved"]  # told to all
