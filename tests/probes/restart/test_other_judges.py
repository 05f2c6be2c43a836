"""Kills without end, lost nodes, fewer ranks, a full disk: what fails, and what is just sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.faults.process_faults import Fault
from probes.faults.spare_nodes import SpareNodes
from probes.restart import other_ranks
from probes.restart.criterion import PROBES
from probes.restart.faulted_run import (
    CORRUPTIONS,
    QUICK_CORRUPTIONS,
    FaultedRun,
    FaultScenario,
)
from probes.restart.judge import judge_full_disk, judge_repeat, report_unequal
from probes.restart.other_ranks import NodeLoss, NodeRepair, WorldSizeRuns, judge_kills
from probes.restart.reference_run import (
    KEY_WORDS,
    SAVE_EVERY,
    STEPS,
    ReferenceRun,
    StepComparison,
    UnequalStep,
    run_or_error,
)
from probes.restart.scenarios import (
    LAUNCHER_KILLED,
    NODE_LOSSES,
    SCENARIOS,
    control_leaked_group,
    control_roomy_disk,
)
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import GangError, GangPending, WorkerLost
from reference_trainer.launch.supervisor import Attempt
from reports.measurement import Verdict
from reports.record import ProbeResult
from tests.support.controls import MemoryRecorder, recorder

Change = Callable[[Any], None]
VICTIM = "rank 1 on node1: No space left on device"


def steps(first: int, last: int) -> list[dict[str, Any]]:
    """What a rank tells of its steps: the same of each run."""
    return [
        {"step": n, "event": "step", **{key: f"{key} {n}" for key in KEY_WORDS}}
        for n in range(first, last + 1)
    ]


def results(first: int = 1, last: int = 10, ranks: int = 2) -> list[dict[str, Any]]:
    """What the ranks of a run tell at its end."""
    return [
        {"rank": rank, "start_step": first - 1, "digest": "same", "steps": steps(first, last)}
        for rank in range(ranks)
    ]


def original() -> ReferenceRun:
    """A run that nobody killed."""
    run = ReferenceRun(Path("/nowhere"))
    place = {"host": "node0", "device_name": "CPU", "checkpoints": [{"step": 8, "bytes": 352_000}]}
    run.results = [{**result, **place} for result in results()]
    return run


def killed_run(save_mode: str) -> FaultedRun:
    """Killed twice, each time three steps after a save."""
    kills = [SimpleNamespace(count=1, error="") for _ in range(2)]
    lives = [(1, 7), (5, 7), (5, 10)]
    attempts = [Attempt(places=[], started=0.0, reason="rank 0 died") for _ in lives]
    start = lambda first: {"event": "start", "start_step": first - 1}  # noqa: E731
    return FaultedRun(
        scenario=FaultScenario(
            name="x", summary="x", faults=(Fault(""),) * 2, changes={"save_mode": save_mode}
        ),
        injectors=cast(Any, kills),
        results=results(5),
        attempts=attempts,
        error="",
        journals=[[start(first), *steps(first, last)] for first, last in lives],
    )


def judged(judge: Callable[[MemoryRecorder], None]) -> ProbeResult:
    """What a judge writes down."""
    measure = recorder("RESTART")
    judge(measure)
    return measure.result("finished", 1.0)


def failed(result: ProbeResult) -> tuple[set[str], set[str]]:
    """The measures that failed, and the findings."""
    red = {one.name for one in result.measurements if one.verdict is Verdict.FAIL}
    return red, {one.code for one in result.findings}


# Kills without end.


def judge_runs(change: Change, seconds: float = 240.0) -> ProbeResult:
    runs = [killed_run("sync"), killed_run("async")]
    change(runs)
    return judged(lambda measure: judge_kills(runs, original(), seconds, measure))


def give_up(runs: list[FaultedRun]) -> None:
    runs[0].results.clear()
    runs[0].error = "no rank came back"


def lose_nine(journals: list[list[dict[str, Any]]]) -> None:
    journals[0].extend(steps(8, 9))
    journals[1][0]["start_step"] = 0


KILLS: dict[str, tuple[Change, set[str], set[str]]] = {
    "one more attempt than kills": (
        *(lambda runs: runs[1].attempts.insert(0, runs[1].attempts[0]), {"unexplained_failures"}),
        {"RESTART-ATTEMPTS"},
    ),
    "a run gave up": (give_up, {"runs_lost"}, {"RESTART-NOT-RECOVERED"}),
    "nobody was killed for long": (
        *(lambda runs: runs.pop(), {"kills"}),
        set(),
    ),
    "five steps were lost": (
        *(lambda runs: runs[0].journals[1].extend(steps(8, 9)), {"steps_lost"}),
        {"RESTART-STEPS-LOST"},
    ),
    "nine steps were lost by a run that saves in the background": (
        *(lambda runs: lose_nine(runs[1].journals), {"steps_lost"}),
        {"RESTART-STEPS-LOST"},
    ),
    "one bit of one step": (
        *(lambda runs: runs[0].results[1]["steps"][3].update(loss_hex="0x1p+2"), {"unequal_steps"}),
        {"RESTART-UNEQUAL"},
    ),
    "other parameters at the end": (
        *(lambda runs: runs[1].results[0].update(digest="other"), {"final_state"}),
        {"RESTART-UNEQUAL"},
    ),
}


@pytest.mark.parametrize("name", KILLS)
def test_what_random_kills_must_not_do(name: str) -> None:
    change, fails, codes = KILLS[name]
    assert failed(judge_runs(change)) == (fails, codes)


@pytest.mark.parametrize(("seconds", "fails"), [(240.0, set()), (241.0, {"kills"})])
def test_four_kills_are_enough_for_four_minutes(seconds: float, fails: set[str]) -> None:
    assert failed(judge_runs(lambda runs: None, seconds)) == (fails, set())


def test_of_runs_that_gave_up_the_first_reason_is_given() -> None:
    def give_up_twice(runs: list[FaultedRun]) -> None:
        give_up(runs)
        runs[1].results, runs[1].error = [], "no free GPU"

    (found,) = judge_runs(give_up_twice).findings
    assert found.statement.endswith("no rank came back")


def test_a_job_of_one_rank_is_killed_and_compared_too() -> None:
    reference, run = original(), killed_run("sync")
    reference.results, run.results = results(ranks=1), results(5, ranks=1)
    result = judged(lambda measure: judge_kills([run], reference, 120.0, measure))
    assert failed(result) == (set(), set())
    (unequal,) = [one for one in result.measurements if one.name == "unequal_steps"]
    assert (unequal.value, unequal.verdict) == (0, Verdict.PASS)


@pytest.mark.near_miss(
    *("RESTART.kills", "RESTART.unexplained_failures", "RESTART.runs_lost", "RESTART.steps_lost"),
    *("RESTART.unequal_steps", "RESTART.final_state"),
)
def test_a_kill_a_minute_and_all_steps_since_the_save_are_what_was_agreed() -> None:
    def lose_all_since_the_save(runs: list[FaultedRun]) -> None:
        runs[0].journals[0].extend(steps(8, 8))
        runs[1].journals[0].extend(steps(8, 10))

    result = judge_runs(lose_all_since_the_save)
    assert failed(result) == (set(), set())
    assert {one.verdict for one in result.measurements} == {Verdict.PASS}


def test_runs_that_tell_no_state_are_not_equal() -> None:
    def forget(runs: list[FaultedRun]) -> None:
        for run in runs:
            for result in run.results:
                result["digest"] = None

    reference = original()
    for result in reference.results:
        result["digest"] = None
    runs = [killed_run("sync"), killed_run("async")]
    forget(runs)
    result = judged(lambda measure: judge_kills(runs, reference, 240.0, measure))
    (state,) = [one for one in result.measurements if one.name == "final_state"]
    assert state.verdict is Verdict.UNPROVEN


# A node is lost, and none is to spare.


def judge_repair(held: int | None, *messages: str, must_wait: bool = True) -> ProbeResult:
    loss = NodeLoss(name="x", summary="x", faults=(), spare_count=2, must_wait=must_wait)
    repair = NodeRepair(cast(Any, None), cast(SpareNodes, None), loss, [*messages], held)
    return judged(lambda measure: other_ranks.judge_wait(loss, repair, measure))


@pytest.mark.near_miss("RESTART.unreported_waits", "RESTART.held_while_waiting")
def test_who_says_once_that_it_waits_and_holds_nothing_waits_well() -> None:
    assert failed(judge_repair(0, "waits for 2 bundles")) == (set(), set())


def test_who_waits_in_silence_or_holds_something_meanwhile_is_named() -> None:
    assert failed(judge_repair(1, "waits")) == ({"held_while_waiting"}, {"RESTART-LEAK"})
    silent = judge_repair(None)
    assert failed(silent) == ({"unreported_waits"}, set())
    assert silent.verdict is not Verdict.PASS
    assert judge_repair(1, must_wait=False).measurements == []


# One rank less.


def losses(late: int = 0, shift: float = 0.0, first: int = 1) -> list[dict[str, Any]]:
    """A rank's steps: a loss and a sample each, `late` samples further on."""
    told = [{"step": n, "loss": 4.0 - n / 8 + shift, "ids": [n + late]} for n in range(first, 11)]
    return [{"start_step": first - 1, "steps": told}]


