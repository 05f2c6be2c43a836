"""Reads events.jsonl: one line per event, with its number and the sha256 of the line before it.

    {"seq": 2, "prev": "3fa2...", "t": "2026-11-20T22:17:03.120Z", "event": "run_owes", "data": {}}

To edit, move, remove or insert a line, all following lines must be rewritten. The head, which is
the hash of the last line, identifies the complete log.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reports.run_folder.files import UnreadableRun, open_regular

FILE = "events.jsonl"
NO_LINE = ""  # `prev` of the first line
EVENT_LISTS = {
    "measurement": "measurements",
    "finding": "findings",
    "control": "controls",
    "evidence": "evidence",
}
PROBE_EVENTS = frozenset([*EVENT_LISTS, "series", "probe_updated", "probe_finished"])
RUN_EVENTS = frozenset(["run_started", "run_owes", "run_updated", "run_problem", "run_finished"])
KINDS = PROBE_EVENTS | RUN_EVENTS | {"probe_started"}
# Keys that an event's data may have, for events that change the record. Any other key could
# overwrite data of an earlier event.
KEYS = {
    "run_owes": {"owed", "only", "partial", "full_run_s"},
    "run_updated": {"loaded", "baseline", "baseline_problem", "baseline_values"},
    "run_finished": {"finished", "state"},
    "run_problem": {"kind", "where", "text"},
    "probe_started": {"criterion", "claim", "reproduce"},
    "probe_updated": {"coverage"},
    "probe_finished": {"state", "error", "seconds", "coverage"},
    "series": {"name", "values"},
}
MAX_LINE = 16 << 20  # bytes; the first line has the facts of all nodes, about 2 kB per node
MAX_LOG = 256 << 20  # bytes; the record takes about three times as much memory
MAX_DIGITS = 300  # of an integer: longer ones do not fit a float
MAX_DEPTH = 50  # nested lists and tables; the suite's own have at most 10 levels
MAX_SHOWN = 20  # problems of a log that are listed


def hash_line(line: bytes) -> str:
    """Return the sha256 that the next line has as `prev`; `line` is without its newline."""
    return hashlib.sha256(line).hexdigest()


class EventReader:
    """Reader of a run folder's events, one by one. It checks their chain at the same time.

    After the last event, `problems` are sentences on inconsistencies. `head` is the hash of the
    last line, `count` the number of events. An incomplete last line, as a killed run leaves it,
    is dropped.

    Iteration raises UnreadableRun if there is no event log, or if a line or the log is too long.
    A line that is not an event also raises it, unless it is the last one.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.problems: list[str] = []
        self.head, self.count, self.finished = NO_LINE, 0, False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the events; each is a dict with `event`, `data` and mostly `probe`."""
        for number, line, event in self._lines():
            if event is None:  # the last line: _lines refuses any other
                if self.finished:
                    self._problem(f"line {number} comes after the end of the run")
                continue
            self._check_link(number, event)
            self._check_kind(number, event)
            self.head, self.count = hash_line(line), self.count + 1
            yield event

    def _lines(self) -> Iterator[tuple[int, bytes, dict[str, Any] | None]]:
        """Yield (number, line, event). The last line may be invalid; its event is then None."""
        if not (self.run / FILE).exists():
            raise UnreadableRun(f"{self.run} is not a run folder: it has no readable {FILE}")
        with open_regular(self.run / FILE) as file:
            number, size, torn = 0, 0, False
            while raw := file.readline(MAX_LINE + 1):
                if torn:
                    why = "is no JSON event: it was cut off or changed"
                    raise UnreadableRun(f"{self.run}/{FILE} line {number} {why}")
                number, size = number + 1, size + len(raw)
                if len(raw) > MAX_LINE or size > MAX_LOG:
                    limit = MAX_LINE if len(raw) > MAX_LINE else MAX_LOG
                    raise UnreadableRun(
                        f"{self.run}/{FILE} line {number}: expected at most {limit >> 20} MiB "
                        f"{'in a line' if limit == MAX_LINE else 'in all'}, found more"
                    )
                line = raw.rstrip(b"\n")
                event = _parse_event(line)
                torn = event is None
                yield number, line, event

    def _check_link(self, number: int, event: dict[str, Any]) -> None:
        """Compare the event's number and hash with the line before it."""
        sequence, previous = event.get("seq"), event.get("prev")
        if sequence != self.count + 1:
            self._problem(f"line {number} is event {sequence!r}, expected event {self.count + 1}")
        elif previous != self.head:
            where = f"line {number - 1} is" if number > 1 else "its beginning is"
            self._problem(f"{where} not the line that line {number} was written after")

    def _check_kind(self, number: int, event: dict[str, Any]) -> None:
        """Record a problem for an unknown kind, an extra key, a second start or a late event.

        An event of an unknown kind would otherwise be ignored.
        """
        kind = event["event"]
        if kind not in KINDS:
            self._problem(f"line {number} is an event of the unknown kind {kind!r:.40}")
        elif not event["data"].keys() <= KEYS.get(kind, event["data"].keys()):
            self._problem(f"line {number} is a {kind} that says more than one may")
        elif kind == "run_started" and number > 1:
            self._problem(f"line {number} starts a second run")
        elif self.finished and kind != "run_problem":
            self._problem(f"line {number} comes after the end of the run")
        self.finished = self.finished or kind == "run_finished"

    def _problem(self, text: str) -> None:
        if len(self.problems) < MAX_SHOWN:
            self.problems.append(f"{FILE}: {text}")


def _parse_event(line: bytes) -> dict[str, Any] | None:
    """Return the event of a line; None if the line is not a valid event."""
    try:
        event = parse_json(line)
    except ValueError:
        return None
    if not isinstance(event, dict) or not isinstance(event.get("data"), dict):
        return None
    if not isinstance(event.get("event"), str) or not isinstance(event.get("probe", ""), str):
        return None
    return event


def parse_json(text: bytes) -> Any:
    """Parse untrusted JSON. Raises ValueError, also for NaN, huge integers and deep nesting."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_int=_bounded)
    except RecursionError:
        raise ValueError("no lists of ours are nested as deeply") from None
    if text.count(b"{") + text.count(b"[") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise ValueError("no lists of ours are nested as deeply")
    return value


def _bounded(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("no number of ours is as long")
    return int(digits)


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _depth(value: Any) -> int:
    """Count the levels of nested lists and tables."""
    level, depth = [value], 0
    while level:
        parts = [one.values() if isinstance(one, dict) else one for one in level]
        level = [x for part in parts for x in part if isinstance(x, dict | list)]
        depth += 1
    return depth
