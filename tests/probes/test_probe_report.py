"""What pytest shows of a probe is its verdict, in one place and in words."""

from __future__ import annotations

import errno
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from probes.gang.competing_job import JobUnresponsive
from probes.gang.scenario import NoRoom
from probes.session.probe_report import (
    NOT_PROVABLE,
    describe_error,
    end_state,
    explains_itself,
    hide_secrets,
    is_sound,
    last_line,
    redact_internal_error,
    shorten_tracebacks,
    shown_verdict,
    status_words,
    write_verdict,
)
from reference_trainer.launch.gang import GangPending, WorkerLost
from reports.measurement import Limit
from reports.record import Cause, Control, Criterion, Finding, Measurement, ProbeResult

GANG = Criterion(
    id="GANG", title="gang", how="", failing={"placement_delay": "a job waited for {value}"}
)


def report_of(outcome: str, longrepr: Any = None) -> pytest.TestReport:
    """Pytest's report of a probe that took 1.5 s."""
    where = ("test_x.py", 1, "test_it")
    report = pytest.TestReport("test_x.py::test_it", where, {}, outcome, longrepr, "call")  # type: ignore[arg-type]
    report.duration = 1.5
    return report


def call_of(raised: type[BaseException] | None) -> pytest.CallInfo[None]:
    """What pytest knows of a call that raised this, or nothing."""

    def run() -> None:
        if raised:
            raise raised("the end\nof it, password=hunter2secret")

    return pytest.CallInfo.from_call(run, "call", reraise=None)


def result_of(value: float | None, **more: Any) -> ProbeResult:
    """A result of GANG with one measured value, and a finding."""
    limit = Limit(high=5, marginal_high=3, unit="s", because="as agreed")
    measurement = Measurement(name="placement_delay", value=value, limit=limit, unit="s")
    found = Finding(code="GANG-SLOW", statement="gang A was late", cause=Cause.NO_PROGRESS,
                    remedy="Look.")  # fmt: skip
    fields = {"state": "finished", "seconds": 1.0, **more}
    return ProbeResult(
        probe="p", criterion="GANG", claim="it holds", measurements=[measurement],
        controls=[Control(name="c", fault="f", caught=True, saw="it")], findings=[found], **fields,
    )  # fmt: skip


def test_the_last_line_of_a_traceback_is_shown_without_secrets() -> None:
    assert last_line("one\ntwo\nthree\n") == "three"
    assert last_line(" \n") == "no reason was given"
    assert "hunter2secret" not in last_line("E  api_key=hunter2secret")


def test_an_error_of_pytest_itself_is_shown_without_secrets() -> None:
    info = call_of(ValueError).excinfo
    assert info is not None
    shown = info.getrepr(style="native")
    before = str(shown)
    assert "hunter2secret" in before
    redact_internal_error(shown)
    assert str(shown) == before.replace("hunter2secret", "<redacted>")


@pytest.mark.parametrize(
    ("longrepr", "shown"),
    [
        (None, None),
        ("ValueError: broken", "ValueError: broken"),
        ("api_key=hunter2secret", "api_key=<redacted>"),
        (("test_x.py", 3, "api_key=hunter2secret"), ("test_x.py", 3, "api_key=<redacted>")),
    ],
)
def test_a_traceback_and_what_was_printed_are_shown_without_secrets(
    longrepr: Any, shown: Any
) -> None:
    report = report_of("failed", longrepr)
    report.sections = [("Captured stdout call", "api_key=hunter2secret")]
    hide_secrets(report)
    assert report.longrepr == shown
    assert report.sections == [("Captured stdout call", "api_key=<redacted>")]


@pytest.mark.parametrize(
    ("given", "used"), [("auto", "short"), ("long", "short"), ("native", "native"), ("no", "no")]
)
def test_a_traceback_is_never_long(given: str, used: str) -> None:
    option = SimpleNamespace(tbstyle=given, showlocals=True, fulltrace=True)
    shorten_tracebacks(option)
    assert option == SimpleNamespace(tbstyle=used, showlocals=False, fulltrace=False)


@pytest.mark.parametrize(
    ("outcome", "longrepr", "raised", "expected"),
    [
        ("passed", None, None, ("finished", "")),
        ("skipped", ("test_x.py", 3, "Skipped: no GPU"), None, ("skipped", "Skipped: no GPU")),
        ("skipped", "no GPU", None, ("skipped", "no GPU")),
        ("failed", "[XPASS(strict)] why", None, ("error", "[XPASS(strict)] why")),
        ("failed", "x", ValueError, ("error", "ValueError: the end")),
        ("failed", "x", KeyboardInterrupt, ("interrupted", "KeyboardInterrupt: the end")),
    ],
)
def test_how_a_probe_ended(
    outcome: str, longrepr: Any, raised: type[BaseException] | None, expected: tuple[str, str]
) -> None:
    call = call_of(raised)
    state, seconds, error_text = end_state(report_of(outcome, longrepr), call)
    assert (state, seconds) == (expected[0], 1.5)
    assert error_text.startswith(expected[1])
    assert bool(error_text) == bool(expected[1])
    assert "hunter2secret" not in error_text


