"""Rewrites run folders as the owner of the driver's host can: chain and sums hold again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reports.run_folder.event_log import FILE, NO_LINE, SUMS, hash_file, hash_line, write_checksums

Events = list[dict[str, Any]]


def read_lines(run: Path) -> Events:
    """Read the events from the log."""
    return [json.loads(line) for line in (run / FILE).read_text().splitlines()]


def write_lines(run: Path, events: Events) -> None:
    """Write events as they are, even if their chain does not fit."""
    (run / FILE).write_text("".join(json.dumps(event) + "\n" for event in events))


def chain(events: Events, head: str = NO_LINE) -> Events:
    """Return the events with the numbers and hashes that fit them."""
    chained = []
    for number, event in enumerate(events, 1):
        chained.append({**event, "seq": number, "prev": head})
        head = hash_line(json.dumps(chained[-1]).encode())
    return chained


def without_chain(events: Events) -> Events:
    """Return the events without their numbers and hashes."""
    return [{k: v for k, v in one.items() if k not in ("seq", "prev")} for one in events]


def rewrite(run: Path, change: Callable[[Events], Events]) -> None:
    """Change the events of a run, and rewrite its chain, its record's head and its sums."""
    old = hash_line((run / FILE).read_bytes().splitlines()[-1])
    write_lines(run, chain(change(read_lines(run))))
    new = hash_line((run / FILE).read_bytes().splitlines()[-1])
    if (record := run / "record.json").exists():
        record.write_text(record.read_text().replace(old, new))
    if (run / SUMS).exists():
        write_checksums(run)


def replace_evidence(run: Path, name: str, content: bytes) -> None:
    """Replace evidence, its hash in the event, and all that follows from that hash."""
    path = run / "evidence" / name
    old = hash_file(path)
    path.write_bytes(content)
    new = hash_file(path)
    rewrite(run, lambda events: json.loads(json.dumps(events).replace(old, new)))
