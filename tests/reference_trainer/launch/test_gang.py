"""What a gang gives its ranks; no cluster."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from contextlib import nullcontext
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from reference_trainer import train
from reference_trainer.config import TrainConfig
from reference_trainer.launch.gang import Gang
from reference_trainer.launch.launchers import (
    HEAD_START_S,
    freeze_imports,
    job_timeouts,
    train_rank,
)
from reference_trainer.launch.supervisor import Timeouts
from reference_trainer.launch.worker import RankLocation, Worker
from reference_trainer.process_group import KEEP
from scaling.collectives.node_groups import group_sweep
from scaling.collectives.sweep import warm_up
from scaling.loss.predict import replay_on_rank


class GangOfTwo(Gang):
    """A gang without processes: what its ranks are told, and the next of its ports."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.told: list[dict[str, str | None]] = []
        self.ports, self.still_busy = count(29500), list[int]()
        worker = SimpleNamespace(
            run=SimpleNamespace(remote=lambda environment, *_: self.told.append(environment)),
            free_port=SimpleNamespace(remote=lambda: None),
        )
        self._workers = [worker, worker]
        self.places = [
            RankLocation(node=n, address=n, host=n, pid=1, gpus=[], born=1) for n in ("n0", "n1")
        ]

    def _collect(self, calls: list[Any], timeout: float, task: str) -> list[Any]:
        return [next(self.ports) for _ in calls]

    def busy(self) -> list[int]:
        return self.still_busy


def environments(**options: Any) -> list[dict[str, str | None]]:
    """What each rank of a gang of two is told to have in its environment."""
    gang = GangOfTwo(2, **options)
    gang.begin(print, environment={"A": None})
    return gang.told


@pytest.mark.parametrize(("resource", "hidden"), [("GPU", None), ("CPU", "-1"), ("spare", "-1")])
def test_a_rank_that_asked_for_no_gpu_sees_none(resource: str, hidden: str | None) -> None:
    told = environments(resource=resource, environment={"B": "b"})
    assert [one.get("CUDA_VISIBLE_DEVICES") for one in told] == [hidden] * 2
    assert [(one["RANK"], one["A"], one["B"]) for one in told] == [
        ("0", None, "b"),
        ("1", None, "b"),
    ]


def test_calls_of_the_same_groups_share_a_rendezvous_until_one_fails() -> None:
    gang = GangOfTwo(2, keeps_groups=True)

    def used(function: Any = print, **options: Any) -> list[str | None]:
        gang.told.clear()
        gang.begin(function, **options)
        assert {one[KEEP] for one in gang.told} == {"1"}
        return [one["MASTER_PORT"] for one in gang.told]

    assert used() == used() == used(groups=[[0, 1]]) == ["29500"] * 2
    assert used(warm_up, groups=[[1]]) == ["0"], "it joins no group, and leaves the last"
    assert used() == ["29500"] * 2
    assert used(train_rank) == ["29501"] * 2, "a job's group is of another backend on GPUs"
    assert used(train_rank) == used(replay_on_rank) == ["29501"] * 2
    assert used() == ["29502"] * 2
    assert used(environment={"A": "b"}) == used(environment={"A": "b"}) == ["29503"] * 2
    assert used() == ["29504"] * 2, "its group was left for another"
    assert used(groups=[[0], [1]]) == used(groups=[[0], [1]]) == ["29505", "29506"]
    gang.by_local_rank = [{"RAIL": "1"}]
    assert used(groups=[[0], [1]]) == ["29507", "29508"]
    gang.still_busy.append(1)  # a call still runs
    assert used(groups=[[0], [1]]) == ["29509", "29510"]
    gang.still_busy.clear()
    gang.ports = count(29600)
    assert [used(group_sweep)[0] for _ in range(2)] == ["29600", "29601"], "never shared"
    assert used() == used() == ["29602"] * 2
    gang.leave_groups()
    assert used() == ["29603"] * 2
    gang.ports = count(29511)
    gang._failed = True
    assert used() == ["29511"] * 2
    assert used() == ["29512"] * 2, "ranks may have left the group"


def test_a_gang_of_one_call_keeps_no_group() -> None:
    assert [one.get(KEEP) for one in environments()] == [None, None]


def test_a_rank_that_is_aborted_writes_no_core() -> None:
    code = (
        "import resource\n"
        "from reference_trainer.launch.worker import Worker\n"
        "Worker()\n"
        "print(resource.getrlimit(resource.RLIMIT_CORE)[0])\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert said.stdout == "0\n", said.stderr


def test_a_call_leaves_no_variable_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that it was given, nor one that it set itself, whether it ends well or not."""
    monkeypatch.setenv("KEPT", "before")
    monkeypatch.setenv("GONE", "before")
    for name in ("NEW", "OWN"):
        monkeypatch.delenv(name, raising=False)
    names, worker = ("KEPT", "GONE", "NEW", "OWN"), object.__new__(Worker)
    worker._variables = dict(os.environ)

    def call(fail: bool) -> list[str | None]:
        seen = [os.environ.get(name) for name in names]
        os.environ["KEPT"] = os.environ["OWN"] = "of the call"
        if fail:
            raise ValueError("failed")
        return seen

    with patch.dict(os.environ):
        given = {"KEPT": "given", "GONE": None, "NEW": "given"}
        for fail in (False, True):
            with pytest.raises(ValueError, match="failed") if fail else nullcontext():
                assert worker.run(given, call, [fail]) == ["given", None, "given", None]
            assert worker.run({"X": "1"}, call, [False]) == ["before", "before", None, None]


def test_a_question_beside_a_run_changes_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends meanwhile restores them; the question must not bring its values back."""
    monkeypatch.setenv("RANK", "0")

    def question() -> None:
        del os.environ["RANK"]  # the run ended

    object.__new__(Worker).run({}, question, [])
    assert "RANK" not in os.environ


def test_imports_are_frozen_once_and_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later, gc.freeze would keep the run's own cycles, and with them the model's memory."""
    order = list[str]()
    monkeypatch.setattr(gc, "freeze", lambda: order.append("freeze"))
    monkeypatch.setattr(train, "train", lambda config: order.append("train"))
    freeze_imports.cache_clear()
    for _ in range(2):
        train_rank(TrainConfig())
    freeze_imports.cache_clear()
    assert order == ["freeze", "train", "train"]


def test_the_supervisor_sees_a_rank_that_hangs_before_nccls_watchdog_ends_the_others() -> None:
    config = TrainConfig()
    for patience in (Timeouts(), job_timeouts(config)):
        assert patience.step + HEAD_START_S <= config.timeout_s
        assert patience.first_step + HEAD_START_S <= config.init_timeout_s
