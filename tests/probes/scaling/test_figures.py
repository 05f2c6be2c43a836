"""What the figures of a ladder and of each rung are made of."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.check.recorder import Recorder
from probes.scaling.judge import judge_rung, record_figures, record_prediction
from scaling.ladder.ladder import Rung
from scaling.ladder.step_breakdown import Step
from tests.probes.scaling.test_run_ladder import Notes
from tests.support.simulated_ladder import ladder


class Figures:
    """A recorder that only remembers what is drawn."""

    def __init__(self) -> None:
        self.drawn: dict[str, Any] = {}

    def series(self, name: str, values: Any) -> None:
        self.drawn[name] = values

    def keep(self, *_: Any, **__: Any) -> None:
        pass


@pytest.mark.parametrize(("rungs", "lost"), [(3, [2, 4]), (1, None)])
def test_what_is_lost_is_drawn_where_there_are_rungs_to_lose(
    rungs: int, lost: list[int] | None
) -> None:
    found, figures = ladder(link=0.3), Figures()
    climbed = replace(found, rungs=found.rungs[:rungs])
    explained = climbed.explanations(0.9)
    record_figures(climbed, explained, lambda _: None, cast(Recorder, figures), {}, None)
    assert figures.drawn.get("lost", {}).get("nodes") == lost
    shown, larger = figures.drawn["efficiency"], climbed.rungs[1:]
    assert shown["nodes"] == [1, 2, 4][:rungs]
    assert shown["efficiency"] == [1.0, *map(climbed.efficiency, larger)]
    intervals = [(None, None), *(climbed.intervals[rung.count] for rung in larger)]
    assert [*zip(shown["low"], shown["high"], strict=True)] == intervals


def test_each_part_of_a_step_is_drawn_for_all_rungs_and_what_a_rung_has_not_is_nothing() -> None:
    """One node does not save here, and loses nothing by it."""
    found, figures = ladder(), Figures()
    first, second, last = found.rungs
    saving = [
        [replace(one, segments={**one.segments, "late": 0.5}) for one in mine]
        for mine in last.steps
    ]
    saved = replace(found, rungs=[first, second, replace(last, steps=saving)])
    record_figures(saved, [], lambda _: None, cast(Recorder, figures), {}, None)
    terms = figures.drawn["terms"]["terms"]
    assert terms["late"] == [0.0, 0.0, pytest.approx(0.5)]
    assert {len(seconds) for seconds in terms.values()} == {3}


@pytest.mark.parametrize(("count", "noted"), [(1, []), (2, [0.5]), (4, [0.5])])
def test_the_mfu_of_each_rung_of_several_nodes_is_noted(count: int, noted: list[float]) -> None:
    """That of one node is judged elsewhere."""
    names = [f"node{at}" for at in range(count)]
    steps = [[Step(1.0, {"forward": 1.0}, wall=1.0)]] * count
    rung, notes = Rung(count, names, steps, 512 * count, 0, flops=1.0, peak_flops=1024), Notes()
    judge_rung(rung, cast(Recorder, notes), "here")
    assert [value for name, value, _ in notes.seen if name == "mfu"] == noted


def test_the_prediction_is_kept_and_handed_on() -> None:
    kept: list[str] = []
    measure: Any = SimpleNamespace(covered=kept.append, keep=lambda name, *_, **__: None)
    outlook = record_prediction(ladder(), measure)
    assert outlook is not None
    assert kept == [str(outlook)]
