"""A run folder of somebody else: nothing outside it is read or overwritten, no traceback, no 1."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.cli.main import main
from reports.run_folder.event_log import write_checksums
from tests.support.run_folders import Events, chain, read_lines, rewrite, write_lines
from tests.support.sound_run import write_sound_run

READERS = ("show", "report", "rejudge", "compare", "contract", "scaling")


def seatrial(name: str, run: Path) -> Result:
    more: dict[str, list[str]] = {
        "show": [str(run)],
        "report": [str(run)],
        "compare": [str(run), str(run)],
        "rejudge": [str(run), "--contract", "lab"],
        "contract": ["new", "--from", str(run), str(run.parent / "new.toml")],
        "scaling": ["report", str(run)],
    }
    return CliRunner().invoke(main, [name, *more[name]])


def assert_refused(run: Path) -> None:
    """Every command that reads a run ends with 4 and one sentence."""
    for name in READERS:
        told = seatrial(name, run)
        assert told.exit_code == 4, (name, told.output, told.exception)
        assert isinstance(told.exception, SystemExit), (name, told.exception)
        assert "Traceback" not in told.output
        assert "\x1b" not in told.output


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sound_run(tmp_path_factory.mktemp("sound") / "run")


@pytest.fixture
def run(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "run")


def lines_of(change: Callable[[Events], Any]) -> Callable[[Path], None]:
    return lambda run: rewrite(run, lambda lines: change(lines) or lines)


def raw(line: str) -> Callable[[Path], None]:
    """Put a line of text into the middle of the log."""

    def edit(run: Path) -> None:
        lines = (run / "events.jsonl").read_text().splitlines()
        (run / "events.jsonl").write_text("\n".join([*lines[:3], line, *lines[3:]]) + "\n")

    return edit


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def measured(key: str, value: Any) -> Callable[[Path], None]:
    def change(lines: Events) -> None:
        next(line for line in lines if line["event"] == "measurement")["data"][key] = value

    return lines_of(change)


def started(key: str, value: Any) -> Callable[[Path], None]:
    return lines_of(lambda lines: lines[0]["data"].update({key: value}))


def evidence(path: str) -> Callable[[Path], None]:
    def change(lines: Events) -> None:
        next(line for line in lines if line["event"] == "evidence")["data"]["path"] = path

    return lines_of(change)


def link(name: str, target: str) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        path = run / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return edit


def special(name: str) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return edit


CASES: dict[str, Callable[[Path], None]] = {
    "probe is a list": raw('{"event": "measurement", "probe": [1], "data": {}}'),
    "kind is a list": raw('{"event": ["measurement"], "data": {}}'),
    "deep JSON": raw("[" * 50_000),
    "a number of 5000 digits": raw('{"event": "series", "data": {"n": ' + "9" * 5000 + "}}"),
    "facts 60 deep": started("cluster", {"nodes": deep(60)}),
    "facts 400 deep": started("cluster", {"nodes": deep(400)}),
    "seconds that no clock has": lines_of(
        lambda lines: next(x for x in lines if x["event"] == "probe_finished")["data"].update(
            seconds=1e308
        )
    ),
    "infinity": raw('{"event": "series", "data": {"n": Infinity}}'),
    "a limit that is text": measured("limit", "none"),
    "a limit without a reason": measured("limit", {"low": 1}),
    "a limit upside down": measured("limit", {"because": "abc", "low": "NaN"}),
    "an unknown key": measured("trust", True),
    "a contract that is a list": started("contract", []),
    "versions that are a list": started("versions", [1]),
    "owed that is a word": lines_of(
        lambda lines: lines[1]["data"].update(owed="nothing")
    ),
    "no words": lambda run: (run / "events.jsonl").write_bytes(b"\x00\xff" * 500) and None,
    "no log": lambda run: (run / "events.jsonl").unlink(),
    "a folder for a log": lambda run: (
        (run / "events.jsonl").unlink() or (run / "events.jsonl").mkdir()
    ),
    "a pipe for a log": special("events.jsonl"),
    "a pipe in the evidence": special("evidence/pipe"),
    "zeros without end": link("events.jsonl", "/dev/zero"),
    "a link to a key": link("evidence/GANG.log", "/etc/hostname"),
    "a link to a folder": link("evidence", "/etc/ssl"),
    "a link to itself": link("evidence/loop", "loop"),
    "a link for the page": link("report.html", "/etc/hostname"),
    "a link for the sums": link("SHA256SUMS", "/dev/null"),
    "evidence above": evidence("evidence/../../x"),
    "evidence at the root": evidence("/etc/hostname"),
    "evidence of 20,000 letters": evidence("evidence/" + "x" * 20_000),
    "evidence with a NUL": evidence("evidence/a\x00b"),
    "sums that are no text": lambda run: (run / "SHA256SUMS").write_bytes(b"\xff" * 99) and None,
    "sums of a name of 10,000 letters": lambda run: (
        (run / "SHA256SUMS").write_text("0" * 64 + "  " + "x" * 10_000 + "\n") and None
    ),
    "folders 40 deep": lambda run: (run / "evidence" / "/".join("d" * 40)).mkdir(parents=True),
    "a contract of another": lambda run: (run / "contract.toml").write_bytes(b"\xff\x00") and None,
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_folder_is_one_sentence(run: Path, case: str) -> None:
    victims = {Path(name): Path(name).read_bytes() for name in ("/etc/hostname",)}
    CASES[case](run)
    assert_refused(run)
    assert {name: name.read_bytes() for name in victims} == victims


def test_a_line_without_end_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reports.run_folder.event_log.MAX_LINE", 4000)
    raw(" " * 5000)(run)
    assert_refused(run)


def test_a_log_that_is_too_long_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reports.run_folder.event_log.MAX_LOG", 4000)
    assert_refused(run)


def test_a_link_planted_beside_the_run_is_not_written_through(run: Path) -> None:
    """The page of a changed run goes to RUN-report; a partial file never has a known name."""
    victim = run.parent / "victim"
    victim.write_text("mine")
    (run.parent / "run-report").mkdir()
    for name in ("report.html", "report.html.partial", "junit.xml"):
        (run.parent / "run-report" / name).symlink_to(victim)
    (run / "evidence" / "GANG.log").write_text("other")
    assert seatrial("report", run).exit_code == 4
    assert victim.read_text() == "mine"
    assert not (run.parent / "run-report" / "report.html").is_symlink()


def test_a_folder_that_was_there_is_not_taken_for_a_judged_run(run: Path) -> None:
    notes = run.parent / "run-by-lab" / "signed-notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    assert seatrial("rejudge", run).exit_code == 0
    assert notes.read_text() == "mine"
    assert (run.parent / "run-by-lab-2" / "report.html").exists()


def test_a_link_in_place_of_the_report_folder_is_refused(run: Path) -> None:
    elsewhere = run.parent / "elsewhere"
    elsewhere.mkdir()
    (run.parent / "run-report").symlink_to(elsewhere)
    (run / "evidence" / "GANG.log").write_text("other")
    told = seatrial("report", run)
    assert told.exit_code == 4
    assert [*elsewhere.iterdir()] == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda part: (
        st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=8), part, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def edits(draw: st.DrawFn) -> tuple[int, list[str], Any]:
    keys = st.sampled_from(
        ["data", "event", "probe", "limit", "value", "name", "owed", "contract", "cluster", "state",
         "versions", "criteria", "path", "sha256", "seconds", "tier", "low", "nodes", "terms"]
    )  # fmt: skip
    return draw(st.integers(0, 400)), draw(st.lists(keys, min_size=1, max_size=3)), draw(JSON)


@settings(max_examples=150, deadline=None)  # each reads a whole run folder
@given(edits())
def test_any_value_anywhere_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, edit: tuple[int, list[str], Any]
) -> None:
    """Whatever stands in the log, a reader gets a summary or a sentence; no edit is accepted."""
    number, keys, value = edit
    folder = tmp_path_factory.mktemp("fuzz")
    run = write_killed(folder)
    lines = read_lines(run)
    place: Any = lines[number % len(lines)]
    for key in keys[:-1]:
        inner = place.get(key) if isinstance(place, dict) else None
        place = inner if isinstance(inner, dict) else place
    before = json.dumps(lines)
    place[keys[-1]] = value
    write_lines(run, chain(lines))
    write_checksums(run)
    told = seatrial("show", run)
    shutil.rmtree(folder)
    assert told.exit_code in (1, 2, 3, 4, 20) or json.dumps(lines) == before, told.output
    assert isinstance(told.exception, SystemExit | None), told.exception


SOUND: list[Path] = []


def write_killed(folder: Path) -> Path:
    """A copy of a run, written once."""
    if not SOUND:
        SOUND.append(write_sound_run(folder.parent / "of-all-edits"))
    return shutil.copytree(SOUND[0], folder / "run")


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 10**6))
def test_any_bytes_anywhere_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, place: int
) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    run = write_killed(folder)
    log = (run / "events.jsonl").read_bytes()
    at = place % len(log)
    (run / "events.jsonl").write_bytes(log[:at] + content + log[at + len(content) :])
    write_checksums(run)
    changed = (run / "events.jsonl").read_bytes() != log
    told = seatrial("show", run)
    shutil.rmtree(folder)
    assert told.exit_code in ((2, 4) if changed else (0,)), told.output
    assert isinstance(told.exception, SystemExit | None), told.exception