def judge_sizes(resumed: list[dict[str, Any]]) -> ProbeResult:
    # Two runs that nobody resumed are 2**-10 apart; a binary fraction, as the limit is 3 times it.
    runs = WorldSizeRuns(
        full=losses(), fewer=losses(shift=2**-10), resumed=resumed, late=losses(1, 1.0, 5)
    )
    return judged(lambda measure: other_ranks.judge_world_sizes(runs, measure))


@pytest.mark.near_miss("RESTART.samples_differ", "RESTART.drift")
def test_three_times_the_noise_of_rounding_is_no_other_run() -> None:
    result = judge_sizes(losses(shift=3 * 2**-10, first=5))
    assert failed(result) == (set(), set())
    assert [control.caught for control in result.controls] == [True]


@pytest.mark.parametrize(
    ("resumed", "fails", "says"),
    [
        (losses(shift=3.01 * 2**-10, first=5), "drift", "the loss differs by 0.00294"),
        (losses(late=1, first=5), "samples_differ", "have different samples"),
    ],
)
def test_one_rank_less_that_makes_another_run_is_named(
    resumed: list[dict[str, Any]], fails: str, says: str
) -> None:
    result = judge_sizes(resumed)
    assert failed(result) == ({fails}, {"RESTART-UNEQUAL"})
    assert says in result.findings[0].statement


