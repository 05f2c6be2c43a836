"""Prepares evidence for the page: a link, a check of the recorded hash, the end of the file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from reports.record import Evidence
from reports.run_folder.files import open_regular
from reports.run_folder.integrity import MISSING, compare_hash
from reports.sanitize import clean, relative_link

LINES, COLUMNS = 40, 240
TAIL_BYTES = 64 * 1024
MAX_TAIL_CHARS = 500_000  # characters of all tails in one page, so that it can be mailed
LINE_OF_FILE = re.compile(r"(.+):(\d{1,9})", re.DOTALL)
TEXT_KINDS = {"table", "log", "series", "command"}


@dataclass(frozen=True)
class EvidenceView:
    """View of one entry. `problem` is the reason why the file cannot be trusted or shown."""

    link: str | None
    problem: str = ""
    tail: str = ""


class EvidenceReader:
    """Reader of the evidence in one run folder; it reads no file outside."""

    def __init__(self, run: Path | None, linked_at: str = ".") -> None:
        """Read from `run`, the folder that links on the page reach as `linked_at`."""
        self.run, self.linked_at = run, quote(linked_at)
        self.chars_left = MAX_TAIL_CHARS

    def link(self, path: str) -> str | None:
        """Return the link to a file of the run folder; None if the path points anywhere else."""
        link = relative_link(path)
        return link and self.linked_at + link.removeprefix(".")

    def view(self, entry: Evidence) -> EvidenceView:
        """Return the view of an entry: its link, the check of its hash, the end of its text."""
        link = self.link(entry.path)
        if link is None:
            problem = "the path does not point into the run folder: not read"
            return EvidenceView(None, problem)
        if self.run is None:
            return EvidenceView(None)
        path = self.run / entry.path
        if problem := compare_hash(path, entry.sha256):
            return EvidenceView(None if problem == MISSING else link, f"the file {problem}")
        return EvidenceView(link, "", self._tail(path, entry))

    def _tail(self, path: Path, entry: Evidence) -> str:
        """Return the last lines of a text file; "" if it is not text or the page has no room."""
        if entry.kind not in TEXT_KINDS or self.chars_left <= 0:
            return ""
        text = read_tail(path)
        self.chars_left -= len(text)
        return text


def split_place(place: str) -> tuple[str, str]:
    """Split `evidence/nccl.log:12` into path and line number; without a number the line is ""."""
    found = LINE_OF_FILE.fullmatch(place)
    return (found[1], found[2]) if found else (place, "")


def read_tail(path: Path) -> str:
    """Read the last LINES lines of a file, each cut to COLUMNS characters.

    A first line `... the last N lines` marks a file that is longer.
    """
    with open_regular(path) as file:
        total = file.seek(0, 2)
        file.seek(max(0, total - TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    lines = clean(text).rstrip("\n").split("\n")
    kept = [line if len(line) <= COLUMNS else line[:COLUMNS] + " ..." for line in lines[-LINES:]]
    if len(lines) > LINES or total > TAIL_BYTES:
        kept.insert(0, f"... the last {len(kept)} lines")
    return "\n".join(kept)
