"""`seatrial submit`: what it refuses, what it prints, and the exit code it ends with."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from probes.cli.main import main
from probes.cli.submit import new_folder
from probes.submit.bring_back import BringBack, NoRun
from probes.submit.follow import SubmitError, suite_lines
from probes.submit.package import recorded_code
from reports.run_folder.event_log import write_checksums
from reports.run_folder.times import utc_time
from tests.probes.submit.test_jobs_api import head
from tests.support.sound_run import write_sound_run

ID = "seatrial-submit-0123456789ab"
pytestmark = pytest.mark.usefixtures("here")
LOG = f"Running entrypoint\nseatrial-submission {ID}\ncluster   atlas\nFABRIC \x1b[31mPASS\n"


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["submit", *words], catch_exceptions=False)
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("variable", "sentence"),
    [
        ("http://127.0.0.1:1", "http://127.0.0.1:1: "),  # as `ray job submit` takes it
        ("127.0.0.1:6379", "no cluster: give --address"),  # of Ray, and no dashboard
    ],
)
def test_the_address_may_be_in_rays_variable(
    variable: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", variable)
    code, output = run("--contract", "lab")
    assert code == 4
    assert sentence in output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "no cluster: give --address http://head:8265, or set RAY_API_SERVER_ADDRESS"),
        (["--address", "head:8265"], "--address: expected http://head:8265, found head:8265"),
        (["--address", "http://127.0.0.1:9", "--attach", "mine"], "--attach: expected an id like"),
        (
            ["--address", "http://127.0.0.1:9", "--attach", ID, "--tier", "soak", "-k", "x"],
            "has begun, and cannot change it: drop --keyword",
        ),
        (
            ["--address", "http://127.0.0.1:9", "--run-dir", "full"],
            "--run-dir: the folder full is not empty",
        ),
        (
            ["--address", "http://127.0.0.1:9"],
            "the dashboard cannot be used: http://127.0.0.1:9: [Errno 111] Connection refused. ",
        ),
        (["--address", "http://[::1"], "--address: expected http://head:8265, found no URL"),
        (["--address", "http://"], "--address: expected http://head:8265, found http://"),
        (
            ["--address", "http://me:5ecret@head:8265"],
            "--address: remove user and password from the URL, and set RAY_AUTH_TOKEN",
        ),
        (
            ["--address", "http://127.0.0.1:9", "--run-dir", "full/record.json/x"],
            "from the cluster to the folder full/record.json/x on this machine: ",
        ),
        (["--address", "http://x", "--cluster", "auto"], "No such option '--cluster'"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(words: list[str], sentence: str) -> None:
    Path("full").mkdir()
    (Path("full") / "record.json").touch()
    code, said = run(*words)
    assert code == 4
    assert said.startswith("error: ")
    assert sentence in said
    assert said.count("\n") == 1
    assert "5ecret" not in said


def cluster(states: list[dict[str, Any]], log: str = LOG) -> Any:
    """Answers as a cluster with one submission, whose state is one after the other."""
    left = list(states)

    def answer(method: str, path: str) -> tuple[int, Any]:
        if path == "/api/version":
            return 200, {"ray_version": "2.60.0"}
        if path.endswith("/logs"):
            return 200, {"logs": log}
        if path.startswith("/api/packages"):
            return 200, {}
        return 200, left.pop(0) if len(left) > 1 else left[0]

    return head(answer)


RUNS: dict[int | None, dict[str, Any]] = {
    0: {},
    1: {"partially_held": 1},
    20: {"values": {"busbw": (math.nan, math.nan)}},
    2: {"end": False},
    None: {"end": False},
}


def brought(monkeypatch: pytest.MonkeyPatch, code: int | None, **facts: Any) -> None:
    """As if the run came back, with this exit code on record."""

    def run_to(self: BringBack, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        begun = {"nonce": self._id, "submission": self._id, "started": utc_time()}
        write_sound_run(target, **{**begun, **RUNS[code], **facts})

    monkeypatch.setattr(BringBack, "run_to", run_to)
    monkeypatch.setattr(BringBack, "name", lambda self: "2026-atlas")
    monkeypatch.setattr(BringBack, "remove", lambda self: None)


@pytest.mark.parametrize(
    ("state", "recorded", "code", "words"),
    [
        ({"status": "SUCCEEDED", "driver_exit_code": 0}, 0, 0, "run folder runs/2026-atlas"),
        ({"status": "FAILED", "driver_exit_code": 1}, 1, 1, "run folder"),
        ({"status": "FAILED", "driver_exit_code": 20}, 20, 20, "run folder"),
        ({"status": "STOPPED", "driver_exit_code": None}, 2, 2, "run folder"),
        ({"status": "FAILED", "message": "it died"}, None, 3, "exit code. Ray reports: it died"),
        ({"status": "FAILED", "driver_exit_code": -9}, None, 3, "code. Ray reports: no reason"),
        ({"status": "FAILED", "driver_exit_code": 5}, None, 3, "run folder: missing. Expected: 5"),
        ({"status": "SUCCEEDED", "driver_exit_code": 0}, 20, 4, "run folder: 20. Expected: 0"),
        ({"status": "SUCCEEDED", "driver_exit_code": 0}, None, 4, "SHA256SUMS is missing"),
        ({"status": "FAILED", "driver_exit_code": 1}, 0, 4, "run folder: 0. Expected: 1"),
    ],
)
def test_the_exit_code_is_that_of_the_run(
    state: dict[str, Any],
    recorded: int | None,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job that succeeded proves nothing without a run that says the same."""
    brought(monkeypatch, recorded)
    with cluster([{"status": "PENDING"}, {"status": "RUNNING"}, state]) as (address, _):
        found, said = run("--address", address, "--contract", "lab")
    assert found == code, said
    assert words in said
    assert "cluster   atlas\nFABRIC PASS\n" in said
    assert "Running entrypoint" not in said


