"""Evidence as the page shows it: a link, whether the file is still the one recorded, its tail."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from reports.record import Evidence
from reports.run_folder.files import open_regular
from reports.run_folder.integrity import MISSING, compare_hash
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

    def __init__(self, run: Path | None, linked_at: str = ".") -> None:
        """Read from `run`, which links reach as `linked_at` from where the page will lie."""
        self.run, self.linked_at = run, quote(linked_at)
        self.chars_left = MAX_TAIL_CHARS

    def link(self, path: str) -> str | None:
        """Return the link to a file of the run folder; None when the path points anywhere else."""
        link = relative_link(path)
        return link and self.linked_at + link.removeprefix(".")

    def view(self, entry: Evidence) -> EvidenceView:
        """The entry with its link, the check of its hash, and the end of its text."""
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
        """The last lines of a text file, while the page has room."""
        if entry.kind not in TEXT_KINDS or self.chars_left <= 0:
            return ""
        text = read_tail(path)
        self.chars_left -= len(text)
        return text


def read_tail(path: Path) -> str:
    """The last LINES lines of a file, each cut to COLUMNS; says what was left out."""
    with open_regular(path) as file:
        total = file.seek(0, 2)
        file.seek(max(0, total - TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    lines = clean(text).rstrip("\n").split("\n")
    kept = [line if len(line) <= COLUMNS else line[:COLUMNS] + " ..." for line in lines[-LINES:]]
    if len(lines) > LINES or total > TAIL_BYTES:
        kept.insert(0, f"... the last {len(kept)} lines")
    return "\n".join(kept)
