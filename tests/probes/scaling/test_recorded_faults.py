"""A recorded ladder with one thing changed in what its ranks told: that fails, and only that.

And with as much changed as a sound one may show: nothing fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from reports.measurement import Verdict
from tests.recordings.tape.play import play
from tests.recordings.tape.synthetic import TAPES
from tests.recordings.tape.tape import Answers

LADDER = TAPES / "lab-sound" / "each_node_adds_its_share.tape.gz"
FABRIC = TAPES / "lab-sound" / "allreduce_takes_the_fabric_at_line_rate.tape.gz"
ONE, TWO, FOUR, AGAIN, SLOW_BASE, DELAYED = range(6)  # runs of the trainer, in their order
Change = Callable[[Answers], None]
Results = list[dict[str, Any]]


def rung(change: Callable[[Results], Any], *which: int) -> Change:
    """Change what the ranks of some rungs told."""

    def changed(results: Results) -> Results:
        change(results)
        return results

    def apply(answers: Answers) -> None:
        for at in which:
            answers.change("run train_rank", changed, at)

    return apply


def stretch(result: dict[str, Any], factor: float, segment: str = "backward") -> None:
    """Have each step of a rank last so many times as long; the time is spent in one segment."""
    for step, span in zip(result["steps"], result["spans"], strict=True):
        more = (factor - 1) * span["seconds"]
        step["seconds"] += more
        span["seconds"] += more
        span["segments"][segment] += more
        if span["wall"] is not None:
            span["wall"] += more


def all_ranks(factor: float, segment: str = "backward") -> Callable[[Results], None]:
    return lambda results: [stretch(result, factor, segment) for result in results] and None


def one_rank(factor: float, segment: str = "data") -> Callable[[Results], None]:
    """One rank is late: it is busy in a segment of its own, the others wait in a collective."""

    def change(results: Results) -> None:
        for rank, result in enumerate(results):
            stretch(result, factor, segment if rank == len(results) - 1 else "backward")

    return change


def lose_time(results: Results) -> None:
    """Two percent of each step are in no segment, and in no clock of the steps."""
    for result in results:
        for span in result["spans"]:
            span["wall"] *= 1.02


def no_number(results: Results) -> None:
    results[0]["steps"][4]["loss"] = math.nan


def large_loss(results: Results) -> None:
    for result in results:
        result["steps"][4].update(loss=1e38, local_loss=1e38)


def another_order(results: Results) -> None:
    for step in results[1]["steps"]:
        step["local_loss"] *= 1.002


def slow_pairs_are_looked_for(answers: Answers) -> None:
    """Where a limit is broken, pairs of nodes meet: as FABRIC's did on the same lab."""
    pairs = Answers(FABRIC).kept["run pair_sweep"]
    answers.kept["run pair_sweep"] = [*pairs]


def both(*changes: Change) -> Change:
    def change(answers: Answers) -> None:
        for each in changes:
            each(answers)

    return change


def another_loss(results: Results) -> None:
    """One rank of the rung computes another loss of all: it trains another model."""
    for step in results[1]["steps"]:
        step["loss_hex"], step["loss"] = "0x1p+2", 4.0


# What changes, what then fails, and the findings.
RED: dict[str, tuple[Change, set[str], set[str]]] = {
    # Alone, their collectives are as fast as they were: nothing says where the time went.
    "four nodes take twice as long, in collectives": (
        both(rung(all_ranks(2.0), FOUR), slow_pairs_are_looked_for),
        *({"efficiency"}, {"SCALE-EFFICIENCY", "SCALE-UNEXPLAINED"}),
    ),
    "every node has half the pace": (
        rung(all_ranks(2.0, "forward"), ONE, TWO, FOUR, AGAIN),
        *({"tokens_per_s"}, {"SCALE-SLOW-BASE"}),
    ),
    "one rank of four is late": (
        rung(one_rank(1.2), FOUR),
        *({"straggler"}, {"SCALE-STRAGGLER"}),
    ),
    "a loss that is no number": (
        rung(no_number, FOUR),
        *({"non_finite"}, {"SCALE-NAN"}),
    ),
    "ranks of different models": (
        rung(another_loss, FOUR),
        *({"disagreements"}, {"SCALE-RANKS-DISAGREE"}),
    ),
    "time that is in no step": (rung(lose_time, FOUR), {"wall_gap"}, set()),
}


@pytest.mark.parametrize("name", RED)
def test_what_is_changed_fails_and_nothing_else(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    change, fails, codes = RED[name]
    played = play(LADDER, monkeypatch, change)
    assert played.failed == fails, played.result.problems()
    assert {one.code for one in played.result.findings} == codes


def near(name: str, change: Change, *measures: str) -> Any:
    marks = pytest.mark.near_miss(*(f"SCALING.{measure}" for measure in measures))
    return pytest.param(change, marks=marks, id=name)


NEAR = [
    near("four nodes lose three tenths", rung(all_ranks(1.2), FOUR), "efficiency"),
    near(
        "busy cores take a fifth everywhere",
        rung(all_ranks(1.25, "forward"), ONE, TWO, FOUR, AGAIN, DELAYED),
        *("tokens_per_s", "efficiency"),
    ),
    near("one rank is a little late", rung(one_rank(1.1), FOUR), "straggler"),
    near(
        "a large loss that is a number",
        rung(large_loss, FOUR),
        "non_finite",
    ),
    near(
        "a mean that was added up in another order",
        rung(another_order, FOUR),
        "disagreements",
    ),
    near("the host's clock is read 5 ms late", lambda _: None, "wall_gap", "residual"),
]


@pytest.mark.parametrize("change", NEAR)
def test_what_a_sound_ladder_may_show_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    played = play(LADDER, monkeypatch, change)
    assert played.failed == set()
    assert played.result.verdict in (Verdict.PASS, Verdict.MARGINAL), played.result.problems()
    assert played.result.findings == []


def copy_rung(source: int, target: int, steps: int) -> Change:
    """Have a control's run be as the sound one was."""

    def apply(answers: Answers) -> None:
        sound = answers.kept["run train_rank"][source]
        answers.kept["run train_rank"][target] = sound

        def cut(results: Results) -> Results:
            for result in results:
                result["steps"], result["spans"] = result["steps"][:steps], result["spans"][:steps]
            return results

        answers.change("run train_rank", cut, target)

    return apply


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        (copy_rung(AGAIN, SLOW_BASE, 4), {"slow base", "exploding loss"}),
        (copy_rung(FOUR, DELAYED, 5), {"planted delay"}),
    ],
    ids=["the base was not slow", "nobody was delayed"],
)
def test_a_control_that_sees_nothing_takes_the_pass_away(
    monkeypatch: pytest.MonkeyPatch, change: Change, missed: set[str]
) -> None:
    result = play(LADDER, monkeypatch, change).result
    assert {one.name for one in result.controls if not one.caught} == missed
    assert result.verdict is Verdict.UNPROVEN
