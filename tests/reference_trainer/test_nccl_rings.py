"""NCCL's rings, read from a log that is no file.  NCCL is a stand-in here: it writes lines."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from reference_trainer import rank_environment
from reference_trainer.rank_environment import (
    LOG_VARIABLES,
    PINNED,
    _make_log,
    log_length,
    open_log,
    pin_order,
    read_rings,
    show_warnings,
)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No log is open, and nobody chose anything; nothing is left to the next test."""
    _make_log.cache_clear()
    for name in (*LOG_VARIABLES, *PINNED):
        monkeypatch.setenv(name, "")  # undone at the end, also what the code sets
        monkeypatch.delenv(name)
    yield
    if (log := open_log()) is not None:
        os.close(log)
    _make_log.cache_clear()


def say(*rings: str) -> None:
    """As NCCL 2.18 to 2.30 says it, appended to the file that it has opened."""
    with open(os.environ["NCCL_DEBUG_FILE"], "a") as log:
        log.writelines(f"n0:41:90 [0] NCCL INFO Ring {ring}\n" for ring in rings)


def test_the_rings_of_this_run_are_read_and_not_those_before() -> None:
    assert log_length() == 0
    say("00 : 3 -> 0 -> 1", "01 : 1 -> 0 -> 3")
    since = log_length()
    assert read_rings(0) == ["0: 3 -> 0 -> 1", "1: 1 -> 0 -> 3"]
    assert read_rings(since) is None
    say("10 : 2 -> 0 -> 1", "02 : 2 -> 0 -> 1", "02 : 2 -> 0 -> 1")
    assert read_rings(since) == ["2: 2 -> 0 -> 1", "10: 2 -> 0 -> 1"]


def test_other_lines_are_no_rings() -> None:
    open_log()
    with open(os.environ["NCCL_DEBUG_FILE"], "w") as log:
        log.write(
            "n0:41:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA\n"
            "n0:41:90 [0] NCCL INFO Channel 00/16 :    0   1   2   3\n"
            "n0:41:90 [0] NCCL INFO Connected all rings\n"
        )
    assert read_rings(0) is None


def test_a_later_run_of_the_process_logs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker takes a run's variables away, and NCCL may open its log in a later one only."""
    open_log()
    for name in LOG_VARIABLES:
        monkeypatch.delenv(name)
    assert log_length() == 0
    say("00 : 3 -> 0 -> 1")
    assert read_rings(0) == ["0: 3 -> 0 -> 1"]


def test_no_file_is_left() -> None:
    open_log()
    assert os.path.realpath(os.environ["NCCL_DEBUG_FILE"]).startswith("/memfd:nccl-log")


@pytest.mark.parametrize("level", ["WARN", "warn", "VERSION", ""])
def test_an_image_that_asks_for_warnings_alone_still_shows_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: str
) -> None:
    """The rings are proof that sums have the same order: they are logged where only WARN is set."""
    monkeypatch.setenv("NCCL_DEBUG", level)
    assert log_length() == 0
    assert os.environ["NCCL_DEBUG"] == "INFO"
    say("00 : 3 -> 0 -> 1")
    since = log_length()
    with open(os.environ["NCCL_DEBUG_FILE"], "a") as log:
        log.write("\nn0:41:90 [0] misc/socket.cc:49 NCCL WARN connect failed\nn0 NCCL INFO bye\n")
    assert read_rings(0) == ["0: 3 -> 0 -> 1"]
    show_warnings(since)
    assert capsys.readouterr().err == "n0:41:90 [0] misc/socket.cc:49 NCCL WARN connect failed\n"
    show_warnings(log_length())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("NCCL_DEBUG", level) for level in ("INFO", "TRACE", "ABORT")),
        *((name, "x") for name in LOG_VARIABLES[1:]),
    ],
)
def test_a_log_that_the_operator_wants_goes_where_he_wants(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert (open_log(), log_length(), read_rings(0)) == (None, 0, None)
    assert [os.environ.get(each) for each in LOG_VARIABLES].count(None) == 2


def test_the_order_is_pinned_and_what_it_overrules_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree,NVLS")
    assert pin_order() == [
        "this run uses NCCL_ALGO=Ring instead of Tree,NVLS, because sums must have a fixed order "
        "(--no-deterministic keeps your value)"
    ]
    assert {name: os.environ[name] for name in PINNED} == rank_environment.PINNED
    assert pin_order() == []
