"""What other launchers give to their ranks is judged; what is not installed is not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from probes.check.recorder import Recorder
from probes.contract.terms import LaunchTerms
from probes.launch import test_launch
from probes.launch.shell import Transcript
from probes.launch.test_launch import MEGATRON, control_forgotten, judge_launcher, open_folder
from reports.measurement import Verdict
from tests.support.launched_job import cluster_of, guided, join, rank_words, trained_words

PATH = guided(cluster_of(on_gpu=False))


def said(*without: str, exit_code: int = 0) -> Transcript:
    """A job of two ranks, as Ray Train's: nothing is announced before it has trained."""
    given = {**MEGATRON, **dict.fromkeys(without)}
    words = [
        {"host": f"n{rank}", **rank_words(rank, 2, **given), **trained_words(rank, 2)}
        for rank in range(2)
    ]
    return Transcript([f"trained {join(each)}" for each in words], exit_code)


def verdicts(recorder: Recorder) -> dict[str, Any]:
    result = recorder.finish("finished", 1.0)
    return {one.name: (one.subject, one.value, one.verdict) for one in result.measurements}


def test_a_launcher_that_gives_all_variables_passes(recorder: Recorder) -> None:
    judge_launcher(PATH, "ray-train", said(), recorder)
    assert set(verdicts(recorder)) == {"wrong_ranks", "exit_code", "ranks"}
    assert {one[0] for one in verdicts(recorder).values()} == {"ray-train"}
    assert {one[2] for one in verdicts(recorder).values()} == {Verdict.PASS}


@pytest.mark.parametrize("variable", ["LOCAL_RANK", "MASTER_PORT", *MEGATRON])
def test_a_variable_that_a_framework_reads_is_missed(recorder: Recorder, variable: str) -> None:
    judge_launcher(PATH, "torchrun", said(variable), recorder)
    assert verdicts(recorder)["wrong_ranks"][1:] == (2, Verdict.FAIL)
    [found] = recorder.finish("finished", 1.0).findings
    assert found.statement.startswith(f"torchrun: rank 0, rank 1 on n0, n1: {variable} not set")


def test_a_launcher_that_is_not_installed_is_unproven_and_says_so(recorder: Recorder) -> None:
    why = "No module named 'pyarrow'. Install it: pip install 'ray[train]'"
    text = f"Error: Ray Train cannot be used: {why}"
    judge_launcher(PATH, "ray-train", Transcript([text], 1), recorder)
    assert {one[2] for one in verdicts(recorder).values()} == {Verdict.UNPROVEN}
    assert recorder.finish("finished", 1.0).findings == []


def test_a_launcher_that_fails_is_no_launcher_that_is_not_installed(recorder: Recorder) -> None:
    judge_launcher(PATH, "ray-train", Transcript(["Error: Ray Train gave up: boom"], 1), recorder)
    assert verdicts(recorder)["exit_code"][2] is Verdict.FAIL


@pytest.mark.parametrize(
    ("transcript", "caught"),
    # The last: each rank is wrong, and for another reason.
    [(said(*MEGATRON), True), (said(), False), (said("MASTER_PORT"), False)],
)
def test_the_control_needs_each_rank_without_the_variable(
    recorder: Recorder, transcript: Transcript, caught: bool
) -> None:
    control_forgotten(PATH, transcript, recorder)
    [control] = recorder.finish("finished", 1.0).controls
    assert control.caught is caught


def test_without_a_shared_folder_the_probe_fails_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(test_launch, "find_folder_problem", lambda *_: ("n1 do not see /x", ["n1"]))
    with pytest.raises(pytest.fail.Exception, match="contract: n1 do not see /x") as ended:
        open_folder(SimpleNamespace(), None)
    assert not ended.value.pytrace


def test_the_jobs_user_may_write_into_the_folder_and_read_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(
        test_launch, "find_folder_problem", lambda _, folder: asked.append(folder) or ("", [])
    )
    folder = tmp_path / "run" / "jobs"
    folder.mkdir(parents=True)
    open_folder(SimpleNamespace(), folder)
    assert asked == [folder]
    assert (folder.stat().st_mode & 0o7777, folder.parent.stat().st_mode & 0o7777) == (
        0o1777,
        0o711,
    )


def test_the_terms_name_at_least_one_known_launcher() -> None:
    assert LaunchTerms(launchers=("torchrun",)).launchers == ("torchrun",)
    for wrong in ((), ("mpirun",)):
        with pytest.raises(ValidationError):
            LaunchTerms(launchers=wrong)  # type: ignore[arg-type]  # wrong on purpose
