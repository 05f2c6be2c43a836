"""Evidence as the page shows it: a link, whether the file is still the one recorded, its tail."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from reports.record import Evidence
from reports.sanitize import clean, relative_link

LINES, COLUMNS = 40, 240
TAIL_BYTES = 64 * 1024
MAX_TAIL_CHARS = 500_000  # characters of tails in one page: it must still go by mail
TEXT_KINDS = {"table", "log", "series", "command"}


@dataclass(frozen=True)
class EvidenceView:
    """How one entry is shown.  `problem` says why the file cannot be trusted or shown."""

    link: str | None
    problem: str = ""
    tail: str = ""


class EvidenceReader:
    """Reads evidence from a run folder, and from nowhere else."""

    def __init__(self, run: Path | None) -> None:
        self.run = run.resolve() if run else None
        self.chars_left = MAX_TAIL_CHARS

    def view(self, entry: Evidence) -> EvidenceView:
        """The entry with its link, the check of its hash, and the end of its text."""
        link = relative_link(entry.path)
        if link is None:
            problem = "the path does not point into the run folder: not read"
            return EvidenceView(None, problem)
        if self.run is None:
            return EvidenceView(None)
        path = (self.run / entry.path).resolve()
        if not path.is_relative_to(self.run):
            return EvidenceView(None, "the path leads out of the run folder: not read")
        if not path.is_file():
            return EvidenceView(None, "the file is missing from the run folder")
        try:
            return EvidenceView(link, _check_hash(path, entry), self._tail(path, entry))
        except OSError as error:
            return EvidenceView(link, f"the file cannot be read: {error.strerror}")

    def _tail(self, path: Path, entry: Evidence) -> str:
        """The last lines of a text file, while the page has room."""
        if entry.kind not in TEXT_KINDS or self.chars_left <= 0:
            return ""
        text = read_tail(path)
        self.chars_left -= len(text)
        return text


def read_tail(path: Path) -> str:
    """The last LINES lines of a file, each cut to COLUMNS; says what was left out."""
    with path.open("rb") as file:
        total = file.seek(0, 2)
        file.seek(max(0, total - TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    lines = clean(text).rstrip("\n").split("\n")
    kept = [line if len(line) <= COLUMNS else line[:COLUMNS] + " ..." for line in lines[-LINES:]]
    if len(lines) > LINES or total > TAIL_BYTES:
        kept.insert(0, f"... the last {len(kept)} lines")
    return "\n".join(kept)


def _check_hash(path: Path, entry: Evidence) -> str:
    """Whether the file is the one that was recorded."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    same = digest.hexdigest() == entry.sha256
    return "" if same else "the file is NOT the one recorded: its sha256 differs"
