"""Keeps a program going whose output cannot be written any more: a reader left, a disk is full."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LAST_STREAM = 2  # file of standard error; standard input and output come before it
WAIT_S = 1.0  # until a terminal that was busy is tried again
SHOW_S = 3.0  # for what is shown by a process that must end, though its terminal may be stopped


class LastingFile(io.FileIO):
    """File for output that goes nowhere once it cannot be written."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write; discard what cannot be written."""
        try:
            while (written := super().write(data)) is None:  # it does not block, and is busy
                select.select([], [self], [], WAIT_S)
            return written
        except (OSError, ValueError):
            return memoryview(data).nbytes


_GUARDED: dict[str, tuple[TextIO | None, TextIO]] = {}  # by name: what was found, what is used


def guard_streams() -> None:
    """Let standard output and standard error end without an error; safe to repeat.

    pytest puts back what it found: a second call uses the same streams again.
    """
    _open_closed_files()
    for name in ("stdout", "stderr"):
        found = getattr(sys, name)
        before, guarded = _GUARDED.get(name, (found, None))
        if guarded is None or found not in (before, guarded):
            guarded = lasting(found)
            _GUARDED[name] = (found, guarded)
        setattr(sys, name, guarded)


def flush_streams() -> None:
    """Write what the guarded streams still hold."""
    for _, guarded in _GUARDED.values():
        with contextlib.suppress(OSError, ValueError):
            guarded.flush()


def wait_for(show: Callable[[], None]) -> None:
    """Call what writes to a terminal; wait SHOW_S for it, and no longer.  Errors are not raised."""

    def try_it() -> None:
        with contextlib.suppress(Exception):
            show()

    thread = threading.Thread(target=try_it, name="seatrial shows", daemon=True)
    with contextlib.suppress(RuntimeError):  # the interpreter ends: there are no more threads
        thread.start()
        thread.join(SHOW_S)


def _open_closed_files() -> None:
    """Open closed standard files: else another file gets the number, and prints go there."""
    with contextlib.suppress(OSError):
        while (number := os.open(os.devnull, os.O_RDWR)) <= LAST_STREAM:
            os.set_inheritable(number, True)
        os.close(number)


def lasting(stream: TextIO | None, number: int | None = None) -> TextIO:
    """Return a stream that writes to the same file, or to `number`, and never raises OSError.

    A stream without a file, as a test has, is returned unchanged.
    """
    if stream is None or stream.closed:
        return open(os.devnull, "w", encoding="utf-8")
    try:
        file = stream.fileno() if number is None else number
    except (OSError, ValueError, AttributeError):
        return stream
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    if number is None and isinstance(raw, LastingFile):
        return stream
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(LastingFile(file, "w", closefd=number is not None)),
        encoding=getattr(stream, "encoding", None) or "utf-8",
        errors=getattr(stream, "errors", None) or "backslashreplace",
        line_buffering=True,  # the suite's own lines go to a second stream of the same file
        write_through=getattr(stream, "write_through", False),
    )
