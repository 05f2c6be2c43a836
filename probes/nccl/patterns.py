"""Compiles the phrases with which NCCL, RCCL and plugins report a problem, in all versions read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from probes.toml_tables import ClosedTable, TableError, read_tables, validate

FILE = Path(__file__).with_name("phrases.toml")


class Phrase(ClosedTable):
    """One way to report something.

    The text of a warning begins with the NCCL source file that it names: `nvls.cc Cuda ...`.
    `versions` are those of NCCL, where nothing else is named.  `example` is a line of that form; a
    test reads it.

    The first row of a kind has `code` and `problem` where a line of it alone shows a fault: the
    code of the finding, and what is wrong with the host that wrote it.
    """

    kind: str
    pattern: bytes
    versions: str
    meaning: str
    severity: Literal["error", "retry", "follow-up", "news", "harmless"]
    example: str
    code: str = ""
    problem: str = ""


class Phrases(ClosedTable):
    """The file: its rows, in the order in which they are searched."""

    phrase: Annotated[list[Phrase], Field(min_length=1)]


@cache
def read_phrases() -> list[Phrase]:
    """Read the rows, once.  Raises TableError."""
    return validate(Phrases, read_tables(FILE), str(FILE)).phrase


@cache
def read_plain_errors() -> Mapping[str, tuple[str, str]]:
    """Read code and problem of each kind that alone shows a fault, once.  Raises TableError.

    Kinds with a code of their own come before those of NCCL-ERROR: they say what to mend.
    """
    found = sorted((one for one in read_phrases() if one.code), key=lambda one: one.code == OTHER)
    return {one.kind: (one.code, one.problem) for one in found}


OTHER = "NCCL-ERROR"  # the code of errors that have none of their own
TRACES = {"trace", "socket-trace"}  # NCCL never writes them as warnings
# Phrase -> phrases that it overrides in the same line, because it is more specific.
OVERRIDES: dict[str, tuple[str, ...]] = {
    "retrying": ("refused",),
    "qp-retrying": ("qp",),
    "mnnvl": ("nvls", "cuda"),
    "nvls": ("cuda", "cuda-memory"),
    "cuda-init": ("cuda", "nvls", "shm", "shm-cuda"),
    "cuda-memory": ("cuda", "shm", "shm-cuda"),
    "shm-denied": ("shm",),
    "peer-access": ("shm", "shm-cuda", "cuda"),
    "shm": ("cuda",),
    "shm-cuda": ("shm", "cuda"),
    "trace": ("inner-trace",),
    "shm-attach": ("shm",),
    "cuda-driver": ("cuda",),
    "cuda-peers": ("cuda",),
    "cuda-kernel": ("cuda",),
    "cuda-exit": ("cuda",),
    "nic": ("port-news",),
    "port-error": ("nic", "port-news"),
    "ofi-broke": ("plugin-failed",),
    "memlock": ("registration", "plugin-failed"),
    "efa": ("plugin-failed",),
    "refused": ("peer-closed",),
    "limits": ("refused",),
    "proxy-failed": ("refused",),
}

# One of these words is in every phrase, so a line without any is not searched.
PREFILTER = (
    b"ail", b"returned", b"libibverbs", b"open device", b"interface", b"exceeded", b"status=",
    b"/dev/shm", b"shared memory", b"register", b"not yet init", b"type", b"ismatch",
    b"truncated", b"Duplicate", b"same GPU", b"mixed local", b"incompatible", b"isabled",
    b"rovider", b"Selected", b"lugin", b"Got completion", b"async", b"rror", b" -> ",
    b"closed by", b"checked in", b"enable P2P", b"neither AF_INET", b"extended CQ",
    b"Couldn't open", b"timeout",
)  # fmt: skip

# First words of very frequent lines (debug subsystems COLL, P2P, TUNING, GRAPH, PROXY) that no
# detector uses.
SKIPPED_WORDS = frozenset(
    (
        b"AllReduce: AllGather: ReduceScatter: Broadcast: Reduce: Send: Recv: AlltoAll: Gather: "
        b"Scatter: Trees Tree Pattern Setting New proxyProgressAsync Received Mem Allocated "
        b"ncclPollProxyResponse threadThresholds MemManager resp.opId= ProxyCall Check === CPU/0"
    ).split()
)


@cache
def read_patterns() -> Mapping[str, re.Pattern[bytes]]:
    """Compile the phrases of each kind to one pattern, once.  Raises TableError."""
    rows: dict[str, list[bytes]] = {}
    for phrase in read_phrases():
        rows.setdefault(phrase.kind, []).append(phrase.pattern)
    return {kind: _compile(kind, b"|".join(patterns)) for kind, patterns in rows.items()}


def _compile(kind: str, pattern: bytes) -> re.Pattern[bytes]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise TableError(f"{FILE}: {kind}: expected a regular expression: {error}") from None


@cache
def _severities() -> Mapping[str, str]:
    return {phrase.kind: phrase.severity for phrase in read_phrases()}


def is_warning(kind: str) -> bool:
    """Return whether only a warning counts: a job that ends well may write the same as news."""
    return _severities().get(kind) == "follow-up" and kind not in TRACES


def is_retry(kind: str) -> bool:
    """Return whether NCCL tries again by itself."""
    return _severities().get(kind) == "retry"


def find_kinds(text: bytes) -> list[str]:
    """Find the kinds of phrases in a text, without those that another one overrides."""
    found = [kind for kind, pattern in read_patterns().items() if pattern.search(text)]
    return [kind for kind in found if not any(kind in OVERRIDES.get(k, ()) for k in found)]
