"""What may befall a checkpoint's folder.  Each takes the folder of the newest one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from reference_trainer.manifest import NAME, seal

QUICK_DAMAGES = 2  # of DAMAGES, in the quick tier


def truncate(newest: Path) -> None:
    """The largest data file lacks its second half."""
    victim = _data(newest)
    os.truncate(victim, victim.stat().st_size // 2)


def flip(newest: Path) -> None:
    """One bit of a number, amid the largest piece of the model's weights, is the other one.

    torch reads it without a word.  A piece is stored as a zip archive, so its numbers are the
    longest stretch between two of the archive's signatures.
    """
    victim, piece = _weights(newest)
    content = bytearray(victim.read_bytes())
    marks = [match.start() for match in re.finditer(rb"PK[\x01-\x08]{2}", content[piece])]
    first, last = max(pairwise(marks), key=lambda pair: pair[1] - pair[0])
    content[piece.start + (first + last) // 2] ^= 64
    victim.write_bytes(content)


def tear(newest: Path) -> None:
    """`.metadata` ends in its middle, as after a power loss."""
    victim = newest / ".metadata"
    os.truncate(victim, victim.stat().st_size // 2)


def uncommit(newest: Path) -> None:
    """All data is there and the manifest is not: the save was cut off before its commit."""
    (newest / NAME).unlink()


def disown(newest: Path) -> None:
    """Another run's checkpoint lies there: same shape, another seed, its own sha256 right."""
    _rewrite(
        newest, lambda content: content["identity"].update(seed=content["identity"]["seed"] + 1)
    )


def postdate(newest: Path) -> None:
    """It was written by a later version of the trainer."""
    _rewrite(newest, lambda content: content.update(schema=content["schema"] + 1))


def _rewrite(newest: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = newest / NAME
    content = json.loads(path.read_text(encoding="ascii"))
    del content["seal"]
    change(content)
    path.write_text(json.dumps({**content, "seal": seal(content)}), encoding="ascii")


def _data(newest: Path) -> Path:
    return max(newest.glob("*.distcp"), key=lambda path: path.stat().st_size)


def _weights(newest: Path) -> tuple[Path, slice]:
    """The file with the largest piece of the model's weights, and where in it that piece is."""
    from torch.distributed.checkpoint import FileSystemReader

    stored = FileSystemReader(newest).read_metadata().storage_data
    pieces = [place for index, place in stored.items() if index.fqn.startswith("model.")]
    largest = max(pieces, key=lambda place: place.length)
    file = newest / largest.relative_path
    return file, slice(largest.offset, largest.offset + largest.length)


DAMAGES = {
    "newest-bit-flipped": flip,
    "metadata-torn": tear,
    "newest-truncated": truncate,
    "newest-not-committed": uncommit,
    "of-another-run": disown,
    "of-a-later-version": postdate,
}
