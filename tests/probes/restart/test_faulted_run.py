"""RESTART's reading of what it saw, on journals written down by hand; no cluster."""

import inspect
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from probes.faults.process_faults import Fault
from probes.restart import faulted_run
from probes.restart.criterion import FORGETS
from probes.restart.faulted_run import (
    FaultedRun,
    FaultScenario,
    FaultScheduler,
    _read_attempts,
    ettr,
    faulted_config,
    recovery_costs,
    split_by_attempt,
)
from probes.restart.judge import (
    _report_storage,
    judge_completion,
    judge_equality,
    judge_recovery_time,
    judge_resume,
    judge_run,
    recovery_seconds,
)
from probes.restart.other_ranks import samples_differ, unexplained_losses
from probes.restart.reference_run import (
    KEY_WORDS,
    compare_attempts,
    compare_steps,
    link_tree,
    loss_distance,
)
from probes.restart.scenarios import control_wrong_resume
from reference_trainer.config import TrainConfig
from reference_trainer.launch.supervisor import Attempt, supervise
from reference_trainer.telemetry.event_log import NO_DELAYS
from reports.measurement import Limit, Verdict
from tests.support.controls import recorder


def life(first, last, *, t, up_s=5.0):
    """A rank's journal from its start after step `first - 1` to its last step, a second each."""
    events = [{"event": "start", "start_step": first - 1, "t": t, "up_s": up_s}]
    for step in range(first, last + 1):
        events.append({"event": "begin", "step": step, "t": t + step - first})
        events.append({"event": "step", "step": step, "t": t + step - first + 1, "seconds": 1.0})
    return events


@pytest.fixture
def voyage():
    """Six steps done, struck in the seventh; back from step 4, and on to 10."""
    scenario = FaultScenario(
        name="x", summary="x", faults=(Fault("begin", 7),), resume_step=4, max_lost=4
    )
    journal = [*life(1, 6, t=100.0), {"event": "begin", "step": 7, "t": 106.1}]
    journal += life(5, 10, t=120.0)
    return FaultedRun(
        scenario=scenario,
        injectors=[SimpleNamespace(sent=1106.2, injected_at=106.2, count=1)],
        results=[{}],
        attempts=[
            Attempt(places=[], started=1090.0, ready=1095.0, ended=1107.0),
            Attempt(places=[], started=1107.0, ready=1112.0, ended=1130.0),
        ],
        error="",
        journals=split_by_attempt(journal),
    )


def test_lives_are_cut_at_each_start(voyage):
    assert [len(voyage.step_events(at)) for at in (0, 1)] == [6, 6]
    ((done, start),) = voyage.resume_points
    assert (done, start["start_step"]) == (6, 4)
    assert split_by_attempt([{"event": "step"}]) == []


def test_a_life_that_gets_nowhere_does_not_hide_what_was_done_before(voyage):
    voyage.journals.insert(1, life(5, 4, t=110.0))
    assert [done for done, _ in voyage.resume_points] == [6, 6]


def test_costs_of_a_blow(voyage):
    cost = recovery_costs(voyage, 0)
    assert cost["detect"] == pytest.approx(0.8)
    assert cost["reschedule"] == pytest.approx(5.0)
    assert cost["init"] == pytest.approx(6.0)  # 5 s up at its start, and 1 s of its first step
    assert cost["redo"] == pytest.approx(2.0)  # steps 5 and 6
    assert recovery_seconds(voyage)[0] == pytest.approx(120.0 + 3 - 106.2)
    assert ettr(voyage) == pytest.approx(10 / 40)


def test_a_step_is_done_when_its_save_begins(voyage):
    voyage.journals[1].insert(-8, {"event": "saving", "step": 7, "t": 122.5})
    assert recovery_seconds(voyage)[0] == pytest.approx(122.5 - 106.2)


