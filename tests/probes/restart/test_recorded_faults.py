"""A recorded killed run with one thing changed in what was seen of it: that fails, and only that.

And with as much changed as a sound run may show: nothing fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from probes.check.recorder import Recorder
from probes.restart.faulted_run import SAVE_EVERY, FaultedRun
from probes.restart.reference_run import NEWEST
from reports.measurement import Verdict
from tests.recordings.tape.play import Played, play
from tests.recordings.tape.synthetic import TAPES
from tests.recordings.tape.tape import Answers

SOUND = TAPES / "lab-sound"
KILLED = SOUND / "killed_run_resumes_as_if_never_killed[killed-in-a-step-then-in-a-save].tape.gz"
REPEATED = SOUND / "a_run_can_be_repeated.tape.gz"
DAMAGED = SOUND / "a_damaged_checkpoint_is_refused[metadata-torn].tape.gz"
Change = Callable[[Answers], None]


def run(change: Callable[[FaultedRun], Any]) -> Change:
    """Change what was seen of the killed run."""

    def changed(found: FaultedRun) -> FaultedRun:
        change(found)
        return found

    return lambda answers: answers.change("run_with_faults", changed)


def original(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Change what the run never killed told, or what was made of its checkpoints."""

    def changed(found: dict[str, Any]) -> dict[str, Any]:
        change(found)
        return found

    return lambda answers: answers.change("original", changed)


def answer(question: str, told: Any, at: int = 0) -> Change:
    """Have another answer to a question."""
    return lambda answers: answers.change(question, lambda _: told, at)


def one_bit(results: Any, rank: int = 1, at: int = -1) -> None:
    results[rank]["steps"][at]["loss_hex"] = "0x1.511ab40000000p+2"


def damaged(name: str, change: Callable[[Any], Any]) -> Change:
    return original(lambda told: change(told["corrupted"][name]))


def later(seconds: float) -> Change:
    """The last life began so many seconds later."""

    def change(found: FaultedRun) -> None:
        for event in found.journals[-1]:
            event["t"] += seconds

    return run(change)


def no_number(results: Any) -> None:
    results[0]["steps"][2]["loss"] = math.nan


def loaded(results: Any) -> None:
    """Every rank went on from the checkpoint that was damaged."""
    for each in results:
        each["start_step"], each["skipped"] = NEWEST, []
        each["steps"] = [step for step in each["steps"] if step["step"] > NEWEST]


def unexplained(results: Any) -> None:
    for each in results:
        each["skipped"] = []


RANK = ("node3", 4711, 90)
# What changes, what then fails, and the findings.
RED: dict[str, tuple[Any, Change, set[str], set[str]]] = {
    "one bit of one loss": (
        *(KILLED, run(lambda one: one_bit(one.results))),
        *({"unequal_steps"}, {"RESTART-UNEQUAL"}),
    ),
    "one bit before the first kill": (
        *(KILLED, run(lambda one: one.journals[0][2].update(loss_hex="0x1p+2"))),
        *({"unequal_steps"}, {"RESTART-NONDETERMINISTIC"}),
    ),
    "other samples": (
        *(KILLED, run(lambda one: one.results[2]["steps"][0].update(ids=[0, 1, 2, 3]))),
        *({"unequal_steps"}, {"RESTART-UNEQUAL"}),
    ),
    "parameters of one rank": (
        *(KILLED, run(lambda one: one.results[2].update(digest="0" * 64))),
        *({"final_state"}, {"RESTART-UNEQUAL"}),
    ),
    "a loss that is no number": (
        *(KILLED, run(lambda one: no_number(one.results))),
        *({"non_finite"}, {"RESTART-NAN"}),
    ),
    "an attempt that nobody struck": (
        *(KILLED, run(lambda one: one.attempts.append(deepcopy(one.attempts[-1])))),
        *({"attempts"}, {"RESTART-ATTEMPTS"}),
    ),
    "it began at the first step again": (
        *(KILLED, run(lambda one: one.journals[-1][0].update(start_step=0))),
        *({"resumed_from", "steps_lost"}, {"RESTART-STEPS-LOST"}),
    ),
    "it did not come back": (
        *(KILLED, run(lambda one: (one.results.clear(), setattr(one, "error", "no room")))),
        *({"outcome"}, {"RESTART-NOT-RECOVERED"}),
    ),
    "it came back after a minute": (KILLED, later(55), {"recovery_time"}, {"RESTART-SLOW"}),
    "a rank still runs": (
        *(KILLED, answer("find_orphans", ({RANK: 3}, []))),
        *({"still_running"}, {"RESTART-LEAK"}),
    ),
    "a group is left": (
        *(KILLED, answer("groups_named", [4])),
        *({"not_released"}, {"RESTART-LEAK"}),
    ),
    "the run cannot be repeated": (
        *(REPEATED, original(lambda told: one_bit(told["repeated"], 3, 0))),
        *({"unequal_steps"}, {"RESTART-NONDETERMINISTIC"}),
    ),
    "a damaged checkpoint was loaded": (
        *(DAMAGED, damaged("metadata-torn", loaded)),
        *({"not_refused", "resumed_from", "refusals_explained"}, {"RESTART-DAMAGED-LOADED"}),
    ),
    "a damaged checkpoint was loaded by one rank": (
        *(DAMAGED, damaged("metadata-torn", lambda results: loaded(results[1:2]))),
        *({"not_refused", "resumed_from"}, {"RESTART-DAMAGED-LOADED"}),
    ),
    "a damaged checkpoint was skipped without a reason in the log": (
        *(DAMAGED, damaged("metadata-torn", unexplained)),
        *({"refusals_explained"}, {"RESTART-UNREPORTED"}),
    ),
    "after a damaged checkpoint it is another run": (
        *(DAMAGED, damaged("metadata-torn", one_bit)),
        *({"unequal_steps"}, {"RESTART-UNEQUAL"}),
    ),
    "a damaged checkpoint ended the run": (
        *(DAMAGED, original(lambda told: told["corrupted"].update({"metadata-torn": "torn"}))),
        *({"outcome"}, {"RESTART-NOT-RECOVERED"}),
    ),
}


