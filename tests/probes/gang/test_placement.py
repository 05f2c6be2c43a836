"""Where gangs and components are put, and what is tried one after the other."""

from __future__ import annotations

import pytest

from probes.gang.scenario_checks import control_misplaced_rank, try_strategy
from tests.support.simulated_gangs import simulate


def test_each_strategy_begins_with_all_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a gang is judged by room that the one before it still had."""
    with simulate(monkeypatch, "shows free late")("strategies") as run:
        assert sum(try_strategy(run, "PACK", 3).values()) == 3
        last = run.observer.samples[-1]
        assert (last["free"], last["gangs"]) == (run.total, {})


def test_one_rank_of_the_last_component_goes_astray_and_no_other() -> None:
    slots = [("n", str(number)) for number in range(6)]
    moved = control_misplaced_rank({"actor": slots[:3], "rollout": slots[3:]})
    assert moved == {"actor": slots[:3], "rollout": [slots[2], *slots[4:]]}
