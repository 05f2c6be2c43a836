"""Writes a run's progress as lines of JSON that others can follow while it runs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, BinaryIO


class JsonLines:
    """File of JSON objects, one a line, flushed. Without a folder it does nothing."""

    def __init__(self, folder: str | None, name: str) -> None:
        self._file: BinaryIO | None = None
        if folder is None:
            return
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._file = (Path(folder) / name).open("a+b")
        if self._file.tell():
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")  # a killed run left half a line: end it

    def append(self, record: dict[str, Any]) -> None:
        """Append one object and hand it to the operating system."""
        if self._file is not None:
            self._file.write(json.dumps(record).encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class EventLog(JsonLines):
    """Events in a file of JSON lines; a resumed run appends.

    Events of a rank: "start", "begin" (a step begins), "step" (its numbers), "saving", "saved",
    "end". Each carries "t", seconds since the epoch.
    """

    def write(self, event: str, **values: Any) -> None:
        """Append one event."""
        self.append({"event": event, "t": time.time(), **values})