def held(voyage, mode="sync"):
    """Saves of step 8 are held for 8 s; the victim died in one, and did one in its next life.

    A second fault was meant for that life: only an attempt without a fault holds no save.
    """
    stall = "commit:rank=0:seconds=8:from=8:to=8"
    faults = (Fault("begin", 7), Fault("written", 8))
    scenario = replace(voyage.scenario, faults=faults, changes={"stall": stall, "save_mode": mode})
    journal = [*life(1, 7, t=100.0), {"event": "saving", "step": 8, "t": 108.0}]
    journal += life(5, 10, t=120.0)
    journal[-5]["seconds"] += 8.0
    journal.insert(-5, {"event": "saving", "step": 8, "t": 123.5})
    return replace(voyage, scenario=scenario, journals=split_by_attempt(journal))


def test_who_dies_in_a_save_has_lost_the_step_that_was_saved(voyage):
    ((done, start),) = held(voyage).resume_points
    assert (done, start["start_step"]) == (8, 4)


def test_what_is_held_up_on_purpose_is_no_training_and_no_cost(voyage):
    assert held(voyage).step_seconds(1)[8] == (1.0, 8.0)
    assert recovery_costs(held(voyage), 0)["redo"] == pytest.approx(4.0)  # steps 5 to 8
    assert ettr(held(voyage)) == pytest.approx(10 / (40 - 8))
    assert ettr(held(voyage, "async")) is None  # who waited for it is not known
    assert recovery_costs(held(voyage, "async"), 0)["redo"] == pytest.approx(12.0)


def test_a_save_that_is_held_up_after_the_first_new_step_is_no_part_of_the_recovery(voyage):
    run = held(voyage)
    run.scenario.changes["stall"] = "commit:rank=0:seconds=8:from=8:to=10"
    run.journals[1].append({"event": "saving", "step": 10, "t": 126.0})
    assert run.step_seconds(1)[10][1] == 8.0
    assert recovery_seconds(run) == recovery_seconds(held(voyage))


def test_what_a_save_that_was_held_took_is_not_told(voyage):
    saves = [{"step": 8, "bytes": 4, "seconds": 8.5}, {"step": 10, "bytes": 4, "seconds": 0.5}]
    spans = [
        {"step": step, "segments": {"checkpoint": seconds}}
        for step, seconds in ((7, 0.0), (8, 8.5), (9, 0.0), (10, 0.6))
    ]
    result = {"checkpoints": saves, "spans": spans, "load_bytes": 0, "load_seconds": 0.0}
    for mode, wanted in (
        ("sync", {"save_rate": 8.0, "save_stall": 0.6}),
        ("async", {"save_rate": 8}),
    ):
        told, run = Told(), held(voyage, mode)
        run.results = [result]
        told.note = lambda name, value, *_, told=told, **__: told(name, value)
        _report_storage(run, told)
        assert told.values == wanted


def test_without_the_run_never_killed_its_controls_say_so():
    measure = recorder("RESTART")
    original = SimpleNamespace(wrong_resumes={}, results=[], exploded="")
    control_wrong_resume(original, measure)
    controls = measure.result("finished", 1.0).controls
    told = {(one.caught, one.saw) for one in controls}
    assert told == {(None, "the undisturbed run, which is needed for the comparison, was not made")}
    assert {one.name for one in controls} == {*FORGETS}


def test_parameters_that_differ_after_a_step_are_unequal_whatever_the_loss():
    steps = [{"step": 1, "loss_hex": "0x1", "digest": "a" * 64}]
    other = [{**steps[0], "digest": "b" * 64}]
    (found,) = compare_steps([{"rank": 0, "steps": steps}], [{"rank": 0, "steps": other}]).unequal
    key = "hash of the parameters"
    assert str(found) == f"rank 0, step 1: {key} bbbbbbbbbbbb... instead of aaaaaaaaaaaa..."


def test_what_the_first_gang_did_before_is_not_the_runs_time(voyage):
    voyage.setup_s = 15.0
    assert ettr(voyage) == pytest.approx(10 / 25)


def test_the_aim_counts_what_is_done_before_and_only_then():
    did = []
    aim = FaultScheduler([], lambda gang: did.append(time.sleep(0.1)))  # what is done takes a while
    assert aim.setup_s == 0, "no attempt has begun"
    gang = SimpleNamespace(environment=None)
    aim(gang, 1)
    assert 0.1 <= aim.setup_s < 60
    before = aim.setup_s
    aim(gang, 2)
    assert (len(did), aim.setup_s) == (1, before)


