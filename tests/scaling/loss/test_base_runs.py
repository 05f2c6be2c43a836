"""A base that was disturbed, or that no second run confirms, proves no efficiency."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from probes.scaling.judge import proven_efficiency
from reports.measurement import Limit, Verdict
from reports.run_folder.integrity import load
from scaling.ladder.ladder import Rung
from scaling.ladder.step_breakdown import Step
from scaling.loss.ladder_result import Ladder, base_doubt, load_ladder
from tests.probes.cli.test_scaling import AT_FOUR, figures, said, save
from tests.support.simulated_ladder import ladder, with_rung
from tests.support.simulated_steps import longer

LIMIT = Limit(low=0.9, marginal_low=0.95, because="as agreed")


def base() -> Rung:
    return ladder().rungs[0]


def disturbed(rung: Rung, seconds: float, every: int = 1) -> Rung:
    """The rung, of which every so many steps take longer on all nodes."""
    steps = [
        [longer(step, "forward", seconds) if at % every == 0 else step
         for at, step in enumerate(steps)]
        for steps in rung.steps
    ]  # fmt: skip
    return replace(rung, steps=steps)


def test_a_base_that_another_run_repeats_is_one() -> None:
    sound = base()
    assert base_doubt(sound, [sound.seconds * 1.03]) == ""
    # Of three the odd one was disturbed: the two fastest agree.
    assert base_doubt(sound, [sound.seconds * 1.4, sound.seconds * 1.03]) == ""


def lasting(*seconds: float) -> Rung:
    """One node's rung, the steps of which take so long."""
    return Rung(1, ["a"], [[Step(each, {"forward": each}) for each in seconds]], 512, 0)


@pytest.mark.parametrize(("seconds", "other"), [(1.0, 1.05), (1.05, 1.0), (10.0, 10.4)])
def test_runs_that_differ_by_no_more_than_five_per_cent_confirm_each_other(
    seconds: float, other: float
) -> None:
    assert base_doubt(lasting(*[seconds] * 8), [other]) == ""


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([], "was not repeated"),
        ([1.13], "differ by more than 5 %"),  # the fastest, and nobody confirms it
        ([1.2, 1.22], "differ by more than 5 %"),
        ([0.8, 0.81], "differ by more than 5 %"),  # the median run's was a slow one
    ],
)
def test_a_base_unlike_its_repeats_is_doubted(others: list[float], words: str) -> None:
    sound = base()
    assert words in base_doubt(sound, [sound.seconds * each for each in others])


def test_a_base_whose_steps_are_disturbed_is_doubted_however_well_it_repeats() -> None:
    rough = disturbed(base(), 0.3, every=4)
    assert "the run on one node was disturbed" in base_doubt(rough, [rough.seconds])


def doubted(found: Ladder, slow_s: float, repeats: list[Rung]) -> Ladder:
    """The ladder whose one node's rung took so much longer."""
    slow = disturbed(found.rungs[0], slow_s)
    return replace(with_rung(found, 0, steps=slow.steps), base_repeats=repeats)


def test_a_slow_base_takes_a_pass_away_and_never_a_failure() -> None:
    """A true efficiency of 0.79 reads 0.96 by a base that was disturbed by a fifth."""
    found = ladder(tokens=0.2)
    top = found.rungs[-1]
    assert LIMIT.judge(found.efficiency(top)) is Verdict.FAIL
    flattered = doubted(found, 0.22, [found.rungs[0]])
    assert LIMIT.judge(flattered.efficiency(top)) is Verdict.PASS
    value, note = proven_efficiency(flattered, top, LIMIT)
    assert value is None
    assert "differ by more than 5 %" in note
    still = doubted(found, 0.08, [found.rungs[0]])
    assert "differ by more than" in still.base_doubt
    assert proven_efficiency(still, top, LIMIT) == (still.efficiency(top), "")


def test_the_page_and_the_report_say_alike_of_a_doubted_base(tmp_path: Path) -> None:
    run = save(tmp_path / "run", doubted(ladder(), 0.1, []))
    seen = figures(run, "efficiency")[AT_FOUR]
    assert (seen.verdict, seen.value) == (Verdict.UNPROVEN, None)
    assert "was not repeated" in seen.note
    assert load(run).verdict("SCALING") is Verdict.UNPROVEN
    told = said("report", run).output
    assert told.count(": UNPROVEN") == 2
    assert "was not repeated" in told


def test_repeats_come_back_and_must_be_there() -> None:
    found = replace(ladder(), base_repeats=[disturbed(base(), 0.01)])
    content = json.loads(json.dumps(found.to_dict()))
    assert load_ladder(content) == found
    del content["base_repeats"]
    with pytest.raises(ValueError, match="base_repeats"):
        load_ladder(content)


@pytest.mark.parametrize("wrong", ["another size", "other nodes"])
def test_what_is_no_repeat_of_the_base_is_refused(wrong: str) -> None:
    content = json.loads(json.dumps(ladder().to_dict()))
    repeat = content["rungs"][1 if wrong == "another size" else 0]
    if wrong == "other nodes":
        repeat = repeat | {"nodes": ["elsewhere", *repeat["nodes"][1:]]}
    content["base_repeats"] = [repeat]
    with pytest.raises(ValueError, match="expected base_repeats with count 1 on the nodes"):
        load_ladder(content)