@pytest.mark.parametrize(("exit_code", "expected"), [(0, 3), (1, 3), (20, 20), (4, 4), (5, 5)])
def test_a_suite_without_a_run_proves_nothing(
    exit_code: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(self: BringBack) -> str:
        raise NoRun("none")

    brought(monkeypatch, 0)
    monkeypatch.setattr(BringBack, "name", none)
    status = "FAILED" if exit_code else "SUCCEEDED"
    with cluster([{"status": status, "driver_exit_code": exit_code}]) as (address, _):
        code, said = run("--address", address, "--contract", "lab")
    assert code == expected
    assert "run folder" not in said


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("Running entrypoint\nerror: python has no torch\n", ": python has no torch"),
        ("sh: exec: : not found\n", "exit code 127 sh: exec: : not found"),
        ("", "exit code 127"),
    ],
)  # fmt: skip
def test_a_suite_that_did_not_begin_says_why(log: str, words: str) -> None:
    job = {"status": "FAILED", "message": "exit code 127", "driver_exit_code": 127}
    with cluster([job], log) as (address, _):
        code, said = run("--address", address, "--contract", "lab")
    assert code == 4
    assert f"the suite did not start on {address}: " in said
    assert words in said


def test_a_detached_submission_says_how_to_attach() -> None:
    with cluster([{"status": "RUNNING"}]) as (address, asked):
        code, said = run("--address", address, "--contract", "lab", "--detach")
        assert code == 20
        command = said.splitlines()[-1]
        assert command.startswith(f"seatrial submit --address {address} --attach seatrial-submit-")
        assert "nothing is proven yet" in said
        assert asked[-1] == "POST /api/jobs/"


def test_a_connection_that_stays_lost_detaches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probes.submit.follow.RETRY_S", 0.01)
    monkeypatch.setattr("probes.submit.follow.PATIENCE_S", 0.1)

    def answer(method: str, path: str) -> tuple[int, Any]:
        return (200, {"ray_version": "2.60.0"}) if path == "/api/version" else (503, {})

    with head(answer) as (address, _):
        code, said = run("--address", address, "--attach", ID)
    assert code == 20
    assert "the connection to the dashboard is lost: " in said
    assert f"--attach {ID}" in said


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".x", "a b", "a\nb"])
def test_a_run_that_names_a_path_is_refused(name: str) -> None:
    with pytest.raises(SubmitError):
        new_folder(name, ID)


def test_a_run_does_not_replace_another() -> None:
    assert new_folder("a", ID) == Path("runs/a")
    (Path("runs") / "a").mkdir(parents=True)
    assert new_folder("a", ID) == Path("runs/a-0123456789ab")


def test_lines_come_after_the_mark() -> None:
    assert suite_lines("") == suite_lines("seatrial-submission") == []
    assert suite_lines(f"x\nseatrial-submission {ID}\na\nb") == ["a", "b"]


def test_an_unreadable_code_is_none(tmp_path: Path) -> None:
    assert recorded_code(tmp_path) is None
    (tmp_path / "metrics.prom").write_bytes(b"\xff")
    assert recorded_code(tmp_path) is None


@pytest.mark.parametrize(
    ("github", "nonce", "code"),
    [
        (True, None, 1),
        (False, None, 1),
        (True, "of another run", 4),
        (True, None, 3),
        (True, "of another run", 3),
    ],
)
def test_github_gets_the_annotations_and_the_summary_of_the_run_that_was_submitted(
    github: bool, nonce: str | None, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    brought(monkeypatch, 1, **({"nonce": nonce, "submission": nonce} if nonce else {}))
    run_to = BringBack.run_to

    def with_summary(self: BringBack, target: Path) -> None:
        run_to(self, target)
        if code == 3:  # as if its teardown had failed
            path = target / "metrics.prom"
            path.write_text(re.sub(r"(?m)^(seatrial_exit_code.*) 1$", r"\1 3", path.read_text()))
            write_checksums(target)
        (target / "github-step-summary.html").write_text("<b>FAIL</b>\n")

    monkeypatch.setattr(BringBack, "run_to", with_summary)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    if github:
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    log = LOG + "::error title=FABRIC::slow \x1b[2J::add-mask::x\n::add-mask::secret\n"
    with cluster([{"status": "FAILED", "driver_exit_code": 3 if code == 3 else 1}], log) as (
        address,
        _,
    ):
        found, said = run("--address", address, "--contract", "lab")
    assert found == code
    assert ("\n::error title=FABRIC::slow" in said) == github
    assert "\n::add-mask::" not in said  # a cluster gives no other order to a runner
    assert (tmp_path / "summary").exists() == (github and nonce is None)
    assert not (tmp_path / "runs/2026-atlas/github-step-summary.html").exists()
