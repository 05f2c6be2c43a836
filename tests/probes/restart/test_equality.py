"""Two runs compared, bit by bit."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from probes.restart.reference_run import (
    ReferenceRun,
    StepComparison,
    UnequalStep,
    _differing_keys,
    compare_steps,
    first_unequal_step,
)


def run(values: list[float]) -> list[dict[str, Any]]:
    steps = [{"step": at, "loss_hex": v.hex(), "norm_hex": v.hex(), "ids": [at], "data_crc32": "x"}
             for at, v in enumerate(values, 1)]  # fmt: skip
    return [{"rank": 0, "steps": steps}]


def unequal_steps(*runs: Any, **first: int) -> list[UnequalStep]:
    return compare_steps(*runs, **first).unequal


def test_steps_that_tell_nothing_are_not_equal() -> None:
    silent = [{"rank": 0, "steps": [{"step": 1}, {"step": 2, "loss_hex": None, "ids": [1]}]}]
    found = compare_steps(silent, silent)
    assert (found.unequal, found.compared, found.count) == ([], 0, None)
    lack = "loss, gradient norm or samples are missing in"
    assert found.doubt == f"{lack} 2 of 2 steps"
    half = compare_steps(run([1.0, 2.0]), run([1.0, 2.0])) + found
    assert (half.count, half.doubt) == (None, f"{lack} 2 of 4 steps")


@pytest.mark.parametrize(("second", "keys"), [(1.25, []), (1.5, ["loss"]), (None, ["loss"])])
def test_a_loss_may_differ_by_the_tolerance(second: float | None, keys: list[str]) -> None:
    told = {"loss": second} if second else {}
    assert _differing_keys({"loss": 1.0}, told, 0.25) == keys


def test_the_reference_run_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reference, made = ReferenceRun(tmp_path), list[Any]()
    monkeypatch.setattr(reference, "require_shared_folder", lambda *_: None)
    monkeypatch.setattr(reference, "run", made.append)
    gangs = SimpleNamespace(take=lambda say: nullcontext("gang"))
    cluster: Any = SimpleNamespace(kept_gang=gangs)
    measure: Any = SimpleNamespace(progress=lambda text: None, covered=lambda text: None)
    reference.ensure_reference_run(cluster, measure)
    reference.results = run([1.0])
    reference.ensure_reference_run(cluster, measure)
    assert made == ["gang"]


def test_a_folder_that_is_not_shared_ends_each_probe_and_is_found_once(tmp_path: Path) -> None:
    reference = ReferenceRun(tmp_path, _folder_problem=("n1 does not see it", ["n1"]))
    with pytest.raises(pytest.fail.Exception, match="n1 does not see it") as failed:
        reference.require_shared_folder(cast(Any, None), None)
    assert not failed.value.pytrace


def test_no_step_is_no_proof() -> None:
    assert StepComparison().count is None
    assert compare_steps(run([1.0]), run([1.0]), 2).doubt == "the run made no step after a resume"


def test_what_differs_is_known_whatever_was_not_compared() -> None:
    silent = [{"rank": 0, "steps": [{"step": 1}]}]
    found = compare_steps(run([1.0]), run([2.0])) + compare_steps(silent, silent)
    assert found.count == 1


def test_another_number_of_ranks_is_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        compare_steps(run([1.0]) * 2, run([1.0]))


def test_equal_runs_are_equal() -> None:
    assert unequal_steps(run([1.0, 2.0]), run([1.0, 2.0])) == []


def test_one_bit_is_unequal_and_located() -> None:
    (found,) = unequal_steps(run([1.0, 2.0]), run([1.0, 2.0000000000000004]))
    assert (found.rank, found.step, found.keys) == (0, 2, ["loss_hex", "norm_hex"])
    assert "step 2" in str(found)


def test_a_missing_step_is_unequal() -> None:
    assert [u.step for u in unequal_steps(run([1.0, 2.0, 3.0]), run([1.0, 2.0]))] == [3]
    assert [u.step for u in unequal_steps(run([1.0, 2.0]), run([]))] == [1, 2]
    assert unequal_steps(run([9.0, 2.0]), run([1.0, 2.0]), first=2) == []


def test_other_samples_are_unequal() -> None:
    other = copy.deepcopy(run([1.0]))
    other[0]["steps"][0]["ids"] = [77]
    assert unequal_steps(run([1.0]), other)[0].keys == ["ids"]


def test_who_computes_wrongly_is_told_from_those_that_it_misleads() -> None:
    def job(own: dict[int, float], loss: float) -> list[dict[str, Any]]:
        steps = [[{"step": 1, "loss_hex": loss.hex(), "local_loss_hex": own.get(rank, 1.0).hex()},
                  {"step": 2, "loss_hex": loss.hex(), "local_loss_hex": loss.hex()}]
                 for rank in range(4)]  # fmt: skip
        return [{"rank": rank, "steps": each} for rank, each in enumerate(steps)]

    sound = job({}, 1.0)

    def blamed(other: list[dict[str, Any]]) -> tuple[int, int, list[int]]:
        first, ranks = first_unequal_step(unequal_steps(sound, other))
        return first.rank, first.step, ranks

    assert blamed(job({2: 1.5}, 1.125)) == (2, 1, [2])
    assert blamed(job({}, 1.125)) == (0, 1, [])  # a wrong gradient: each own loss was right
    assert blamed(job(dict.fromkeys(range(4), 1.5), 1.5)) == (0, 1, [])  # as after a bad resume


@pytest.mark.parametrize(("value", "shown"), [("a" * 32, "a" * 32), ("a" * 33, "a" * 12 + "...")])
def test_long_values_are_cut_in_a_sentence(value: str, shown: str) -> None:
    step = UnequalStep(0, 1, ["digest"], {"digest": "b"}, {"digest": value})
    assert str(step) == f"rank 0, step 1: hash of the parameters {shown} instead of b"