def test_each_attempt_gets_the_next_fault_and_the_last_one_none_and_no_delay():
    own = None, None, {"A": "1"}, None
    gangs = [SimpleNamespace(number=at, environment=one) for at, one in enumerate(own)]
    armed = [], []
    aim = FaultScheduler([SimpleNamespace(arm=each.append) for each in armed], lambda gang: None)
    for attempt, gang in enumerate(gangs, 1):
        aim(gang, attempt)
    assert armed == ([gangs[0]], [gangs[1]])
    none = {NO_DELAYS: "1"}
    assert [gang.environment for gang in gangs] == [None, None, {"A": "1", **none}, none]


def test_a_save_is_held_in_attempts_with_a_fault_alone(voyage):
    scenario = held(voyage).scenario
    assert [scenario.stall_seconds(8, attempt) for attempt in (0, 1, 2)] == [8, 8, 0]
    assert scenario.stall_seconds(7, 0) == 0


def test_a_run_restarts_as_often_as_the_command_does_unless_its_scenario_says():
    usual = inspect.signature(supervise).parameters["restarts"].default
    assert FaultScenario(name="x", summary="x", faults=()).restarts == usual


def test_a_run_has_folders_of_its_own_and_what_its_scenario_changes(tmp_path):
    scenario = FaultScenario(name="x", summary="x", faults=(), changes={"save_mode": "async"})
    config = faulted_config(TrainConfig(steps=7, checkpoints="others"), scenario, tmp_path)
    assert (config.out, config.checkpoints) == (
        str(tmp_path / "out"),
        str(tmp_path / "checkpoints"),
    )
    assert (config.steps, config.save_mode) == (7, "async")


def test_what_was_not_seen_is_none(voyage):
    voyage.injectors[0].sent = voyage.injectors[0].injected_at = 0.0
    voyage.journals, voyage.attempts, voyage.results = voyage.journals[:1], voyage.attempts[:1], []
    cost = recovery_costs(voyage, 0)
    assert cost == {"detect": None, "reschedule": None, "init": None, "redo": 0.0}
    assert recovery_seconds(voyage)[0] is None
    assert ettr(voyage) is None


def recovery_note(voyage):
    """The reason that is given where the recovery time is not known."""
    notes, limit = {}, Limit(high=120, because="agreed")
    judge_recovery_time(voyage, limit, lambda name, value, note: notes.update({value: note}))
    return notes[None]


def test_why_the_recovery_time_is_not_known_is_said(voyage):
    strike = SimpleNamespace(sent=0.0, injected_at=0.0, count=0, error="")
    unseen = replace(voyage, injectors=[strike])  # it did make new steps
    assert recovery_note(unseen) == "the time of the last fault is not known"
    strike.error = "the agent did not start"
    assert recovery_note(unseen) == "the agent did not start"
    once = replace(voyage, journals=voyage.journals[:1])
    assert recovery_note(once) == "the run made no second attempt"
    back = split_by_attempt([*life(1, 6, t=100.0), *life(5, 6, t=120.0)])
    assert recovery_note(replace(voyage, journals=back)) == "the run made no new step"


def test_the_parts_of_a_slow_recovery_are_those_of_the_last_fault(voyage):
    """Its recovery is the one that is timed; what the first one cost does not explain it."""
    voyage.injectors.append(SimpleNamespace(sent=1127.0, injected_at=127.0, count=1))
    voyage.attempts.append(Attempt(places=[], started=1130.0, ready=1150.0, ended=1170.0))
    voyage.journals += split_by_attempt(life(9, 12, t=160.0, up_s=8.0))
    assert recovery_seconds(voyage)[0] == pytest.approx(160.0 + 3 - 127.0)
    measure = recorder("RESTART")
    judge_recovery_time(voyage, Limit(high=30, because="agreed"), measure)
    (found,) = measure.findings
    parts = "detection 3 s, rescheduling 20 s, start-up to the first step 9 s"
    assert (found.code, found.statement) == (
        "RESTART-SLOW",
        f"parts of the recovery time: {parts}",
    )


