"""Prints the run of a submission in parts, on the node that holds it: `python parts.py <id> ...`.

Runs as a file, as a job of its own.  `parts.py <id> <first> <count>` prints one line of JSON about
the archive, then a line for each part.  `parts.py <id> remove` removes the submission.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

PART_BYTES = 256 * 1024
ABOUT, PART = "seatrial-archive", "seatrial-part"  # begin the lines
RUNS = "runs"  # folder of the suite's runs, among the user's files
STEP_SUMMARY = "github-step-summary.html"  # among them, too, where GitHub runs the client


def main(id: str, *words: str) -> None:
    """Print the parts, or remove the submission."""
    base = Path(tempfile.gettempdir()) / id
    if words == ("remove",):
        shutil.rmtree(base, ignore_errors=True)
        return
    runs = sorted((base / "work" / RUNS).glob("*")) if base.is_dir() else []
    if not runs:
        print(ABOUT, json.dumps({"name": ""}), flush=True)
        return
    archive = base / "run.tar.gz"
    if not archive.exists():
        _pack(runs[0], archive)
    content = archive.read_bytes()
    count = -(-len(content) // PART_BYTES)
    about = {"name": runs[0].name, "parts": count, "sha256": _hash(content)}
    print(ABOUT, json.dumps(about), flush=True)
    first, asked = int(words[0]), int(words[1])
    for number in range(first, min(first + asked, count)):
        part = content[number * PART_BYTES : (number + 1) * PART_BYTES]
        print(PART, number, _hash(part), base64.b64encode(part).decode(), flush=True)


def _pack(run: Path, archive: Path) -> None:
    """Pack a run; a killed packer leaves no half archive under its name."""
    partial = archive.with_suffix(f".{os.getpid()}")
    own = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # the run is not for all
    with os.fdopen(own, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as packed:
        packed.add(run, run.name, filter=_plain)
        if (summary := run.parents[1] / STEP_SUMMARY).is_file():
            packed.add(summary, f"{run.name}/{STEP_SUMMARY}", filter=_plain)
    partial.rename(archive)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Keep folders and plain files, as the reader's."""
    if not (info.isfile() or info.isdir()):
        return None
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    main(*sys.argv[1:])
