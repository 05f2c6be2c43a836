"""Describes a rank in words of a job's log: its place, its variables, and what it trained on.

The words are `name=value`, percent-encoded, so that a value has no space and no line break.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from reference_trainer.rank_environment import LAUNCH_VARIABLES

SAFE = "/:.,+-@[]"  # as they are: addresses, paths, UUIDs and ranges stay readable
JOB_VARIABLE = "TRAINING_JOB"  # the job's name: all that a rank starts inherits it
PLACE_VARIABLES = (
    *("NODE_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES"),
    JOB_VARIABLE,
)
CONNECT_SECONDS = 10


def encode_words(values: Mapping[str, Any]) -> str:
    """Encode values as words; leave out those that are None."""
    return " ".join(
        f"{name}={quote(str(value), safe=SAFE)}"
        for name, value in values.items()
        if value is not None
    )


def read_variables(shown: str = "") -> dict[str, str | None]:
    """Return this process's rendezvous and place variables; None for those not set.

    `shown` names more of them, with commas between.
    """
    names = (*LAUNCH_VARIABLES, *PLACE_VARIABLES, *filter(None, shown.split(",")))
    return {name: os.environ.get(name) for name in names}


def connect_master() -> str | None:
    """Connect to MASTER_ADDR:MASTER_PORT and return the peer's IP address; None if it fails.

    A rank does so while it trains: rank 0's store listens there.
    """
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    try:
        with socket.create_connection((address, int(port)), timeout=CONNECT_SECONDS) as sock:
            return str(sock.getpeername()[0])
    except (OSError, ValueError):
        return None


def ranges(numbers: Iterable[int]) -> str:
    """Write numbers as ranges: `0-3,8`."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def trained_words(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a rank's result says of it: see `reference_trainer.train.train`."""
    steps: Sequence[Mapping[str, Any]] = result["steps"]
    validation, export = result.get("validation") or {}, result.get("export") or {}
    return {
        **(result.get("variables") or {}),
        "RANK": result["rank"],
        "host": result["host"],
        "device": result["device"],
        "gpu": result["gpu"],
        "master": result.get("master"),
        "start": _short(result.get("start_digest")),
        "end": _short(result["digest"]),
        "from": result["start_step"],
        "losses": ",".join(f"{step['local_loss']:.6g}" for step in steps) or None,
        "samples": ranges(id for step in steps for id in step["ids"]) or None,
        "seen": sum(len(step["ids"]) for step in steps) or None,
        "validation": validation.get("crc32"),
        "validation_loss": _loss(validation.get("loss")),
        "exported": _short(export.get("sha256")),
        "loaded": _short(export.get("loaded_sha256")),
        "loaded_loss": _loss(export.get("loaded_loss")),
    }


def _short(digest: str | None) -> str | None:
    return digest[:16] if digest else None


def _loss(value: float | None) -> str | None:
    return None if value is None else f"{value:.6g}"