@pytest.mark.parametrize("name", RED)
def test_what_is_changed_fails_and_nothing_else(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    tape, change, fails, codes = RED[name]
    played = play(tape, monkeypatch, change)
    assert played.failed == fails, played.result.problems()
    assert {one.code for one in played.result.findings} == codes


def test_a_kill_that_killed_nobody_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def miss(found: FaultedRun) -> None:
        found.injectors[1].count, found.injectors[1].error = 0, "its hand was gone"

    result = play(KILLED, monkeypatch, run(miss)).result
    missed = {one.name: one for one in result.measurements if one.verdict is Verdict.UNPROVEN}
    blow = missed["faults_injected"]
    assert (blow.subject, blow.value, blow.note) == ("kill 2", None, "its hand was gone")
    assert (result.verdict, result.findings) == (Verdict.UNPROVEN, [])


def near(name: str, tape: Any, change: Change, *measures: str) -> Any:
    marks = pytest.mark.near_miss(*(f"RESTART.{measure}" for measure in measures))
    return pytest.param(tape, change, marks=marks, id=name)


NEAR = [
    near("as sound as it was", KILLED, lambda _: None, "outcome", "attempts", "resumed_from"),
    near("all steps since the save are lost", KILLED, lambda _: None, "steps_lost"),
    near("it came back after 50 s", KILLED, later(36), "recovery_time"),
    near(
        *("other times, the same numbers", KILLED),
        run(lambda one: [step.update(seconds=9.0) for step in one.results[0]["steps"]]),
        *("unequal_steps", "final_state"),
    ),
    near(
        *("a large loss that is a number", KILLED),
        run(lambda one: one.results[0]["steps"][2].update(loss=1e38)),
        "non_finite",
    ),
    near(
        *("two blows that took their time", KILLED),
        run(lambda one: [setattr(i, "sent", i.sent - 9) for i in one.injectors]),
        "faults_injected",
    ),
    near("ranks ended within the time that they have", KILLED, lambda _: None, "still_running"),
    near("groups of other people are left", KILLED, answer("groups_named", []), "not_released"),
    near(
        *("refused for another reason", DAMAGED),
        damaged("metadata-torn", lambda r: r[0]["skipped"][0].update(reason="it was cut")),
        *("not_refused", "refusals_explained"),
    ),
]


@pytest.mark.parametrize(("tape", "change"), NEAR)
def test_what_a_sound_run_may_show_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, tape: Any, change: Change
) -> None:
    played = play(tape, monkeypatch, change)
    assert played.result.findings == []
    assert played.result.verdict in (Verdict.PASS, Verdict.MARGINAL), played.result.problems()


# On GPUs (synthetic: the recorded run was on CPUs) NCCL may add up over other rings.


def on_gpus(rings: Callable[[str], Any], shift: float, samples: bool = False) -> Change:
    """Both runs were on GPUs; `rings` tells those of "before" and "after", `shift` is how far the
    losses of the resumed run are from what they were."""

    def before(told: dict[str, Any]) -> None:
        for one in told["results"]:
            one.update(device="cuda:0", rings=rings("before"))

    def after(found: FaultedRun) -> None:
        for one in found.results:
            one.update(device="cuda:0", rings=rings("after"), digest="other bits")
            for step in one["steps"]:
                step.update(loss=step["loss"] + shift, loss_hex="0x1p+2", digest="other bits")
                step.update({"ids": [9, 9, 9, 9]} if samples else {})
        for life in found.journals:
            life.insert(1, {"event": "rings", "rings": rings("after")})

    return lambda answers: (original(before)(answers), run(after)(answers))[0]


