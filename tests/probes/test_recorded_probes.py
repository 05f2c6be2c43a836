"""Probes over what a cluster answered: sound, with a fault in it, and with an answer taken away.

The tapes are of labs and of one H200; those of many GPUs are synthetic (tests/recordings/tape).
What each must come to is written by hand in expected.toml.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from probes.toml_tables import read_tables
from reports.measurement import Verdict
from tests.recordings.tape.play import Played, play
from tests.recordings.tape.say import said, said_file
from tests.recordings.tape.synthetic import TAPES
from tests.recordings.tape.tape import Answers, NoAnswer
from tests.support.controls import MemoryRecorder

ALL = {
    str(path.relative_to(TAPES)).removesuffix(".tape.gz"): path
    for path in sorted(TAPES.glob("*/*.tape.gz"))
}
EXPECTED: dict[str, dict[str, Any]] = read_tables(TAPES / "expected.toml")


@cache
def played_once(name: str) -> Played:
    """What comes of a tape as it is."""
    with pytest.MonkeyPatch.context() as patch:
        return play(ALL[name], patch)


def failed(played: Played) -> list[str]:
    """Measures that failed, each once, in the order of the probe."""
    judged = [one for one in played.result.measurements if one.judged]
    return list(dict.fromkeys(one.name for one in judged if one.verdict is Verdict.FAIL))


def test_each_tape_has_its_expectation_with_the_reason() -> None:
    assert EXPECTED.keys() == ALL.keys()
    assert all(len(one["because"].split()) > 3 for one in EXPECTED.values())
    synthetic = {name for name, path in ALL.items() if "synthetic" in Answers(path).next("run")}
    assert synthetic == {name for name in ALL if name.startswith("gpus-")}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_probe_comes_to_what_it_must(name: str) -> None:
    expected, played = EXPECTED[name], played_once(name)
    told = [one.sentence() for one in played.result.measurements if one.severity]
    assert played.result.verdict.value == expected["verdict"], [played.error, *told]
    assert sorted(failed(played)) == sorted(expected.get("red", [])), told
    found = played.result.findings
    assert sorted({one.code for one in found}) == sorted(expected.get("codes", []))
    suspects = {name for one in found for name in one.suspects}
    assert suspects == set(expected.get("suspects", []))
    if expected["verdict"] == "PASS":
        assert [one.sentence() for one in played.result.controls if not one.caught] == []
        assert played.result.controls


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_probe_says_what_it_said(name: str) -> None:
    """Word by word: `python -m tests.recordings.tape.say` writes it anew."""
    assert said(played_once(name)) == said_file(ALL[name]).read_text()


def test_each_terminal_of_the_documented_path_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[str] = []

    def keep(_: MemoryRecorder, name: str, content: Any, **about: str) -> str:
        kept.append(name)
        return name

    monkeypatch.setattr(MemoryRecorder, "keep", keep)
    play(ALL["lab-sound/documented_path_starts_a_correct_job"], monkeypatch)
    assert {f"transcript{of}.txt" for of in ("", "-control", "-planted")} <= {*kept}


SOUND = [name for name, one in EXPECTED.items() if one["verdict"] == "PASS"]


@dataclass
class Loss:
    """One answer of a tape that does not come."""

    question: str
    at: int

    def __call__(self, answers: Answers) -> None:
        answers.refuse(self.question, self.at, "taken away")


HEADS = ("run", "stage", "started", "original")  # of a tape, and no answer of a cluster


# What only informs: what collectives take alone explains a loss, and here nothing is lost.
INFORMS = {"lab-sound/each_node_adds_its_share": ("run read_counters", "run replay_on_rank")}


@pytest.mark.parametrize("name", SOUND)
def test_no_answer_that_is_taken_away_leaves_a_pass(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    passed, asked = [], played_once(name).asked
    losses = [Loss(q, at) for q in asked if q not in HEADS for at in range(asked[q])]
    for loss in losses:
        with monkeypatch.context() as patch:
            try:
                played = play(ALL[name], patch, loss)
            except NoAnswer:  # it asks for more: it did not go on as if nothing had been
                continue
            if played.result.verdict in (Verdict.PASS, Verdict.MARGINAL):
                passed.append(loss.question)
    assert sorted(set(passed) - set(INFORMS.get(name, ()))) == []
