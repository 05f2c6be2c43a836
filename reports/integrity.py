"""Whether a run folder is as its run left it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from reports.store import SUMS, checksum_line


@dataclass(frozen=True)
class Integrity:
    """Sentences: `problems` (it does not verify), `doubts` (it cannot be verified); and facts."""

    problems: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)


def verify_run(run: Path) -> Integrity:
    """Compare all files with SHA256SUMS; signatures are not among them."""
    if not (run / SUMS).is_file():
        return Integrity(doubts=["it has no SHA256SUMS: the run did not come to its end"])
    listed = (run / SUMS).read_text().splitlines()
    files = [
        p for p in run.rglob("*") if p.is_file() and p.relative_to(run).parts[0] != "signatures"
    ]
    found = sorted(checksum_line(run, path) for path in files if path.name != SUMS)
    problems = [f"changed, added or missing: {line[66:]}" for line in {*found} ^ {*listed}]
    lines = (run / "events.jsonl").read_bytes().splitlines()
    head = hashlib.sha256(lines[-1]).hexdigest()
    return Integrity(problems=problems, facts={"events": str(len(lines)), "head": head})