def only(word: str) -> Callable[[str], Any]:
    return lambda when: [f"0: 3 -> 0 -> {word if when == 'after' else 1}"]


def judged(played: Played, name: str) -> Any:
    (found,) = [one for one in played.result.measurements if one.name == name]
    return found


@pytest.mark.parametrize("shift", [1e-9, 2e-4])  # half of the least wrong resume's is 2.5e-4
def test_last_bits_may_differ_where_nccl_added_over_other_rings(
    monkeypatch: pytest.MonkeyPatch, shift: float
) -> None:
    played = play(KILLED, monkeypatch, on_gpus(only("2"), shift))
    assert played.result.problems() == []
    assert judged(played, "unequal_steps").value == 0
    assert judged(played, "final_state").value == "reordered"
    (said,) = [text for text in played.covered if "rings" in text]
    assert said.startswith(
        "NCCL used different rings on rank 0, so losses are allowed to differ by "
    )


@pytest.mark.parametrize(
    ("rings", "shift", "samples"),
    [
        (lambda when: ["0: 3 -> 0 -> 1"], 1e-9, False),  # the same rings: the same bits
        (only("2"), 0.5, False),  # no order of sums moves a loss so far
        (only("2"), 3e-4, False),
        (only("2"), math.nan, False),
        (only("2"), 1e-9, True),  # nor does it change samples
    ],
    ids=["the same rings", "far too far", "too far", "no number", "other samples"],
)
def test_what_other_rings_cannot_explain_is_unequal(
    monkeypatch: pytest.MonkeyPatch, rings: Callable[[str], Any], shift: float, samples: bool
) -> None:
    played = play(KILLED, monkeypatch, on_gpus(rings, shift, samples))
    assert "unequal_steps" in played.failed
    assert "RESTART-UNEQUAL" in {one.code for one in played.result.findings}


@pytest.mark.parametrize("untold", [("before", "after"), ("before",), ("after",)])
def test_rings_that_nccl_did_not_tell_may_have_been_any(
    monkeypatch: pytest.MonkeyPatch, untold: tuple[str, ...]
) -> None:
    def rings(when: str) -> list[str] | None:
        return None if when in untold else ["0: 3 -> 0 -> 1"]

    played = play(KILLED, monkeypatch, on_gpus(rings, 1e-9))
    assert played.result.problems() == []
    (said,) = [text for text in played.covered if "rings" in text]
    assert said.startswith("NCCL did not log the rings of rank 0, so losses")


def test_without_a_wrong_resume_nobody_knows_how_far_is_too_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forget(answers: Answers) -> None:
        on_gpus(only("2"), 1e-9)(answers)
        original(lambda told: told["wrong_resumes"].clear())(answers)

    played = play(KILLED, monkeypatch, forget)
    unequal = judged(played, "unequal_steps")
    assert (unequal.value, unequal.verdict) == (None, Verdict.UNPROVEN)
    assert unequal.note.endswith("gave no loss. Run RESTART again")


# A control that is blind: what it should have changed is as it was.
BLIND: dict[str, tuple[Any, Change, set[str]]] = {
    f"nothing was forgotten of {part}": (
        REPEATED,
        original(lambda told, part=part: told["wrong_resumes"].update({part: told["results"]})),
        {f"resume forgets: {part}"},
    )
    for part in ("rng", "data", "optimizer", "peer", "all")
} | {
    "the loss did not explode": (
        *(REPEATED, original(lambda told: told.update(exploded=told["results"]))),
        {"exploding loss"},
    ),
    "the control's gang was not counted": (
        *(KILLED, answer("groups_named", [], 1)),
        {"left behind on purpose"},
    ),
    "the control's rank was not found": (
        *(KILLED, answer("find_orphans", ({}, []), 1)),
        {"left behind on purpose"},
    ),
}


@pytest.mark.parametrize("name", BLIND)
def test_a_control_that_sees_nothing_takes_the_pass_away(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    tape, change, missed = BLIND[name]
    result = play(tape, monkeypatch, change).result
    assert {one.name for one in result.controls if not one.caught} == missed
    assert result.verdict is Verdict.UNPROVEN


def test_the_scenario_is_the_one_that_loses_most() -> None:
    """What is near to a fault rests on it: a save each four steps, and a kill before the next."""
    assert (SAVE_EVERY, NEWEST) == (4, 8)


def test_the_loss_curve_marks_the_first_of_two_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(Recorder, "series", lambda _, name, data: drawn.update({name: data}))
    play(KILLED, monkeypatch)
    curve = drawn["loss"]
    assert (curve["killed_at"], curve["resumed_from"]) == (6, 4)  # the second: in the save of 8
    assert len(curve["resumed"]) > len(curve["reference"])
