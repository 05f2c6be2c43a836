"""What a step waits for its collectives, on the host's clock: the same boundaries as on a GPU.

No GPU is here.  With gloo a collective is waited for where it is called, so a delay that is planted
in one must come back as that collective's, of that segment, and as nobody's compute.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from reference_trainer.config import TrainConfig
from reference_trainer.distributed import join_job
from reference_trainer.telemetry.step_timer import FSDP_CALLS, _parameter_groups, time_fsdp_waits
from reference_trainer.train import Trainer
from scaling.ladder.step_breakdown import mean_terms, parse_steps
from tests.support.single_rank import only_rank

LAYERS, DELAY = 2, 0.02
CONFIG = TrainConfig(
    steps=2, batch=2, seq=16, vocab=64, dim=16, layers=LAYERS, heads=2, device="cpu", dropout=0.0
)  # fmt: skip


def ran(late: str | None = None, watched: bool = True, **knobs: Any) -> dict[str, Any]:
    """A watched run whose `late` call takes longer for each group of parameters."""
    with only_rank(), join_job(config := replace(CONFIG, **knobs), None) as world:
        run = Trainer(config, world)
        for group in _parameter_groups(run.model) if late else ():
            call = getattr(group, late)  # it sleeps first: the planted delay itself
            setattr(group, late, lambda *a, call=call: (time.sleep(DELAY), call(*a))[1])
        if watched:
            assert time_fsdp_waits(run.model, run.timer)
        try:
            run.loop()
            return run.finish()
        finally:
            run.close()


def test_watching_changes_no_number_and_waits_are_within_their_segments() -> None:
    result = ran()
    assert result["digest"] == ran(watched=False)["digest"]
    for span in result["spans"]:
        assert span["separable"]
        assert {name: [*waits] for name, waits in span["exposed"].items()} == {
            "forward": ["all-gather"],
            "backward": ["all-gather", "reduce-scatter"],
        }
        for name, waits in span["exposed"].items():
            assert 0 < sum(waits.values()) < span["segments"][name]
    (step, _) = parse_steps(result["spans"])
    assert sum(step.terms.values()) == pytest.approx(step.seconds)
    assert [*step.terms] == [
        *("data", "forward", "exposed all-gather", "backward", "exposed reduce-scatter"),
        *("clip", "optimizer", "checkpoint", "other"),
    ]


@pytest.mark.parametrize(
    ("late", "segments"),
    [
        ("wait_for_unshard", {"forward": 1 + LAYERS, "backward": LAYERS}),
        ("post_backward", {"backward": 1 + LAYERS}),
        ("finalize_backward", {"backward": 1 + LAYERS}),
    ],
)
def test_a_late_collective_is_no_compute(late: str, segments: dict[str, int]) -> None:
    """The root's weights stay for backward; each block's are gathered again."""
    span = ran(late)["spans"][-1]
    for segment, times in segments.items():
        waited = span["exposed"][segment][FSDP_CALLS[late]]
        assert waited >= times * DELAY
        assert span["segments"][segment] - sum(span["exposed"][segment].values()) < DELAY


def test_each_part_of_a_step_waits_and_the_last_one_reduces() -> None:
    span = ran("wait_for_unshard", accumulate=2)["spans"][-1]
    assert span["exposed"]["forward"]["all-gather"] >= 2 * (1 + LAYERS) * DELAY


def test_without_those_calls_nothing_is_separable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FSDP_CALLS, "a call of another torch", "all-gather")
    with only_rank(), join_job(CONFIG, None) as world:
        run = Trainer(CONFIG, world)
        assert not time_fsdp_waits(run.model, run.timer)
        run.close()
    assert not run.timer.separable


def test_a_term_that_is_waited_for_is_not_in_its_segment() -> None:
    record = {
        "seconds": 6.0,
        "segments": {"forward": 4.0, "backward": 2.0},
        "exposed": {"forward": {"all-gather": 1.0}, "backward": {"all-gather": 0.5}},
    }
    assert mean_terms([parse_steps([record])]) == {
        "forward": 3.0, "exposed all-gather": 1.5, "backward": 1.5
    }  # fmt: skip
