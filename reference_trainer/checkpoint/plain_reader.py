"""Reads a checkpoint as data: no content of its files can run code on a rank.

DCP's own reader unpickles two things: `.metadata`, and each value that is not a tensor. A pickle
may call any function, so write access to the folder would allow code on every rank. This reader
accepts only what DCP and this trainer write.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import pickle
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata

from reference_trainer.manifest import CheckpointError

# Modules whose dataclasses and enums describe a checkpoint.
RECORD_MODULES = {
    "torch.distributed.checkpoint.filesystem",
    "torch.distributed.checkpoint.metadata",
}
PLAIN_NAMES = {  # types in their fields, besides numbers, strings and containers
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # the same, as Python 3.13 names it
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
}


def load_plain(state: dict[str, Any], folder: Path, group: Any) -> None:
    """Load a checkpoint into `state`, in place. Raises CheckpointException of DCP."""
    reader, planner = PlainReader(str(folder)), _PlainPlanner()
    dcp.load(state, storage_reader=reader, planner=planner, process_group=group)


class PlainReader(dcp.FileSystemReader):
    """DCP reader that loads `.metadata` without calling what it names. Raises CheckpointError."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Read the description of the checkpoint's contents and where they are stored."""
        with Path(self.path, ".metadata").open("rb") as file:
            metadata = _RecordUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise CheckpointError(
                f".metadata holds a {type(metadata).__name__}, not DCP's Metadata"
            )
        return metadata


class _RecordUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return the object that a pickle names, if it is a DCP record or a plain type.

        Raises CheckpointError for any other name.
        """
        if module in RECORD_MODULES and "." not in name:
            found = super().find_class(module, name)
            if dataclasses.is_dataclass(found) or isinstance(found, enum.EnumMeta):
                return found
        elif module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        elif (module, name) in PLAIN_NAMES:
            return super().find_class(module, name)
        elif (module, name) == ("builtins", "getattr"):
            return _member_of
        raise CheckpointError(f".metadata names {module}.{name}, which no checkpoint needs")


def _member_of(owner: Any, name: Any) -> enum.Enum:
    """Return a member of an enum; replaces getattr, which Python 3.11.0 to 3.11.3 pickles for it.

    Raises CheckpointError for any other object or name.
    """
    if isinstance(owner, enum.EnumMeta) and name in owner.__members__:
        return owner.__members__[name]
    raise CheckpointError(f".metadata takes {name!r} of an object, which no checkpoint needs")


class _PlainPlanner(DefaultLoadPlanner):
    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        """Refuse a value that is not plain data before DCP unpickles it. Raises CheckpointError."""
        try:
            torch.load(value, weights_only=True)
        except pickle.UnpicklingError:
            name = read_item.dest_index.fqn
            raise CheckpointError(f"{name} holds more than numbers and text") from None
        value.seek(0)
        super().load_bytes(read_item, value)
