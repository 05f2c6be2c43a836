"""What each recorded probe says, word by word, beside its tape.

    python -m tests.recordings.tape.say

writes it anew: read the difference before you commit it.  What a tape must come to is written by
hand in expected.toml; this keeps the sentences.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.recordings.tape.play import Played, play
from tests.recordings.tape.synthetic import TAPES

# What rounding leaves of an exact sum: Python 3.12 adds floats in another way.
ROUNDING = re.compile(r"\b\d(?:\.\d+)?e-1[2-9]\b")


def said_file(tape: Path) -> Path:
    """The file beside a tape."""
    return tape.with_name(tape.name.replace(".tape.gz", ".said.txt"))


def said(played: Played) -> str:
    """Measurements, controls, findings and what was covered, as they are told."""
    result = played.result
    lines = [
        f"{result.criterion} {result.verdict.value}" + (f": {played.error}" if played.error else "")
    ]
    for one in result.measurements:
        verdict = one.verdict.value if one.verdict else "note"
        lines.append(f"{verdict}  {played.row.sentence(one)}")
    lines += [one.sentence() for one in result.controls]
    for finding in result.findings:
        lines.append(f"{finding.code}: {finding.statement}")
        lines += [f"    {finding.remedy}", f"    suspects: {', '.join(finding.suspects)}"]
    lines += [f"coverage: {text}" for text in played.covered]
    return ROUNDING.sub("0", "\n".join(lines)) + "\n"


if __name__ == "__main__":
    for tape in sorted(TAPES.glob("*/*.tape.gz")):
        with pytest.MonkeyPatch.context() as patch:
            said_file(tape).write_text(said(play(tape, patch)))
