"""Which ranks are killed at random, and when; no cluster."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.faults.process_faults import ProcessFault
from probes.restart import other_ranks
from probes.restart.faulted_run import FaultedRun
from probes.restart.other_ranks import RandomKill, control_unexplained_kills, run_random_kills
from tests.probes.restart.test_other_judges import killed_run, original
from tests.support.controls import recorder


@pytest.mark.parametrize(
    ("deadline", "closed", "kills"),
    [(math.inf, False, 1), (0.0, False, 0), (math.inf, True, 0)],
    ids=["in time", "the time of all kills is up", "the run has ended"],
)
def test_a_rank_is_killed_unless_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, deadline: float, closed: bool, kills: int
) -> None:
    monkeypatch.setattr(ProcessFault, "_inject", lambda self: (True, 7.0))
    kill = RandomKill(tmp_path, rank=0, delay_s=0.0, deadline=deadline)
    if closed:
        kill.close()
    kill.wait()
    assert kill.count == kills


def kills_of(
    monkeypatch: pytest.MonkeyPatch, folder: Path, seed: int, seconds: float = 600
) -> list[tuple[str, list[RandomKill]]]:
    """Start runs of 100 s each; what each saves, and its kills."""
    clock = [0.0]

    def run_with_faults(config: Any, scenario: Any, out: Path, **how: Any) -> FaultedRun:
        assert how["victim"] == 0, "the rank whose journals are compared with rank 0's"
        clock[0] += 100
        run = killed_run(scenario.changes["save_mode"])
        run.injectors = [how["make_fault"](out, 0, fault) for fault in scenario.faults]
        return run

    monkeypatch.setattr(other_ranks, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(other_ranks, "run_with_faults", run_with_faults)
    cluster: Any = SimpleNamespace(size=4)
    runs: list[Any] = run_random_kills(cluster, original(), folder, seconds, seed)
    return [(run.scenario.changes["save_mode"], run.injectors) for run in runs]


def test_runs_begin_until_the_time_is_up_and_save_in_each_way_by_turns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    modes = [mode for mode, _ in kills_of(monkeypatch, tmp_path, 1, 301)]
    assert modes == ["sync", "async", "sync", "async"]


def test_every_rank_is_killed_at_any_moment_and_a_seed_repeats_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def moments(seed: int) -> list[tuple[int, float]]:
        runs = kills_of(monkeypatch, tmp_path, seed)
        return [(kill.rank, kill.delay_s) for _, kills in runs for kill in kills]

    assert {rank for rank, _ in moments(1)} == {0, 1, 2, 3}
    delays = [delay for _, delay in moments(1)]
    assert min(delays) < 1
    assert 19 < max(delays) <= 20
    assert moments(1) == moments(1) != moments(2)


def test_kills_and_results_that_are_taken_away_are_noticed() -> None:
    measure = recorder("RESTART")
    control_unexplained_kills([killed_run("sync"), killed_run("async")], original(), measure)
    (control,) = measure.result("finished", 1.0).controls
    assert control.caught is True
    assert control.proves == ["kills", "unexplained_failures", "runs_lost"]