def test_a_start_without_a_step_or_on_a_host_that_does_not_say_when_has_no_known_length(voyage):
    start, *rest = voyage.journals[1]
    for again in ([{**start, "up_s": None}, *rest], [start]):
        run = replace(voyage, journals=[voyage.journals[0], again])
        assert recovery_costs(run, 0)["init"] is None


def test_a_launcher_that_was_killed_before_it_logged_an_attempt_has_no_cost(voyage):
    voyage.attempts = []
    cost = recovery_costs(voyage, 0)
    assert (cost["detect"], cost["reschedule"]) == (None, None)


def test_the_bit_that_is_flipped_is_in_the_middle_of_the_numbers(tmp_path, monkeypatch):
    """Before it lie another tensor and the archive's head, behind it the archive's index."""
    numbers = bytes(60)
    tensor = b"PK\x03\x04head" + b"PK\x07\x08" + numbers + b"PK\x01\x02index"
    before = bytes(200)
    (tmp_path / "data").write_bytes(before + tensor)
    piece = slice(len(before), len(before) + len(tensor))
    monkeypatch.setattr(faulted_run, "_find_weights", lambda newest: (newest / "data", piece))
    faulted_run.flip_bit(tmp_path)
    after = (tmp_path / "data").read_bytes()
    (changed,) = [at for at, byte in enumerate(after) if byte != (before + tensor)[at]]
    assert abs(changed - (len(before) + tensor.index(numbers) + len(numbers) / 2)) <= 2
    assert after[changed] == 64


class Told:
    """Stands in for a ledger: what was measured, and the codes of what was found."""

    def __init__(self):
        self.values, self.codes = {}, []

    def __call__(self, name, value, **more):
        self.values[name] = value

    def explain(self, found):
        self.codes.append(found.code)


def whole_run():
    """What every rank of the run never killed tells, with steps that are all alike."""
    bits = dict.fromkeys(KEY_WORDS, "0x1")
    steps = [{"step": step, "loss": 1.0, **bits} for step in range(1, 11)]
    return SimpleNamespace(results=[{"rank": 0, "steps": steps, "digest": "d"}])


def equality(voyage, first):
    """A function that judges the voyage, whose last life began with step `first`; what it told."""
    original, told = whole_run(), Told()
    steps = original.results[0]["steps"]
    voyage.injectors[0].rank = 0
    voyage.results = [{"start_step": first - 1, "steps": steps[first - 1 :], "digest": "d"}]
    voyage.journals[0] = [
        {**steps[event["step"] - 1], **event} if event["event"] == "step" else event
        for event in voyage.journals[0]
    ]
    return lambda: judge_equality(original, voyage, told) or told


@pytest.mark.parametrize(("first", "unequal"), [(5, 0), (11, None)])
def test_a_run_that_came_back_after_its_last_step_proves_nothing(voyage, first, unequal):
    told = equality(voyage, first)()
    assert (told.values["unequal_steps"], told.codes) == (unequal, [])


@pytest.mark.parametrize("restarted", [True, False])
def test_what_is_unequal_before_any_restart_is_not_the_restarts_fault(voyage, restarted):
    """Nor in a run that no fault reached: it restored nothing."""
    judge = equality(voyage, 5 if restarted else 1)
    steps = voyage.results[0]["steps"]
    if not restarted:
        voyage.journals = voyage.journals[:1]
        voyage.results = [
            {**voyage.results[0], "steps": [*steps[:2], {**steps[2], "loss_hex": "0x2"}]}
        ]
    voyage.journals[0][2]["loss_hex"] = "0x2"
    assert judge().codes == ["RESTART-NONDETERMINISTIC"]


def test_what_is_unequal_after_a_restart_is(voyage):
    judge = equality(voyage, 5)
    voyage.results[0]["steps"][0] = {**voyage.results[0]["steps"][0], "loss_hex": "0x2"}
    assert judge().codes == ["RESTART-UNEQUAL"]


