"""Verifies that a run folder contains what the run wrote.

The result is about the folder, never about who changed it. The owner of the driver's host can
rewrite the complete folder. Only signatures reveal that (see signatures.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from reports.record import Evidence, RunRecord
from reports.run_folder import event_log
from reports.run_folder.event_log import CONTRACT, SUMS, EventReader, UnreadableRun
from reports.run_folder.fold import ALONE, fold_events, read_record
from reports.run_folder.times import seconds_between


@dataclass(frozen=True)
class Integrity:
    """Result of verifying a run folder.

    With `problems`, the folder does not verify. With `doubts`, it cannot be verified, for example
    because it was killed. With neither, it is unchanged since its checksums were
    written. `events` is the number of events, `head` the hash of the last one.
    """

    problems: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    events: int = 0
    head: str = ""

    @property
    def head_line(self) -> str:
        """Line for people who attend the run to write down: no other run has this one."""
        return f"fingerprint  {self.head}"

    @property
    def sentences(self) -> list[str]:
        """Sentences that must be shown with the decision."""
        return [
            *(f"the run folder does not verify: {problem}" for problem in self.problems),
            *(f"the run cannot be verified: {doubt}" for doubt in self.doubts),
        ]


class EventCheck(Protocol):
    """Interface of a check that sees each event of a run and returns what is wrong with them."""

    def see(self, event: dict[str, Any]) -> None:
        """Check the next event."""

    def result(self) -> tuple[list[str], list[str]]:
        """Return (problems, doubts) after all events were seen."""


def read_run(run: Path, check: EventCheck | None = None) -> tuple[RunRecord, Integrity]:
    """Read a run folder and verify it, in one pass over its events.

    `run` may also be a record.json alone, which cannot be verified. Raises UnreadableRun if it is
    not a run, has a link, or has a schema that this version cannot read. Its text is one sentence.
    """
    if run.is_file():
        return read_record(run), Integrity(doubts=[ALONE])
    files, log = event_log.list_files(run), EventReader(run)
    record = fold_events(_shown_to(check, log))
    seen = [*log.problems, *_check_evidence(run, record), *event_log.check_sums(run, files)]
    # Derived limits have no text of a contract.
    if record.contract.agreed and (problem := compare_hash(run / CONTRACT, record.contract.sha256)):
        seen.append(f"{CONTRACT} {problem}")
    if (seconds_between(record.started, record.finished) or 0) < 0:
        seen.append(f"the run ends ({record.finished:.40}) before it starts ({record.started:.40})")
    if SUMS in files:
        seen += [*_check_unknown(files, record), *event_log.check_head(run, log.head)]
    problems, doubts = check.result() if check else ([], [])
    problems = [*seen, *problems]
    if SUMS not in files and not log.finished:
        doubts = [*doubts, f"its end is missing (the last event, and {SUMS})"]
    integrity = Integrity(problems, doubts, log.count, log.head)
    return record.model_copy(update={"head": log.head}), integrity


def load(run: Path) -> RunRecord:
    """Read the record of a run. `unverified` has the reasons why it cannot be verified.

    Raises UnreadableRun, also if the folder does not verify.
    """
    record, integrity = read_run(run)
    if integrity.problems:
        raise UnreadableRun(f"{run} does not verify: {integrity.problems[0]}")
    return record.model_copy(update={"unverified": [*record.unverified, *integrity.doubts]})


def _shown_to(check: EventCheck | None, log: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for event in log:
        if check:
            check.see(event)
        yield event


def _evidence(record: RunRecord) -> list[Evidence]:
    return [entry for result in record.results for entry in result.evidence]


def _check_evidence(run: Path, record: RunRecord) -> Iterator[str]:
    """Yield a problem for each evidence file that does not have the hash in the events.

    Each file is read once: a run names it once.
    """
    seen: set[str] = set()
    for entry in _evidence(record):
        folder, _, name = entry.path.partition("/")
        if entry.path in seen:
            yield f"two events name {entry.path!r:.80} as evidence, and only one may"
        elif folder != "evidence" or not name or "/" in name:
            yield f"{entry.path!r:.80} is not in the folder evidence/"
        elif problem := compare_hash(run / folder / name, entry.sha256):
            yield f"{entry.path:.80} {problem}"
        seen.add(entry.path)


def compare_hash(path: Path, sha256: str) -> str:
    """Compare a file with its hash; return what is wrong, "" if they match."""
    try:
        return "" if event_log.hash_file(path) == sha256 else "is not the file that the run wrote"
    except UnreadableRun:
        return event_log.MISSING


def _check_unknown(files: list[str], record: RunRecord) -> Iterator[str]:
    known = {entry.path for entry in _evidence(record)}
    for name in files:
        if name.startswith("evidence/") and name not in known:
            yield f"{name:.80} is in evidence/, but no event in events.jsonl names it"
