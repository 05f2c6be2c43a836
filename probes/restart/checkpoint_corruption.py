"""Damages checkpoints in the ways that RESTART tests.

Each function takes the folder of the newest checkpoint.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from reference_trainer.manifest import NAME, content_sha256

QUICK_CORRUPTIONS = 2  # number of CORRUPTIONS that the quick tier tries


def truncate_data(newest: Path) -> None:
    """Truncate the largest data file to its first half."""
    _halve_file(max(newest.glob("*.distcp"), key=lambda path: path.stat().st_size))


def flip_bit(newest: Path) -> None:
    """Reverse one bit of a number in the middle of the model's largest stored tensor.

    torch loads it without an error.  A tensor is stored as a zip archive.  Its numbers are the
    longest gap between two zip signatures.
    """
    victim, piece = _find_weights(newest)
    content = bytearray(victim.read_bytes())
    signatures = [match.start() for match in re.finditer(rb"PK[\x01-\x08]{2}", content[piece])]
    first, last = max(pairwise(signatures), key=lambda pair: pair[1] - pair[0])
    content[piece.start + (first + last) // 2] ^= 64
    victim.write_bytes(content)


def truncate_metadata(newest: Path) -> None:
    """Truncate `.metadata` to its first half, as after a power loss."""
    _halve_file(newest / ".metadata")


def remove_manifest(newest: Path) -> None:
    """Remove the manifest and keep all data, as if the save ended before its commit."""
    (newest / NAME).unlink()


def change_identity(newest: Path) -> None:
    """Rewrite the manifest with another seed and a right sha256, as another run would have."""
    _rewrite_manifest(
        newest, lambda content: content["identity"].update(seed=content["identity"]["seed"] + 1)
    )


def raise_schema(newest: Path) -> None:
    """Raise the schema number, as if a later version of the trainer had written it."""
    _rewrite_manifest(newest, lambda content: content.update(schema=content["schema"] + 1))


def _rewrite_manifest(newest: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = newest / NAME
    content = json.loads(path.read_text(encoding="ascii"))
    del content["seal"]
    change(content)
    path.write_text(json.dumps({**content, "seal": content_sha256(content)}), encoding="ascii")


def _halve_file(victim: Path) -> None:
    os.truncate(victim, victim.stat().st_size // 2)


def _find_weights(newest: Path) -> tuple[Path, slice]:
    """Find the model's largest stored tensor: its file, and its byte range in it."""
    from reference_trainer.checkpoint.plain_reader import PlainReader

    stored = PlainReader(newest).read_metadata().storage_data
    pieces = [entry for index, entry in stored.items() if index.fqn.startswith("model.")]
    largest = max(pieces, key=lambda entry: entry.length)
    file = newest / largest.relative_path
    return file, slice(largest.offset, largest.offset + largest.length)


CORRUPTIONS = {
    "newest-bit-flipped": flip_bit,
    "metadata-torn": truncate_metadata,
    "newest-truncated": truncate_data,
    "newest-not-committed": remove_manifest,
    "of-another-run": change_identity,
    "of-a-later-version": raise_schema,
}