def judged(voyage):
    told = Told()
    judge_completion(voyage, told)
    judge_resume(voyage, told)
    return told.values, told.codes


def test_a_run_that_came_back_as_it_should(voyage):
    values, codes = judged(voyage)
    assert values == {"outcome": "finished", "attempts": 2, "resumed_from": 4, "steps_lost": 2}
    assert codes == []


def test_a_blow_that_was_missed_proves_nothing_and_accuses_nobody(voyage):
    voyage.injectors[0].count = 0
    voyage.journals, voyage.attempts = voyage.journals[:1], voyage.attempts[:1]
    values, codes = judged(voyage)
    assert set(values.values()) == {None}
    assert codes == []


def test_a_blow_that_was_late_is_no_fault_of_the_run(voyage):
    """It was meant for step 7; the save of step 8 was done by then."""
    voyage.journals[0].append({"event": "saved", "step": 8, "t": 108.0})
    voyage.journals[1][0]["start_step"] = 8
    values, codes = judged(voyage)
    assert values["resumed_from"] is None
    assert codes == []


def test_the_newest_save_before_the_last_attempt_is_where_it_resumes(voyage):
    voyage.scenario = replace(voyage.scenario, resume_step=None)
    saves = [{"event": "saved", "step": step, "t": 100.0 + step} for step in (2, 4)]
    voyage.journals[0][-1:-1] = saves
    voyage.journals[1].append({"event": "saved", "step": 8, "t": 124.0})
    measure = recorder("RESTART")
    judge_resume(voyage, measure)
    (resumed, _) = measure.result("finished", 1.0).measurements
    assert (resumed.name, resumed.value, resumed.verdict) == ("resumed_from", 4, Verdict.PASS)


def test_without_a_save_it_resumes_from_the_beginning(voyage):
    voyage.scenario = replace(voyage.scenario, resume_step=None, max_lost=6)
    voyage.journals[1][0]["start_step"] = 0
    measure = recorder("RESTART")
    judge_resume(voyage, measure)
    (resumed, _) = measure.result("finished", 1.0).measurements
    assert (resumed.name, resumed.value, resumed.verdict) == ("resumed_from", 0, Verdict.PASS)


def test_one_blow_of_two_that_was_missed_proves_nothing(voyage):
    voyage.injectors.append(SimpleNamespace(count=0))
    voyage.journals[1][0]["start_step"] = 3
    values, codes = judged(voyage)
    assert [values[name] for name in ("outcome", "attempts", "resumed_from")] == [None] * 3
    assert codes == []


@pytest.mark.parametrize(("changes", "timed"), [({}, True), ({"timed": False}, False)])
def test_a_recovery_is_timed_unless_its_time_depends_on_others(voyage, changes, timed):
    voyage.scenario = replace(voyage.scenario, **changes)
    equality(voyage, 5)
    voyage.injectors[0].error, told = "", Told()
    judge_run(whole_run(), voyage, lambda name: Limit(high=60, because="as agreed"), told)
    assert ("recovery_time" in told.values) is timed


def test_a_run_that_does_not_come_back_has_failed_whatever_was_struck(voyage):
    voyage.injectors[0].count, voyage.results = 0, []
    values, codes = judged(voyage)
    assert values["outcome"] == "gave up"
    assert codes == ["RESTART-NOT-RECOVERED"]


def test_too_many_attempts_and_too_many_steps_lost_are_named(voyage):
    voyage.attempts.append(voyage.attempts[-1])
    voyage.journals[1][0]["start_step"] = 0
    values, codes = judged(voyage)
    assert (values["attempts"], values["steps_lost"]) == (3, 6)
    assert codes == ["RESTART-ATTEMPTS", "RESTART-STEPS-LOST"]


def test_the_reasons_of_too_many_attempts_are_given(voyage):
    voyage.attempts[0].reason = "rank 1 died"
    voyage.attempts.insert(1, replace(voyage.attempts[0], reason="no answer of rank 2"))
    measure = recorder("RESTART")
    judge_completion(voyage, measure)
    (found,) = measure.result("finished", 1.0).findings
    assert found.statement.endswith("How they ended: rank 1 died; no answer of rank 2; finished")


