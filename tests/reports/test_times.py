"""Times of events: what a step of the clock shows, and what no run can have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reports.run_folder import store, times
from reports.run_folder.event_log import EventReader
from reports.run_folder.integrity import read_run
from reports.run_folder.times import ClockSteps, steady_s
from tests.support.run_folders import Events, read_lines, rewrite
from tests.support.sound_run import write_sound_run


def steps(*events: tuple[object, object]) -> list[str]:
    clock = ClockSteps()
    for time, elapsed in events:
        clock.see({"t": time, "elapsed": elapsed})
    return clock.steps


def at(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"2026-11-20T22:{minutes:02.0f}:{rest:06.3f}Z"


def test_a_clock_that_runs_has_no_step() -> None:
    assert steps((at(0), 0.0), (at(1), 1.003), (at(900), 900.4), (at(904), 900.5)) == []


@pytest.mark.parametrize(
    ("after", "says"), [(606, "forward by 6 s"), (594, "back by 6 s"), (605, ""), (595, "")]
)
def test_a_step_is_more_than_5_s(after: float, says: str) -> None:
    found = steps((at(300), 300.0), (at(600), 600.0), (at(after), 600.0))
    assert [says in one for one in found] == [True] * bool(says)
    if says:
        assert found == [
            f"clock of the host that runs seatrial at {at(after)}: set {says}. Expected: at most "
            "5 s (times of events are compared with logs of the cluster)"
        ]


def test_a_clock_that_ntp_slews_for_hours_has_no_step() -> None:
    assert steps((at(0), 0.0), ("2026-11-21T22:00:40.000Z", 86400.0)) == []


@pytest.mark.parametrize(
    "other",
    [(at(1), None), (at(1), True), (at(1), "1"), ("", 1.0), (7, 1.0), ("2026-11-20T22:00:01", 1.0)],
)
def test_what_has_not_both_times_says_nothing(other: tuple[object, object]) -> None:
    assert steps(other, (at(3000), 0.0)) == []
    assert steps((at(0), 0.0), other, (at(2), 2.0)) == []


def test_so_many_steps_are_said() -> None:
    assert len(steps(*[(at(60 * (n % 2)), 0.0) for n in range(50)])) == times.MAX_STEPS


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A sound run."""
    write_sound_run(tmp_path / "run")
    return tmp_path / "run"


def problems(run: Path) -> list[str]:
    return read_run(run)[1].problems


def test_each_event_has_the_time_since_the_start(run: Path) -> None:
    elapsed = [line["elapsed"] for line in read_lines(run)]
    assert elapsed == sorted(elapsed)
    assert 0 <= elapsed[0] < elapsed[-1] + 0.001 < steady_s()
    assert problems(run) == []
    assert read_run(run)[0].clock_steps == []


def test_an_older_run_has_no_such_time_and_verifies(run: Path) -> None:
    rewrite(run, lambda events: [{k: v for k, v in e.items() if k != "elapsed"} for e in events])
    assert problems(run) == []


@pytest.mark.parametrize("value", [-1.0, "1", True, None])
def test_a_time_that_goes_back_does_not_verify(run: Path, value: object) -> None:
    def change(events: Events) -> Events:
        return [*events[:-1], {**events[-1], "elapsed": value}]

    rewrite(run, change)
    (problem,) = problems(run)
    assert problem.endswith("has an earlier time than the line before it")


@pytest.mark.parametrize(
    ("finished", "says"),
    [("2020-01-01T00:00:00.000Z", "the run ends (2020-01-01T00:00:00.000Z) before it starts"),
     ("2099-01-01T00:00:00.000Z", ""), ("no time", "")],
)  # fmt: skip
def test_an_end_before_the_start_does_not_verify(run: Path, finished: str, says: str) -> None:
    def change(events: Events) -> Events:
        for event in events:
            if event["event"] == "run_finished":
                event["data"]["finished"] = finished
        return events

    rewrite(run, change)
    found = [one for one in problems(run) if "before it starts" in one]
    assert [one.startswith(says) for one in found] == [True] * bool(says)


def test_the_end_of_a_run_counts_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(store, "steady_s", lambda: now)
    one = store.Store(tmp_path / "run")
    begun = one.run_time
    now += 60.5
    assert one.elapsed_s == 60.5
    took = times.parse_time(one.run_time) - times.parse_time(begun)
    assert took.total_seconds() == 60.5
    one.close()


def test_a_folder_that_is_written_again_keeps_the_times(tmp_path: Path) -> None:
    one = store.Store(tmp_path / "run")
    one.event("run_problem", kind="a", where="b", text="c")
    before: Any = read_lines(tmp_path / "run")[0]
    one.write_again("it was damaged")
    after = read_lines(tmp_path / "run")[0]
    assert (after["t"], after["elapsed"]) == (before["t"], before["elapsed"])
    reader = EventReader(tmp_path / "run")
    list(reader)
    assert reader.problems == []
    one.close()
