"""Edits run folders as a forger would."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.run_folders import Events, read_lines, write_lines

Edit = Callable[[Path], None]


def edit_events(change: Callable[[Events], Any]) -> Edit:
    """Change the lines of the log, and nothing else."""

    def edit(run: Path) -> None:
        lines = read_lines(run)
        write_lines(run, change(lines) or lines)

    return edit


def first_event(lines: Events, kind: str, name: str = "") -> dict[str, Any]:
    """Return the first event of a kind, of this name where one is given."""
    return next(
        line for line in lines if (line["event"] == kind and line["data"].get("name", "") == name)
        or (line["event"] == kind and not name)
    )  # fmt: skip


def put_value(kind: str, key: str, value: Any, name: str = "") -> Callable[[Events], None]:
    """Write another value into the first event of a kind."""

    def change(lines: Events) -> None:
        event = first_event(lines, kind, name)
        assert event["data"].get(key) != value
        event["data"][key] = value

    return change


def loosen_limit(lines: Events) -> None:
    """Loosen the limit of the first busbw."""
    limit = first_event(lines, "measurement", "busbw")["data"]["limit"]
    limit["low"] = limit["marginal_low"] = 0.001


def rename_measure(lines: Events) -> None:
    """Measure another network, under a name that no contract knows."""
    data = first_event(lines, "measurement", "network")["data"]
    data.update(name="networks", value="eth0", limit={**data["limit"], "one_of": ["eth0"]})


def drop_event(kind: str) -> Callable[[Events], Events]:
    """Take the first event of a kind out."""

    def change(lines: Events) -> Events:
        gone = first_event(lines, kind)
        return [line for line in lines if line is not gone]

    return change


def swap_events(lines: Events) -> Events:
    """Exchange two events."""
    return [*lines[:5], lines[6], lines[5], *lines[7:]]


def repeat_event(lines: Events) -> Events:
    """Write an event twice."""
    return [*lines[:6], lines[5], *lines[6:]]


def append_run(lines: Events) -> Events:
    """Append a healthy run."""
    return [*lines, *copy.deepcopy(lines)]


def append_event(lines: Events) -> Events:
    """Append an event after the end."""
    added = {**copy.deepcopy(first_event(lines, "control")), "seq": len(lines) + 1}
    return [*lines, added]


def rename_event(lines: Events) -> None:
    """Give an event an unknown kind."""
    first_event(lines, "measurement")["event"] = "measured"


def change_time(lines: Events) -> None:
    """Change the time of an event."""
    lines[4]["t"] = "2026-11-21T22:17:03.120Z"


def replace_text(name: str, old: str, new: str) -> Edit:
    """Write another word into a file."""

    def edit(run: Path) -> None:
        content = (run / name).read_text()
        assert old in content
        (run / name).write_text(content.replace(old, new))

    return edit


def remove_file(name: str) -> Edit:
    """Remove a file."""
    return lambda run: (run / name).unlink()


def add_file(name: str) -> Edit:
    """Add a file."""
    return lambda run: (run / name).write_text("ACCEPTED\n") and None


def exchange_evidence(run: Path) -> None:
    """Exchange the files of two pieces of evidence."""
    one, other = run / "evidence" / "GANG.log", run / "evidence" / "HOSTS.log"
    one.rename(run / "x")
    other.rename(one)
    (run / "x").rename(other)


def link_evidence(run: Path) -> None:
    """Replace evidence by a link."""
    target = run.parent / "elsewhere.log"
    (run / "evidence" / "GANG.log").rename(target)
    (run / "evidence" / "GANG.log").symlink_to(target)


def drop_sum(run: Path) -> None:
    """Take the sum of junit.xml out."""
    lines = (run / "SHA256SUMS").read_text().splitlines(keepends=True)
    (run / "SHA256SUMS").write_text("".join(line for line in lines if "junit.xml" not in line))
