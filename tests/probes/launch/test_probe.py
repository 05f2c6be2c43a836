"""LAUNCH as a whole: the path and its control, typed in one home."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.launch import test_launch
from probes.launch.documented_path import Transcript
from tests.probes.launch.test_judging import stand_in, transcript, without
from tests.support.controls import MemoryRecorder, recorder

Launch = Callable[[Transcript | OSError, Transcript], MemoryRecorder]


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Launch:
    """Run the probe; the commands of the path and of its control come to two transcripts."""

    def run(path: Transcript | OSError, control: Transcript) -> MemoryRecorder:
        def follow(cluster: Any, home: Path, extra: Sequence[str] = ()) -> Transcript:
            (home / "myjob").mkdir()  # as `seatrial example`, it refuses a folder that is there
            if isinstance(path, OSError):
                raise path
            return control if extra else path

        monkeypatch.setattr(test_launch, "follow_path", follow)
        cluster, measure = stand_in(), recorder("LAUNCH")
        cluster.dashboard = "http://10.0.0.1:8265"
        cluster.cleanup = SimpleNamespace(register=lambda *_: None, remove_now=shutil.rmtree)
        test_launch.test_documented_path_starts_a_correct_job(cluster, measure)
        return measure

    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(test_launch, "make_user_home", lambda parent: home)
    return run


def test_the_control_begins_where_nothing_is_left_of_the_path(
    launch: Launch, tmp_path: Path
) -> None:
    result = launch(transcript(), without(lines=1)).result("finished", 1.0)
    assert result.problems() == []
    assert [one.caught for one in result.controls] == [True]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("refused", ["path", "control"])
def test_a_job_that_could_not_be_stopped_fails_the_probe_in_one_sentence(
    launch: Launch, refused: str
) -> None:
    path, control = transcript(), without(lines=1)
    {"path": path, "control": control}[refused].stop_error = "HTTP 401: Unauthorized"
    with pytest.raises(pytest.fail.Exception, match=r"^HTTP 401: Unauthorized$") as failed:
        launch(path, control)
    assert not failed.value.pytrace


def test_a_command_that_no_login_finds_is_named_with_what_to_do(launch: Launch) -> None:
    missing = FileNotFoundError(2, "No such file or directory", "seatrial")
    with pytest.raises(pytest.fail.Exception, match=r"no command 'seatrial'\. Install") as failed:
        launch(missing, transcript())
    assert not failed.value.pytrace