def test_the_checkpoint_that_was_given_must_be_the_one_that_is_loaded() -> None:
    assert failed(judge_sizes(losses(first=6)))[0] == {"resumed_from"}


# A full disk.


def judge_disk(unsaved: list[str], saved: list[int]) -> ProbeResult:
    told = results()
    told[0]["unsaved"] = [{"error": error} for error in unsaved]
    told[0]["checkpoints"] = [{"step": step} for step in saved]
    return judged(lambda measure: judge_full_disk(original(), told, measure))


@pytest.mark.near_miss("RESTART.saves_refused", "RESTART.saved_after")
def test_a_save_that_was_given_up_and_one_that_was_made_are_right() -> None:
    assert failed(judge_disk([VICTIM], [10])) == (set(), set())


@pytest.mark.parametrize(
    ("unsaved", "saved", "fails", "codes"),
    [
        ([], [8, 10], {"saves_refused", "saved_after"}, {"RESTART-TORN"}),
        ([VICTIM], [], {"saved_after"}, set()),
        ([VICTIM], [8], {"saves_refused"}, {"RESTART-TORN"}),
        ([VICTIM], [8, 10], {"saves_refused", "saved_after"}, {"RESTART-TORN"}),
        (["rank 0 on node0: No space left on device"], [10], {"saves_refused"}, set()),
        (["rank 1 on node1: no reason"], [10], {"saves_refused"}, set()),
        ([VICTIM, VICTIM], [10], {"saves_refused"}, set()),
    ],
)
def test_a_save_that_is_torn_or_never_tried_again_is_seen(
    unsaved: list[str], saved: list[int], fails: set[str], codes: set[str]
) -> None:
    assert failed(judge_disk(unsaved, saved)) == (fails, codes)


@pytest.mark.parametrize("step", [SAVE_EVERY + 1, 10])
def test_a_run_that_met_a_full_disk_computes_as_before(step: int) -> None:
    told = results(first=SAVE_EVERY + 1)
    told[0] |= {"unsaved": [{"error": VICTIM}], "checkpoints": [{"step": 10}]}
    told[0]["steps"][step - SAVE_EVERY - 1]["ids"] = "others"
    result = judged(lambda measure: judge_full_disk(original(), told, measure))
    assert failed(result) == ({"unequal_steps"}, {"RESTART-UNEQUAL"})
    assert f"step {step}" in result.findings[0].statement


def test_a_run_says_its_size_devices_and_machines() -> None:
    run = original()
    run.results[1] |= {"host": "node1", "device_name": "NVIDIA H200"}
    said = "2 ranks (CPU, NVIDIA H200) on 2 machines, checkpoints of 0.352 MB."
    assert run.describe() == f"{said} Larger ones were not tested"
    run.results[0]["checkpoints"] = []
    assert "checkpoints of 0 MB" in run.describe()


@pytest.mark.parametrize("committed", [[], [8]])
def test_a_disk_that_was_not_full_is_noticed(committed: list[int]) -> None:
    run = original()
    run.results[0]["unsaved"] = []
    run.results[0]["checkpoints"] = [{"step": step, "bytes": 1} for step in [4, *committed, 10]]
    (control,) = judged(lambda measure: control_roomy_disk(run, measure)).controls
    assert control.caught is True
    assert control.proves == ["saves_refused", "saved_after"]


# What is planted.


@pytest.mark.parametrize("scenario", [*SCENARIOS, *NODE_LOSSES, LAUNCHER_KILLED])
def test_a_run_gives_up_only_where_each_attempt_is_killed(scenario: FaultScenario) -> None:
    assert scenario.gives_up == (len(scenario.faults) > scenario.restarts)


