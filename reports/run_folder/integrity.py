"""Does a run folder hold what the run wrote?

What is told is a fact of the folder, never who did it.  Whoever owns the host of the driver can
write a whole folder anew: only the signatures tell that (see signatures.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from reports.record import Evidence, RunRecord
from reports.renamed import with_current_names
from reports.run_folder.event_log import FILE, EventReader
from reports.run_folder.files import (
    CHUNK,
    MAX_FILES,
    SIGNATURES,
    SUMS,
    UnreadableRun,
    hash_file,
    list_files,
    open_regular,
)
from reports.run_folder.fold import fold_events
from reports.run_folder.store import CONTRACT

CHAINED_SINCE = 2  # schema 1.2
SUM_LINE = re.compile(r"(?P<sum>[0-9a-f]{64})  (?P<name>[^\n]+)")
MISSING = "is missing"
HEAD = re.compile(rb'^ "head":\s*"(?P<head>[0-9a-f]{64})"', re.M)
HEAD_BYTES = 100  # of what HEAD looks for
MAX_LINE = 4400  # bytes of a line of sums: 64 of a hash, and the longest path of Linux


@dataclass(frozen=True)
class Integrity:
    """What was found out about a run folder.

    With any of `problems` it does not verify; with `doubts` it cannot be verified, as one of an
    older version.  Of a folder with neither, it was not changed since its sums were written.
    """

    problems: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    events: int = 0
    head: str = ""

    @property
    def head_line(self) -> str:
        """What whoever attends the run writes down: no other run has it."""
        return f"head    {self.head}  (sha256 of the last of {self.events} events)"

    @property
    def sentences(self) -> list[str]:
        """What must be said beside the decision."""
        return [
            *(f"the run folder does not verify: {problem}" for problem in self.problems),
            *(f"the run cannot be verified: {doubt}" for doubt in self.doubts),
        ]


class EventCheck(Protocol):
    """Looks at each event of a run as it was written, and tells what is wrong with them."""

    def see(self, event: dict[str, Any]) -> None:
        """Look at the next event."""

    def result(self) -> tuple[list[str], list[str]]:
        """Return (problems, doubts), once all were seen."""


def read_run(run: Path, check: EventCheck | None = None) -> tuple[RunRecord, Integrity]:
    """Read a run folder and verify it, in one pass over its events.

    Raises UnreadableRun with one sentence when the folder is not a run, holds a link, or is of
    another schema.
    """
    files, log = list_files(run), EventReader(run)
    record = fold_events(_shown_to(check, with_current_names(log)))
    problems, doubts = check.result() if check and log.chained else ([], [])
    seen = [*log.problems, *_check_evidence(run, record), *_check_sums(run, files)]
    if log.chained:
        seen += _check_contract(run, record)
        if SUMS in files:
            seen += [*_check_unknown(files, record), *_check_head(run, log.head)]
    elif int(record.schema_version.split(".")[1]) >= CHAINED_SINCE:
        seen.append("its events have no chain of hashes, as every run of its schema has")
        log.chained = True
    else:  # nobody can tell what such a folder was
        doubts = ["an older version wrote it, without a chain of hashes", *doubts, *seen]
    if log.chained:
        problems = [*seen, *problems]
    if SUMS not in files and not log.finished:
        doubts = [*doubts, f"it was cut off: its end and {SUMS} are missing"]
    integrity = Integrity(problems, doubts, log.count, log.head)
    return record.model_copy(update={"head": log.head}), integrity


def verify_run(run: Path) -> Integrity:
    """Verify a run folder.  Raises UnreadableRun."""
    return read_run(run)[1]


def load(run: Path) -> RunRecord:
    """Read the record of a run folder, folded anew from its events.

    Raises UnreadableRun also where the folder does not verify.
    """
    record, integrity = read_run(run)
    if integrity.problems:
        raise UnreadableRun(f"{run} does not verify: {integrity.problems[0]}")
    return record


def _shown_to(check: EventCheck | None, log: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for event in log:
        if check:
            check.see(event)
        yield event


def _evidence(record: RunRecord) -> list[Evidence]:
    return [entry for result in record.results for entry in result.evidence]


def _check_evidence(run: Path, record: RunRecord) -> Iterator[str]:
    """Every file of evidence is the one whose hash is in the events."""
    for entry in _evidence(record):
        folder, _, name = entry.path.partition("/")
        if folder != "evidence" or not name or "/" in name:
            yield f"{entry.path!r:.80}: expected evidence to lie in evidence/"
        elif problem := compare_hash(run / folder / name, entry.sha256):
            yield f"{entry.path:.80} {problem}"


def compare_hash(path: Path, sha256: str) -> str:
    """Say what is wrong with a file that must have this hash; "" if nothing is."""
    try:
        return "" if hash_file(path) == sha256 else "is not the file that the run wrote"
    except UnreadableRun:
        return MISSING


def _check_contract(run: Path, record: RunRecord) -> Iterator[str]:
    """The contract's text is that of the run.  Where limits were derived there is none."""
    if not record.contract.agreed:
        return
    if problem := compare_hash(run / CONTRACT, record.contract.sha256):
        yield f"{CONTRACT} {problem}"


def _check_unknown(files: list[str], record: RunRecord) -> Iterator[str]:
    known = {entry.path for entry in _evidence(record)}
    for name in files:
        if name.startswith("evidence/") and name not in known:
            yield f"{name:.80} is evidence that no event knows"


def _check_head(run: Path, head: str) -> Iterator[str]:
    """The last event is that of record.json: no other line has its hash."""
    with suppress(UnreadableRun), open_regular(run / "record.json") as file:
        tail = b""
        while chunk := file.read(CHUNK):
            if found := HEAD.search(tail + chunk):
                if found["head"].decode() != head:
                    yield f"{FILE}: its last line is not that of record.json"
                return
            tail = chunk[-HEAD_BYTES:]
        yield "record.json is not what the run wrote: it has no head"


def _check_sums(run: Path, files: list[str]) -> Iterator[str]:
    """Every file is in the sums with its hash, and every sum has its file."""
    if SUMS not in files:
        return
    sums = read_sums(run)
    if isinstance(sums, str):
        yield sums
        return
    for name, sha256 in sums.items():
        if name not in files:
            yield f"{name:.80} {MISSING}"
        elif hash_file(run / name) != sha256:
            yield f"{name:.80} is not the file that {SUMS} has"
    for entry in run.iterdir():
        if entry.is_dir() and entry.name not in ("evidence", SIGNATURES):
            yield f"{entry.name:.80}/ was added: a run has no such folder"
    for name in files:
        if name not in sums and name != SUMS and not name.startswith(f"{SIGNATURES}/"):
            yield f"{name:.80} was added: {SUMS} does not have it"


def read_sums(run: Path) -> dict[str, str] | str:
    """Read SHA256SUMS: file -> sha256; a sentence where it is not as it was written."""
    sums: dict[str, str] = {}
    with open_regular(run / SUMS) as file:
        for _ in range(MAX_FILES):
            if not (raw := file.readline(MAX_LINE)):
                return sums
            line = SUM_LINE.fullmatch(raw.decode("utf-8", "replace").removesuffix("\n"))
            if not line or not raw.endswith(b"\n") or line["name"] in sums:
                return f"{SUMS}: line {len(sums) + 1} is no sum of another file"
            sums[line["name"]] = line["sum"]
    return f"{SUMS}: expected fewer than {MAX_FILES} lines"
