"""Evidence as the page shows it: a link, whether the file is still the one recorded, its tail."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from reports.record import Evidence
from reports.sanitize import clean, href

LINES, COLUMNS = 40, 240
TAIL_BYTES = 64 * 1024
BUDGET = 500_000  # characters of tails in one page: it must still go by mail
TEXTS = {"table", "log", "series", "command"}


@dataclass(frozen=True)
class Exhibit:
    """One evidence entry.  `problem` says why the file cannot be trusted or shown."""

    entry: Evidence
    link: str | None
    problem: str = ""
    tail: str = ""


class Shelf:
    """Reads evidence from a run folder, and from nowhere else."""

    def __init__(self, run: Path | None) -> None:
        self.run = run.resolve() if run else None
        self.left = BUDGET

    def exhibit(self, entry: Evidence) -> Exhibit:
        """The entry with its link, the check of its hash, and the end of its text."""
        link = href(entry.path)
        if link is None:
            return Exhibit(entry, None, "the path does not point into the run folder: not read")
        if self.run is None:
            return Exhibit(entry, link)
        path = (self.run / entry.path).resolve()
        if not path.is_relative_to(self.run):
            return Exhibit(entry, None, "the path leads out of the run folder: not read")
        if not path.is_file():
            return Exhibit(entry, None, "the file is missing from the run folder")
        try:
            return Exhibit(entry, link, _check(path, entry), self._tail(path, entry))
        except OSError as error:
            return Exhibit(entry, link, f"the file cannot be read: {error.strerror}")

    def _tail(self, path: Path, entry: Evidence) -> str:
        """The last lines of a text file, while the page has room."""
        if entry.kind not in TEXTS or self.left <= 0:
            return ""
        text = tail(path)
        self.left -= len(text)
        return text


def tail(path: Path) -> str:
    """The last LINES lines of a file, each cut to COLUMNS; says what was left out."""
    with path.open("rb") as file:
        total = file.seek(0, 2)
        file.seek(max(0, total - TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    found = clean(text).rstrip("\n").split("\n")
    last = [line if len(line) <= COLUMNS else line[:COLUMNS] + " ..." for line in found[-LINES:]]
    if len(found) > LINES or total > TAIL_BYTES:
        last.insert(0, f"... the last {len(last)} lines")
    return "\n".join(last)


def _check(path: Path, entry: Evidence) -> str:
    """Whether the file is the one that was recorded."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return (
        ""
        if digest.hexdigest() == entry.sha256
        else "the file is NOT the one recorded: its sha256 differs"
    )