@pytest.mark.parametrize("loss", NODE_LOSSES)
def test_a_run_waits_only_where_too_few_nodes_are_left(loss: NodeLoss) -> None:
    assert loss.must_wait == (loss.spare_count - loss.kills < other_ranks.RANKS)


@pytest.mark.parametrize("scenario", [*SCENARIOS, *NODE_LOSSES])
def test_a_step_is_killed_after_the_first_checkpoint_and_before_the_newest(
    scenario: FaultScenario,
) -> None:
    """Else it would resume from another one than the scenario says.

    A kill that comes a step late must still come before the next save.
    """
    killed = [fault.step for fault in scenario.faults if fault.event == "begin"]
    first = 1 if scenario.resume_step == 0 else SAVE_EVERY + 1
    assert all(first <= step <= first + SAVE_EVERY - 2 for step in killed)


@pytest.mark.parametrize(("name", "seconds"), [("raylet-killed", 7.5), (LAUNCHER_KILLED.name, 5.0)])
def test_ranks_run_on_until_they_can_see_what_was_killed(name: str, seconds: float) -> None:
    """The steps that are left take as long; all ten take a quarter of a minute at most."""
    (scenario,) = [one for one in (*NODE_LOSSES, LAUNCHER_KILLED) if one.name == name]
    pace_s = scenario.changes["pace_s"]
    assert (STEPS - scenario.faults[0].step) * pace_s >= seconds
    assert STEPS * pace_s <= 15


def test_a_quick_run_does_the_damage_that_is_declared_quick() -> None:
    tiers = {name: tier for probe in PROBES for name, tier in probe.cases.items()}
    quick = [*CORRUPTIONS][:QUICK_CORRUPTIONS]
    assert [name for name in CORRUPTIONS if tiers[name] == "quick"] == quick


def test_ranks_are_killed_for_as_long_as_is_declared() -> None:
    (disturbs,) = [probe.disturbs for probe in PROBES if "punished" in probe.test]
    assert "kills ranks again and again for ten minutes" in disturbs
    assert other_ranks.SOAK_SECONDS == 10 * 60


# What could not be run.


def test_a_run_that_could_not_be_repeated_ends_the_probe_with_the_reason() -> None:
    run = original()
    run.repeated = "rank 1 died"
    with pytest.raises(pytest.fail.Exception, match="could not be repeated: rank 1 died") as failed:
        judged(lambda measure: judge_repeat(run, measure))
    assert not failed.value.pytrace


def test_a_gang_that_finds_no_room_leaves_nothing_behind_and_proves_nothing() -> None:
    class NoRoom:
        def __enter__(self) -> None:
            raise GangPending("no free GPU in 60 s")

        def __exit__(self, *_: object) -> None: ...

    measure = recorder("RESTART")
    assert control_leaked_group(cast(Any, None), cast(Any, NoRoom()), measure) == []
    (control,) = measure.result("finished", 1.0).controls
    assert (control.caught, control.saw) == (None, "no free GPU in 60 s")


# Steps that differ.


def test_the_first_rank_that_differs_is_the_one_to_look_at() -> None:
    keys = {0: "norm_hex", 3: "local_loss_hex", 5: "local_loss_hex"}
    each = [UnequalStep(rank, 6, [key], {}, {}) for rank, key in keys.items()]
    run = original().results
    found = StepComparison(each, 8)
    (told,) = judged(lambda measure: report_unequal(found, original(), run, measure)).findings
    assert (told.suspects, told.names["rank"]) == (["rank 3", "rank 5"], "3")


class LostGang:
    """A gang whose run fails, and what is done to repair it."""

    def __init__(self, error: GangError, replaced: list[int]) -> None:
        self.error, self.replaced, self.repaired = error, replaced, list[str]()

    def run(self, *_: object, timeout: float) -> Any:
        self.limit_s = timeout
        raise self.error

    def replace_workers(self, lost: list[int]) -> list[int]:
        self.repaired.append(f"dead {lost}")
        return self.replaced

    def replace_waiting(self) -> list[int]:
        self.repaired.append("waiting")
        raise GangError("no room")


@pytest.mark.parametrize(
    ("error", "replaced", "repaired"),
    [
        (WorkerLost("rank 1 died", [1], 0.0), [0, 1], ["dead [1]"]),
        (WorkerLost("rank 1 failed", [1], 0.0), [], ["dead [1]", "waiting"]),
        (GangError("no answer"), [], []),
    ],
)
def test_a_gang_that_lost_a_rank_is_repaired_for_the_next_run(
    error: GangError, replaced: list[int], repaired: list[str]
) -> None:
    gang = LostGang(error, replaced)
    assert run_or_error(cast(Any, gang), TrainConfig()) == str(error)
    assert gang.repaired == repaired
    assert gang.limit_s == 5 * 60
