"""Finds the error that began a job's end among those of all its ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

# Errors of ranks that only saw another one go: torch's, gloo's and NCCL's words for that.
OF_A_PEER = re.compile(
    r"connection (was )?(closed|reset|refused|aborted|lost)|broken pipe|\bpeer\b|watchdog"
    r"|timed? ?out|nccl|gloo|Dist(Backend|Network|Store)Error",
    re.IGNORECASE,
)


def last_line(error: BaseException) -> str:
    """Return the last line of an error; Ray's wrap the whole traceback."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def error_lines(calls: Sequence[Any]) -> dict[int, str]:
    """Return the last line of each call's error, by index, for those that an exception ended."""
    import ray

    lines = {}
    for index, call in enumerate(calls):
        try:
            ray.get(call, timeout=0)
        except ray.exceptions.RayTaskError as error:
            lines[index] = last_line(error)
        except Exception:  # noqa: S112, BLE001  (it runs, or died without an exception)
            continue
    return lines


def find_cause(lines: dict[int, str]) -> tuple[list[int], str]:
    """Return the indices with the error that began it, and its line; ([], "") if none is their own.

    Of several errors of their own, the one of the lowest index counts.
    """
    own = {index: line for index, line in lines.items() if not OF_A_PEER.search(line)}
    if not own:
        return [], ""
    cause = own[min(own)]
    return [index for index, line in own.items() if line == cause], cause
