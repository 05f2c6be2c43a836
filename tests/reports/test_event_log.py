"""What is read of a log that anyone may have written: bounds, types, what comes after the end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from reports.run_folder import event_log, fold
from reports.run_folder.event_log import (
    EventReader,
    UnreadableRun,
    open_regular,
    parse_json,
)
from reports.run_folder.fold import read_record
from tests.support.run_folders import chain


def log_of(folder: Path, *events: dict[str, Any]) -> EventReader:
    lines = chain([{"t": "", **event} for event in events])
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return EventReader(folder)


START = {"event": "run_started", "data": {}}
END = {"event": "run_finished", "data": {"state": "finished"}}


def test_after_the_end_only_a_problem_may_come(tmp_path: Path) -> None:
    problem = {"event": "run_problem", "data": {"text": "x"}}
    log = log_of(tmp_path, START, END, problem)
    assert ([*log][-1]["event"], log.problems) == ("run_problem", [])
    log = log_of(tmp_path, START, END, {"event": "run_updated", "data": {}})
    assert len([*log]) == 3
    assert log.problems == ["events.jsonl: line 3 is after the end of the run"]


def test_half_a_line_after_the_end_is_a_problem_and_before_it_is_none(tmp_path: Path) -> None:
    for events, problems in ([(START, END), 1], [(START,), 0]):
        log = log_of(tmp_path, *events)
        with (tmp_path / "events.jsonl").open("a") as file:
            file.write('{"half": ')
        assert len([*log]) == len(events)
        assert len(log.problems) == problems


@pytest.mark.parametrize(
    "line",
    [
        '{"event": 1, "data": {}}',
        '{"event": "series", "data": {}, "probe": 1}',
        '{"event": 1, "data": {}, "probe": 1}',
        '{"event": "series", "data": []}',
        "[]",
        "7",
    ],
)
def test_a_line_of_another_form_is_no_event(line: str, tmp_path: Path) -> None:
    log = log_of(tmp_path, START, END)
    text = (tmp_path / "events.jsonl").read_text()
    (tmp_path / "events.jsonl").write_text(f"{line}\n{text}")
    with pytest.raises(UnreadableRun, match="line 1 is not a valid JSON event"):
        list(log)


def test_a_second_start_and_a_time_that_goes_back_are_problems(tmp_path: Path) -> None:
    log = log_of(tmp_path, START | {"elapsed": 2.0}, START | {"elapsed": 1.5}, END | {"elapsed": 3})
    assert len([*log]) == 3
    assert log.problems == [
        "events.jsonl: line 2 has an earlier time than the line before it",
        "events.jsonl: line 2 starts a second run",
    ]


def test_of_very_many_problems_twenty_are_listed(tmp_path: Path) -> None:
    log = log_of(tmp_path, START, *[{"event": "nothing", "data": {}}] * 30)
    assert len([*log]) == 31
    assert len(log.problems) == 20


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def test_lists_are_nested_to_a_bound() -> None:
    assert parse_json(nested(50))
    with pytest.raises(ValueError, match="have more than 50 levels"):
        parse_json(nested(51))
    assert parse_json(b"[" + b"[]," * 50 + b"[]]")  # beside each other they are no depth


@pytest.mark.parametrize("text", [b"NaN", b"1" * 301, b"Infinity", b"{", b"[1,]"])
def test_what_no_json_of_ours_has_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_links_pipes_and_folders_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    with open_regular(tmp_path / "file") as file:
        assert not os.get_inheritable(file.fileno())
        assert file.read() == b"x"
    open_now = len(os.listdir("/proc/self/fd"))
    for name, why in (
        ("link", "cannot be read: Too many levels of symbolic links"),
        ("none", "cannot be read: No such file"),
        ("\0", "cannot be read: its name is not a valid path"),
        ("pipe", "expected a regular file, found something else"),
        (".", "expected a regular file, found something else"),
    ):
        with pytest.raises(UnreadableRun, match=why):
            open_regular(tmp_path / name)
    assert len(os.listdir("/proc/self/fd")) == open_now


def test_a_file_has_its_text_on_the_disk_before_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: on_disk.append(os.fstat(handle).st_size))
    event_log.write_atomically(tmp_path / "file", "text")
    assert on_disk == [4]
    assert (tmp_path / "file").read_text() == "text"


def test_a_line_that_does_not_follow_the_one_before_it_is_named(tmp_path: Path) -> None:
    log = log_of(tmp_path, START, {"event": "run_updated", "data": {}}, END)
    lines = (tmp_path / "events.jsonl").read_text().splitlines(keepends=True)
    texts = {
        1: "line 1 is not the first of the run",
        2: "line 2 does not contain the hash of line 1",
    }
    for number, text in texts.items():
        other = lines[number - 1].replace('"prev": "', '"prev": "0')
        changed = [*lines[: number - 1], other, *lines[number:]]
        (tmp_path / "events.jsonl").write_text("".join(changed))
        log = EventReader(tmp_path)
        assert len([*log]) == 3
        assert log.problems[0] == f"events.jsonl: {text}"


def test_a_record_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "alone" / "record.json"
    path.parent.mkdir()
    path.write_bytes(b"x" * 10)
    monkeypatch.setattr(fold, "MAX_LOG", 10)
    with pytest.raises(UnreadableRun, match="found invalid JSON"):
        read_record(path)
    path.write_bytes(b"x" * 11)
    with pytest.raises(UnreadableRun, match="expected at most 0 MiB, found more"):
        read_record(path)
    monkeypatch.setattr(fold, "MAX_LOG", event_log.MAX_LOG)
    path.write_text('{"schema_version": "1.5", "id": 7, "results": []}')
    with pytest.raises(UnreadableRun, match=r"RunRecord id: Input should be a valid string"):
        read_record(path)
