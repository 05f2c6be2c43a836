"""Writes and verifies manifests: a checkpoint is committed, complete and the run's own, or not.

Plain files, no torch. DCP alone loads a file with a flipped bit without an error. So the size and
sha256 of every file are recorded, and checked before anything is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import IO, Any

SCHEMA = 3  # version of the manifest; add 1 with each change that an older trainer misreads
NAME = "manifest.json"
COMMITTED_PATTERN = re.compile(r"step-(\d+)")
UNFINISHED_PATTERN = re.compile(r"step-\d+\.tmp-\w+")


class CheckpointError(RuntimeError):
    """Raised when a checkpoint could not be saved or loaded; the message has ranks and reasons."""


def committed_steps(folder: Path) -> list[int]:
    """List steps with a `step-N` entry in the folder, newest first; their health is not checked."""
    matches = [COMMITTED_PATTERN.fullmatch(entry.name) for entry in _list_entries(folder)]
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def unfinished_saves(folder: Path) -> list[Path]:
    """List the leftovers of saves that never committed."""
    return [entry for entry in _list_entries(folder) if UNFINISHED_PATTERN.fullmatch(entry.name)]


def describe_file(path: Path) -> dict[str, Any]:
    """Return {"size": bytes, "sha256": hex} of a file. Raises OSError when it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return {"size": file.tell(), "sha256": digest.hexdigest()}


def write(folder: Path, **content: Any) -> None:
    """Write and fsync a folder's manifest with its seal (its own sha256).

    That of a checkpoint has its step, world (size), files (name -> describe_file(path)), identity,
    which must be the same in a run that resumes, and settings, which may differ. Raises
    FileExistsError when the folder has a manifest already.
    """
    content = {"schema": SCHEMA, **content}
    text = json.dumps({**content, "seal": content_sha256(content)}, indent=1)
    with (folder / NAME).open("x", encoding="ascii") as file:
        file.write(text)
        sync_file(file)
    sync_folder(folder)


def read(folder: Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint folder. Raises CheckpointError if it is invalid."""
    try:
        content = json.loads((folder / NAME).read_text(encoding="ascii"))
    except FileNotFoundError:
        raise CheckpointError(f"it has no {NAME}: the save was not completed") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{NAME} cannot be read: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("schema"), int):
        raise CheckpointError(f"{NAME} has no schema: this is not a checkpoint of this trainer")
    if content["schema"] != SCHEMA:
        found = content["schema"]
        raise CheckpointError(f"{NAME} has schema {found}, but this trainer reads schema {SCHEMA}")
    if content.pop("seal", None) != content_sha256(content):
        raise CheckpointError(f"{NAME} was altered: its own sha256 does not match")
    return content


def verify(folder: Path, step: int, identity: dict[str, Any]) -> str | None:
    """Return why `step-N` must not be loaded, as a sentence; None if it is complete and ours.

    Reads every file once to check its sha256.
    """
    try:
        files = own_files(folder, step, identity)
    except CheckpointError as error:
        return str(error)
    problems = (check_file(folder / name, entry) for name, entry in files.items())
    return next((problem for problem in problems if problem), None)


def own_files(folder: Path, step: int, identity: dict[str, Any]) -> dict[str, Any]:
    """Return the files of `step-N` as in `write`. Raises CheckpointError if it is not ours."""
    content = read(folder)
    if content["step"] != step:
        problem = "the folder was renamed or copied"
        raise CheckpointError(f"{NAME} says step {content['step']}, not step {step}: {problem}")
    if content["identity"] != identity:
        difference = _list_differences(content["identity"], identity)
        raise CheckpointError(f"it belongs to another run: {difference}")
    for name in content["files"]:
        if name in ("", "..") or "/" in name:  # it would be sent to other nodes and written there
            message = f"{NAME} lists {name!r}, which is not the name of a file in its folder"
            raise CheckpointError(message)
    if ".metadata" not in content["files"]:
        raise CheckpointError(f"{NAME} does not list the file .metadata")
    return dict(content["files"])


def check_file(path: Path, entry: dict[str, Any], *, sha256: bool = True) -> str | None:
    """Return why a file does not match its entry, or None; without `sha256` by its size alone."""
    try:
        size = path.stat().st_size
        if size != entry["size"]:
            return f"{path.name} has {size} bytes, expected {entry['size']}: it was cut or changed"
        if sha256 and describe_file(path)["sha256"] != entry["sha256"]:
            return f"{path.name} does not match its sha256: its content was damaged"
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read: {error}"
    return None


def content_sha256(content: dict[str, Any]) -> str:
    """Return the sha256 of a manifest's content, hex; it shows a change that was not intended."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def sync_file(file: IO[Any]) -> None:
    """Flush and fsync an open file, so that what was written to it survives a power loss."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Sync (fsync) a folder, so that its entries survive a power loss."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _list_differences(saved: dict[str, Any], current: dict[str, Any]) -> str:
    names = sorted(n for n in {*saved, *current} if saved.get(n) != current.get(n))
    return ", ".join(f"{n} is {saved.get(n)}, not {current.get(n)}" for n in names)


def _list_entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
