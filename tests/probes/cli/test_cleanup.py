"""`seatrial cleanup`: what it lists, what it leaves, and the code it ends with."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner

from probes import leftovers
from probes.cli.main import main
from probes.cluster.room import OtherTrial
from probes.leftovers import FILE, JOB, LeftOver

OLD = LeftOver(FILE, "id0", "node0", "/shared/.seatrial-0123456789ab", 7300.0)
NEW = LeftOver(FILE, "id0", "node0", "/tmp/seatrial-ba9876543210", 30.0)
RUNS = LeftOver(JOB, "", "http://head:8265", "raysubmit_x", None)


class Cluster:
    busy = False

    def end_claim(self, job: str) -> None:
        if job != "01000000":
            raise OtherTrial(f"job {job} has no lock on this cluster. Found: no lock")
        Cluster.busy = False

    def claim(self, *_: object) -> None:
        if self.busy:
            raise OtherTrial("another trial runs on this cluster")

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass


UNKNOWN: list[str] = []


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[LeftOver]:
    """What is left on a cluster; removed from the list as `cleanup` removes it."""
    found: list[LeftOver] = []

    def remove(cluster: object, items: Iterable[LeftOver]) -> dict[str, str]:
        gone = [*items]
        found[:] = [one for one in found if one not in gone or "stays" in one.name]
        return {one.name: "Permission denied" for one in found if "stays" in one.name}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("probes.cluster.cluster.connect", lambda spec: Cluster())
    monkeypatch.setattr(leftovers, "find_left", lambda *_: ([*found], [*UNKNOWN]))
    monkeypatch.setattr(leftovers, "remove_left", remove)
    return found


def run(*words: str) -> tuple[int, list[str]]:
    result = CliRunner().invoke(main, ["cleanup", *words], catch_exceptions=False)
    return result.exit_code, result.output.splitlines()


def test_nothing_is_left(left: list[LeftOver]) -> None:
    assert run() == (0, ["nothing is left of earlier runs"])
    assert run("--remove") == (0, ["nothing is left of earlier runs"])


def test_it_lists_before_it_removes(left: list[LeftOver]) -> None:
    left[:] = [OLD, RUNS]
    code, lines = run()
    assert code == 20
    assert lines == [
        "file node0 /shared/.seatrial-0123456789ab unchanged for 2 h",
        "job http://head:8265 raysubmit_x still runs",
        "2 left-overs. --remove would remove 2 of 2",
    ]
    assert left == [OLD, RUNS]
    code, lines = run("--remove")
    assert (code, lines[-1], left) == (0, "2 removed, 0 still there", [])


FOREIGN = LeftOver(JOB, "", "http://head:8265", "raysubmit_y", None, is_sure=False)


def test_a_job_that_may_be_another_users_stays_until_it_is_named(left: list[LeftOver]) -> None:
    left[:] = [RUNS, FOREIGN]
    code, lines = run("--remove")
    assert (code, lines[-1], left) == (20, "1 removed, 1 still there", [FOREIGN])
    assert lines[1] == (
        "job http://head:8265 raysubmit_y still runs, kept: this job only looks like seatrial's, "
        "and may belong to another user. Stop it with --remove --job raysubmit_y"
    )
    assert run()[0] == 20, "it is listed"
    code, lines = run("--remove", "--job", "raysubmit_y")
    assert (code, lines[-1], left) == (0, "1 removed, 0 still there", [])


def test_a_job_that_is_not_listed_is_not_stopped(left: list[LeftOver]) -> None:
    left[:] = [OLD, FOREIGN]
    code, lines = run("--remove", "--job", "raysubmit_z")
    assert (code, left) == (4, [OLD, FOREIGN])
    assert lines[-1] == (
        "error: --job: expected a listed job, found raysubmit_z. Run `seatrial cleanup`"
        " without --job to list the jobs"
    )


def test_a_job_is_named_to_be_stopped(left: list[LeftOver]) -> None:
    left[:] = [FOREIGN]
    code, lines = run("--job", "raysubmit_y")
    assert (code, left) == (4, [FOREIGN])
    assert "--job stops a job only together with --remove" in lines[-1]


def test_what_may_be_in_use_stays(left: list[LeftOver]) -> None:
    left[:] = [OLD, NEW]
    code, lines = run("--remove")
    assert (code, lines[-1], left) == (20, "1 removed, 1 still there", [NEW])
    kept = "unchanged for 30 s, kept: it changed within the time of --idle (default: 1h)"
    assert lines[1].endswith(kept)
    code, lines = run("--remove", "--idle", "0")
    assert (code, left) == (0, [])
    left[:] = [OLD, LeftOver(FILE, "id0", "node0", "/tmp/seatrial-submit-0123456789ab", 7200)]
    code, lines = run()
    assert "2 h, kept for a week: `seatrial submit --attach` may still copy this run" in lines[1]
    assert lines[-1] == "2 left-overs. --remove would remove 1 of 2"


def test_what_cannot_be_removed_is_named(left: list[LeftOver]) -> None:
    left[:] = [LeftOver(FILE, "id0", "node0", "/tmp/seatrial-stays", 9e9)]
    code, lines = run("--remove")
    assert code == 20
    assert "not removed: Permission denied" in lines[0]


def test_a_trial_under_way_is_not_touched(
    left: list[LeftOver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "busy", True)
    left[:] = [OLD]
    code, lines = run("--remove")
    assert (code, lines) == (4, ["error: another trial runs on this cluster"])
    assert left == [OLD]


def test_a_time_that_is_none_is_refused(left: list[LeftOver]) -> None:
    code, (line,) = run("--idle", "soon")
    assert code == 4
    assert "--idle is 'soon', expected whole seconds, minutes or hours, such as" in line


def test_a_submission_can_be_brought_back_for_a_week(left: list[LeftOver]) -> None:
    name = "/tmp/seatrial-submit-0123456789ab"
    young, old = (LeftOver(FILE, "id0", "node0", name, days * 24 * 3600.0) for days in (6, 8))
    left[:] = [young, old]
    code, _ = run("--remove", "--idle", "0")
    assert (code, left) == (20, [young])


def test_what_was_not_searched_is_not_called_empty(
    left: list[LeftOver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "UNKNOWN", ["node3 does not answer"])
    code, lines = run()
    assert code == 20
    assert lines == ["not searched: node3 does not answer", "nothing was found elsewhere"]


def test_the_claim_of_a_job_that_is_no_trial_can_be_ended(
    left: list[LeftOver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "busy", True)
    left[:] = [OLD]
    assert run("--remove") == (4, ["error: another trial runs on this cluster"])
    code, (line,) = run("--unclaim", "02000000")
    assert (code, line) == (
        4,
        "error: job 02000000 has no lock on this cluster. Found: no lock",
    )
    assert left == [OLD]
    code, lines = run("--unclaim", "01000000", "--remove")
    assert (code, lines[0], lines[-1]) == (
        0, "the lock of job 01000000 is removed", "1 removed, 0 still there"
    )  # fmt: skip
