"""One row of the tables of phrases."""

from __future__ import annotations

from typing import NamedTuple

ERROR, RETRY, FOLLOW_UP, NEWS, HARMLESS = "error", "retry", "follow-up", "news", "harmless"


class Phrase(NamedTuple):
    """One way to report something: a row of PHRASES.

    The text of a warning begins with the NCCL source file that it names: `nvls.cc Cuda ...`.
    `versions` are those of NCCL, where nothing else is named.  `example` is a line of that form; a
    test reads it.
    """

    kind: str
    pattern: bytes
    versions: str
    meaning: str
    severity: str  # error, retry, follow-up, news or harmless
    example: str