@pytest.mark.parametrize(
    ("value", "verdict", "outcome", "word"),
    [
        (1.0, "PASS", "passed", None),
        (4.0, "MARGINAL", "passed", "MARGINAL"),
        (9.0, "FAIL", "failed", None),
        (None, "UNPROVEN", "failed", "UNPROVEN"),
    ],
)
def test_the_verdict_takes_the_place_of_passed(
    value: float | None, verdict: str, outcome: str, word: str | None
) -> None:
    report, result = report_of("passed"), result_of(value)
    assert result.verdict.value == verdict
    write_verdict(report, result, GANG)
    assert report.outcome == outcome
    assert is_sound(report) is (outcome == "passed")
    assert shown_verdict(report) == verdict
    words = status_words(report)
    assert (words and words[2][0]) == word
    assert words is None or words[2][1] == {"yellow": True}
    if outcome == "failed":
        lines = str(report.longrepr).splitlines()
        assert lines[0] == f"GANG {verdict}"
        assert lines[-1] == "GANG-SLOW: gang A was late"
        assert lines[1].startswith("a job waited for 9 s. Expected: <= 5 s (") is (value == 9)
        assert len(lines) > 2


def test_an_error_keeps_its_traceback_below_the_sentences() -> None:
    report = report_of("failed", "Traceback\nValueError: broken")
    write_verdict(report, result_of(None, state="error", error="ValueError: broken"), GANG)
    text = str(report.longrepr)
    assert text.startswith("GANG UNPROVEN")
    assert text.endswith("Traceback\nValueError: broken")
    silent = report_of("passed", "what a plugin left here")
    write_verdict(silent, result_of(None), GANG)
    assert "what a plugin left here" not in str(silent.longrepr)


@pytest.mark.parametrize(
    ("value", "state", "sound"),
    [(None, "finished", True), (1.0, "finished", True), (9.0, "finished", False),
     (None, "error", False), (None, "skipped", False)],
)  # fmt: skip
def test_what_cannot_be_proven_here_is_no_failure_unless_it_failed(
    value: float | None, state: str, sound: bool
) -> None:
    report = report_of("passed")
    write_verdict(
        report, result_of(value, state=state), GANG.model_copy(update={"required": False})
    )
    assert is_sound(report) is sound
    words = status_words(report)
    if sound:
        assert words is not None
        assert words[2] == (NOT_PROVABLE.upper(), {"yellow": True})


def test_a_report_without_a_verdict_is_sound_and_has_no_word() -> None:
    assert is_sound(report_of("passed"))
    assert status_words(report_of("passed")) is None
    assert shown_verdict(report_of("passed")) == ""


DIED = """The actor died unexpectedly before finishing this task.
\tclass_name: GangObserver
\tactor_id: 5e1c01000000
\tpid: 4711
\tnamespace: 8f0e
\tip: 10.78.0.1
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR"""


class RayActorError(RuntimeError):
    """As Ray's, by its name."""


class ActorDiedError(RayActorError):
    """As Ray's."""


class TaskError(RuntimeError):
    """As Ray's RayTaskError, which has what a task raised."""

    cause = OSError(errno.ENOSPC, "No space left on device", "/shared/step-3")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            ActorDiedError(DIED),
            "Ray actor GangObserver (process 4711) on 10.78.0.1 died: The actor is dead because "
            "its worker process has died",
        ),
        (ActorDiedError("it died because of an error in its creation task"), ""),
        (TaskError("ray::train() 14 lines"), "No space left on device: /shared/step-3"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "Disk quota exceeded"),
        (OSError(errno.ENOENT, "No such file or directory", "/x"), ""),
        (RuntimeError("a bug"), ""),
    ],
)
def test_a_dead_actor_or_disk_is_one_sentence(error: Exception, says: str) -> None:
    call: pytest.CallInfo[None] = pytest.CallInfo.from_call(_raise(error), "call")
    assert explains_itself(call) is bool(says)
    assert call.excinfo is not None
    described = describe_error(call.excinfo)
    assert described == says if says else type(error).__name__ in described


def _raise(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(("ranks", "itself"), [([1], True), ([], False)])
def test_a_rank_that_died_needs_no_traceback(ranks: list[int], itself: bool) -> None:
    """An error that a rank raised may be a bug."""
    error = WorkerLost(f"train: ranks {ranks} died", ranks, 0.0)
    call: pytest.CallInfo[None] = pytest.CallInfo.from_call(_raise(error), "call")
    assert explains_itself(call) is itself


@pytest.mark.parametrize(
    ("raised", "itself"),
    [
        (GangPending, True),
        (NoRoom, True),
        (JobUnresponsive, True),
        (ValueError, False),
        (None, False),
    ],
)
def test_a_lack_of_room_needs_no_traceback(
    raised: type[BaseException] | None, itself: bool
) -> None:
    call = call_of(raised)
    assert explains_itself(call) is itself
    report = report_of("failed", "Traceback: deep inside")
    result = result_of(None, state="error", error="1 GPU on node0 is held by actor Train")
    write_verdict(report, result, GANG, traceback=not itself)
    assert "held by actor Train" in report.longreprtext
    assert ("deep inside" in report.longreprtext) is not itself