def test_an_only_attempt_resumed_nothing(voyage):
    voyage.journals = voyage.journals[:1]
    values, codes = judged(voyage)
    assert (values["resumed_from"], values["steps_lost"], codes) == (None, None, [])


def test_attempts_of_a_killed_launcher_and_of_the_next():
    log = [
        {"event": "attempt", "t": 1.0},
        {"event": "ready", "t": 3.0},
        {"event": "attempt", "t": 20.0},
        {"event": "ready", "t": 22.0},
        {"event": "lost", "t": 30.0, "reason": "rank 1 died"},
        {"event": "attempt", "t": 31.0},
        {"event": "ready", "t": 33.0},
        {"event": "done", "t": 40.0},
    ]
    found = [(a.started, a.ready, a.ended, a.reason) for a in _read_attempts(log, killed_at=10.0)]
    assert found == [
        (1.0, 3.0, 10.0, "the launcher was killed"),
        (20.0, 22.0, 30.0, "rank 1 died"),
        (31.0, 33.0, 40.0, ""),
    ]


def test_a_step_of_an_earlier_life_that_differs_is_found(voyage):
    steps = [{**step, "loss_hex": "a"} for step in life(1, 10, t=0.0) if step["event"] == "step"]
    for lived in voyage.journals:
        for event in lived:
            event["loss_hex"] = "a"
    reference = {"rank": 0, "steps": steps}
    assert compare_attempts(voyage, reference, 2).unequal == []
    next(e for e in voyage.journals[0] if e["event"] == "step" and e["step"] == 3)["loss_hex"] = "b"
    assert [one.step for one in compare_attempts(voyage, reference, 2).unequal] == [3]


def test_an_attempt_that_nobody_struck_is_told_of_a_punished_run(voyage):
    voyage.attempts[0].reason = "rank 3 died"
    assert unexplained_losses([voyage]) == []
    voyage.injectors[0].count = 0
    assert unexplained_losses([voyage, voyage]) == ["rank 3 died"] * 2
    lost = [replace(voyage.attempts[0], reason=reason) for reason in ("first", "second", "third")]
    voyage.attempts[:1] = lost
    assert unexplained_losses([voyage]) == ["third", "second", "first"]
    voyage.injectors[0].count = 1
    assert unexplained_losses([voyage]) == ["third", "second"]


def losses(*values):
    """One rank's steps with these losses, a sample each."""
    return [
        {"steps": [{"step": at, "loss": loss, "ids": [at]} for at, loss in enumerate(values, 1)]}
    ]


def test_a_loss_that_is_no_number_is_no_small_distance():
    assert loss_distance(losses(1, 2, 3), losses(1, 2.5, 3)) == 0.5
    assert math.isnan(loss_distance(losses(1, 2, 3), losses(1, math.nan, 3)))
    assert math.isnan(loss_distance(losses(1, 2, 3), losses()))


def test_samples_of_all_ranks_together_are_compared():
    whole = losses(1, 1, 1)
    assert samples_differ(whole, losses(1, 1)) == []
    late = losses(1, 1)
    late[0]["steps"][1]["ids"] = [3]
    assert samples_differ(whole, late) == [2]


@pytest.mark.parametrize("links", [True, False])
def test_what_damages_a_copy_leaves_the_original(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, links: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("Operation not supported")

    if not links:
        monkeypatch.setattr("os.link", refuse)
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    manifest = json.dumps({"identity": {"seed": 1}, "schema": 1, "seal": "of both"})
    files = {".metadata": "metadata", "a.distcp": "numbers", "manifest.json": manifest}
    for name, text in files.items():
        (original / name).write_text(text)
    link_tree(original, copy)
    assert ((copy / "a.distcp").stat().st_nlink == 2) is links
    for damage in ("metadata-torn", "newest-truncated", "of-another-run", "of-a-later-version"):
        faulted_run.CORRUPTIONS[damage](copy)
    assert {name: (original / name).read_text() for name in files} == files
    changed = {name for name, text in files.items() if (copy / name).read_text() != text}
    assert changed == files.keys()
