"""What may befall a checkpoint's folder.  Each takes the folder of the newest one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from reference_trainer.manifest import NAME, content_sha256

QUICK_CORRUPTIONS = 2  # of CORRUPTIONS, in the quick tier


def truncate_data(newest: Path) -> None:
    """The largest data file lacks its second half."""
    _halve_file(max(newest.glob("*.distcp"), key=lambda path: path.stat().st_size))


def flip_bit(newest: Path) -> None:
    """One bit of a number, amid the largest piece of the model's weights, is the other one.

    torch reads it without a word.  A piece is stored as a zip archive, so its numbers are the
    longest stretch between two of the archive's signatures.
    """
    victim, piece = _find_weights(newest)
    content = bytearray(victim.read_bytes())
    signatures = [match.start() for match in re.finditer(rb"PK[\x01-\x08]{2}", content[piece])]
    first, last = max(pairwise(signatures), key=lambda pair: pair[1] - pair[0])
    content[piece.start + (first + last) // 2] ^= 64
    victim.write_bytes(content)


def truncate_metadata(newest: Path) -> None:
    """`.metadata` ends in its middle, as after a power loss."""
    _halve_file(newest / ".metadata")


def remove_manifest(newest: Path) -> None:
    """All data is there and the manifest is not: the save was cut off before its commit."""
    (newest / NAME).unlink()


def change_identity(newest: Path) -> None:
    """Another run's checkpoint lies there: same shape, another seed, its own sha256 right."""
    _rewrite_manifest(
        newest, lambda content: content["identity"].update(seed=content["identity"]["seed"] + 1)
    )


def raise_schema(newest: Path) -> None:
    """It was written by a later version of the trainer."""
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
    """The file with the largest piece of the model's weights, and where in it that piece is."""
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
