"""The jobs that print the parts of a run: where they run, how long, and that they are forgotten."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from probes.submit import bring_back
from probes.submit.bring_back import BringBack, unpack
from probes.submit.follow import ConnectionLost, SubmissionState, SubmitError, UnknownJob
from tests.probes.cluster.room.test_late_nodes import Clock

ID = "seatrial-submit-0123456789ab"
ABOUT = 'seatrial-archive {"name": "2026-atlas", "parts": 0, "sha256": ""}\n'


class Api:
    """The Jobs API of a head; a job ends after `turns` questions (a mock)."""

    def __init__(self, turns: int = 2, status: str = "SUCCEEDED") -> None:
        self.turns, self.status = turns, status
        self.submitted: list[tuple[str, dict[str, Any]]] = []
        self.stopped: list[str] = []
        self.forgotten: list[str] = []
        self.asked = self.uploads = 0
        self.written_again = 0  # the look before which Ray writes a removed job again
        self.patience_s = 600.0

    def upload(self, name: str, content: bytes) -> str:
        self.uploads += 1
        assert content
        return f"gcs://{name}"

    def submit(self, job: str, entrypoint: str, package: str, **where: Any) -> None:
        assert package.startswith("gcs://")
        assert entrypoint.endswith((f"parts.py {ID} 0 0", f"parts.py {ID} remove"))
        self.submitted.append((job, where))

    def state(self, job: str) -> SubmissionState:
        self.asked += 1
        ended = self.asked > self.turns
        return SubmissionState(self.status if ended else "RUNNING", "no such file")

    def log(self, job: str) -> str:
        return ABOUT

    def stop(self, job: str) -> None:
        self.stopped.append(job)

    def forget(self, job: str) -> None:
        self.forgotten.append(job)
        looks = len(self.forgotten)
        if looks == 1:
            raise ConnectionLost("reset")
        if looks > 2 and looks != self.written_again:
            raise UnknownJob("no such job")

    def insist(self, call: Callable[[], Any]) -> Any:
        return call()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(bring_back, "time", clock)
    return clock


def back(api: Api, host: str = "10.0.0.2") -> BringBack:
    return BringBack(cast(Any, api), ID, SubmissionState("SUCCEEDED", host=host))


def test_it_runs_on_the_node_of_the_suite(clock: Clock) -> None:
    api = Api()
    run = back(api)
    assert run.name() == "2026-atlas"
    assert clock.now == 2 * bring_back.POLL_S
    assert run.name() == "2026-atlas"
    (first, where), (second, _) = api.submitted
    assert where == {"entrypoint_resources": {"node:10.0.0.2": 0.001}}
    assert first != second
    assert all(job.startswith(f"{ID}-parts-") for job in (first, second))
    assert api.uploads == 1, "the program is sent once"


def test_without_a_node_it_runs_anywhere(clock: Clock) -> None:
    api = Api()
    back(api, "").name()
    assert api.submitted[0][1] == {}


def test_a_job_that_never_starts_is_stopped_and_said(clock: Clock) -> None:
    api = Api(turns=10**9)
    with pytest.raises(
        SubmitError, match=r"the job that reads the run on node 10\.0\.0\.2 did not end in 120 s"
    ):
        back(api).name()
    assert api.stopped == [api.submitted[0][0]]
    assert bring_back.JOB_S < clock.now <= bring_back.JOB_S + 2 * bring_back.POLL_S


def test_a_job_that_fails_says_why(clock: Clock) -> None:
    with pytest.raises(SubmitError, match=r"cannot be read on node 10\.0\.0\.2: no such file"):
        back(Api(status="FAILED")).name()


@pytest.mark.parametrize(("written_again", "looks"), [(0, 5), (3, 6), (5, 8), (6, 5)])
def test_its_jobs_are_forgotten_until_they_stay_away(
    clock: Clock, written_again: int, looks: int
) -> None:
    """A look is lost; Ray may write the end of a job once more after it was removed."""
    api = Api()
    api.written_again = written_again
    run = back(api)
    run.name()
    begun = clock.now
    run._forget_jobs()
    assert api.forgotten == [api.submitted[0][0]] * looks
    assert clock.now - begun == looks * bring_back.LOOK_S


def test_removing_takes_seconds_where_the_head_is_gone(clock: Clock) -> None:
    api = Api(turns=10**9)
    run = back(api)
    run.remove()
    assert clock.now <= 2 * bring_back.REMOVE_S  # the job, then the list
    assert api.patience_s == bring_back.REMOVE_S


def test_folders_modes_and_times_come_back(tmp_path: Path) -> None:
    """Also where the archive does not name a folder before its files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, mode in (("run/deep/er/file", 0o666), ("run/script", 0o755)):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = 1, mode, 1_700_000_000
            archive.addfile(member, io.BytesIO(b"x"))
        for name in ("run/empty/in", "run/deep/er"):
            folder = tarfile.TarInfo(name)
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
    buffer.seek(0)
    unpack(buffer, "run", tmp_path / "run")
    files = {path.name: path.stat() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    umask = bring_back._umask()
    assert umask == bring_back._umask(), "it is left as it was"
    assert {name: stat.st_mode & 0o777 for name, stat in files.items()} == {
        "file": 0o666 & ~umask,
        "script": 0o755 & ~umask,
    }
    assert {stat.st_mtime for stat in files.values()} == {1_700_000_000}
    assert (tmp_path / "run" / "empty" / "in").is_dir()
